"""Generated classes: defaults, equality, printing."""

import pytest

from penstock.wire.generated.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.wire.generated.metadata import MetadataRequest, MetadataResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse


def test_lists_and_structs_are_made_afresh() -> None:
    first, second = MetadataResponse(), MetadataResponse()
    assert first.brokers == []
    assert first.brokers is not second.brokers
    one, other = ProduceResponse.PartitionProduceResponse(), ProduceResponse.PartitionProduceResponse()
    assert one.current_leader == ProduceResponse.LeaderIdAndEpoch(-1, -1)
    assert one.current_leader is not other.current_leader


def test_null_is_a_value_and_not_the_default() -> None:
    assert MetadataRequest().topics == []
    assert MetadataRequest(topics=None).topics is None
    assert DescribeTopicPartitionsRequest().cursor is None
    assert ProduceRequest().transactional_id is None


def test_equality_is_by_value_and_class() -> None:
    assert MetadataResponse(cluster_id="a") == MetadataResponse(cluster_id="a")
    assert MetadataResponse(cluster_id="a") != MetadataResponse(cluster_id="b")
    assert MetadataResponse() != MetadataRequest()
    with pytest.raises(TypeError):
        hash(MetadataResponse())


def test_printing_names_every_field() -> None:
    text = repr(MetadataResponse.MetadataResponseBroker(1, "localhost", 9092))
    assert text == "MetadataResponse.MetadataResponseBroker(node_id=1, host='localhost', port=9092, rack=None)"


def test_records_are_not_copied() -> None:
    data = ProduceRequest.TopicProduceData("t", partition_data=[ProduceRequest.PartitionProduceData(0, b"records")])
    raw = bytearray()
    ProduceRequest(topic_data=[data]).encode(9, raw)
    decoded, _ = ProduceRequest.decode(memoryview(raw), 0, 9)
    records = decoded.topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is raw
