"""Metadata and topic administration as frames: null against empty, ids against names, every version."""

import uuid
from collections.abc import Iterator

import pytest

from penstock.model.errors import ErrorCode
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.delete_topics import DeleteTopicsRequest
from penstock.wire.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.generated.describe_configs import DescribeConfigsRequest
from penstock.wire.generated.describe_log_dirs import DescribeLogDirsRequest
from penstock.wire.generated.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.wire.generated.metadata import MetadataRequest
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.raw import RawConnection, topic_id_of
from tests.waiting import eventually

TOPIC_RESOURCE = 2


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    with RawConnection(bootstrap) as opened:
        yield opened


def named(*names: str) -> list[MetadataRequest.MetadataRequestTopic]:
    return [MetadataRequest.MetadataRequestTopic(name=name) for name in names]


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(
    connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction, version: int
) -> None:
    topic = new_topic(2)
    answer = connection.call(MetadataRequest(topics=named(topic)), version)
    assert [f"{b.host}:{b.port}" for b in answer.brokers] == [bootstrap]
    [described] = answer.topics
    assert (described.error_code, described.name) == (0, topic)
    leader = answer.brokers[0].node_id
    for partition in described.partitions:
        assert (partition.error_code, partition.leader_id) == (0, leader)
        assert partition.replica_nodes == partition.isr_nodes == [leader]
    if version >= 1:
        assert answer.controller_id == leader
    if version >= 2:
        assert answer.cluster_id
    if version >= 10:
        assert described.topic_id != bytes(16)


def test_null_asks_for_all_topics_and_empty_for_none(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    assert topic in {t.name for t in connection.call(MetadataRequest(topics=[]), 0).topics}, "version 0 had no null"
    for version in (1, 4, 9, 13):
        assert topic in {t.name for t in connection.call(MetadataRequest(topics=None), version).topics}
        assert connection.call(MetadataRequest(topics=[]), version).topics == []


def test_topics_by_id(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    wanted = [topic_id_of(connection, topic), b"\x33" * 16]
    topics = [MetadataRequest.MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in wanted]
    answer = connection.call(MetadataRequest(topics=topics), 12)
    assert {t.topic_id: (t.error_code, t.name) for t in answer.topics} == {
        wanted[0]: (0, topic),
        wanted[1]: (ErrorCode.UNKNOWN_TOPIC_ID, None),
    }


def test_unknown_topics_are_created_only_when_allowed(connection: RawConnection) -> None:
    name = f"auto-{uuid.uuid4().hex[:8]}"
    asked = MetadataRequest(topics=named(name), allow_auto_topic_creation=False)
    assert connection.call(asked, 9).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = MetadataRequest(topics=named(name), allow_auto_topic_creation=True)
    eventually(lambda: connection.call(asked, 9).topics[0].error_code == 0, 30)
    bad = MetadataRequest(topics=named("not a name"), allow_auto_topic_creation=True)
    assert connection.call(bad, 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_created_topics_carry_arrays_and_not_nulls(connection: RawConnection) -> None:
    """Kafka's Java client throws on null here, although the schema allows it."""
    name = f"created-{uuid.uuid4().hex[:8]}"
    for validate_only in (True, False):
        wanted = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
        request = CreateTopicsRequest(topics=[wanted], timeout_ms=30_000, validate_only=validate_only)
        [created] = connection.call(request, 7).topics
        assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 1, 1)
        assert created.configs
        assert "retention.ms" in {config.name for config in created.configs}
    eventually(lambda: connection.call(MetadataRequest(topics=named(name)), 9).topics[0].error_code == 0, 30)
    [again] = connection.call(request, 7).topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert again.configs is not None


def test_topic_requests_in_every_version(connection: RawConnection) -> None:
    for version in range(2, 8):
        name = f"versions-{version}-{uuid.uuid4().hex[:8]}"
        config = CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="5000000")
        wanted = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=2, replication_factor=1, configs=[config]
        )
        [created] = connection.call(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), version).topics
        assert created.error_code == 0
        eventually(lambda n=name: connection.call(MetadataRequest(topics=named(n)), 9).topics[0].error_code == 0, 30)
        delete = DeleteTopicsRequest(topic_names=[name], timeout_ms=30_000)
        if version == 7:
            state = DeleteTopicsRequest.DeleteTopicState(name=name)
            delete = DeleteTopicsRequest(topics=[state], timeout_ms=30_000)
        [deleted] = connection.call(delete, version - 1).responses
        assert (deleted.error_code, deleted.name) == (0, name)


def test_topics_are_deleted_by_id(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    topic_id = topic_id_of(connection, topic)
    state = DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic_id)
    [deleted] = connection.call(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), 6).responses
    assert (deleted.error_code, deleted.name) == (0, topic)
    [again] = connection.call(DeleteTopicsRequest(topics=[state], timeout_ms=30_000), 6).responses
    assert again.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_created_again_has_another_id(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    first = topic_id_of(connection, topic)
    assert (
        connection.call(DeleteTopicsRequest(topic_names=[topic], timeout_ms=30_000), 4).responses[0].error_code == 0
    )
    wanted = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)

    def is_created() -> bool:
        code = connection.call(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000), 7).topics[0].error_code
        return code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

    eventually(is_created, 30)
    eventually(lambda: topic_id_of(connection, topic) not in (bytes(16), first), 30)


def test_describe_topic_partitions(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(2)
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in sorted([topic, "zz-never-was"])]
    answer = connection.call(DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=2000), 0)
    codes = {t.name: t.error_code for t in answer.topics}
    assert codes == {topic: 0, "zz-never-was": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    partitions = next(t.partitions for t in answer.topics if t.name == topic)
    for partition in partitions:
        assert partition.isr_nodes == partition.replica_nodes
        assert partition.offline_replicas == []


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(connection: RawConnection, bootstrap: str, version: int) -> None:
    answer = connection.call(DescribeClusterRequest(), version)
    assert answer.error_code == 0
    assert [f"{b.host}:{b.port}" for b in answer.brokers] == [bootstrap]
    assert answer.controller_id == answer.brokers[0].broker_id
    assert answer.cluster_id


def test_describe_configs_of_what_is_not_there(connection: RawConnection) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name="never-was", configuration_keys=None
    )
    [answer] = connection.call(DescribeConfigsRequest(resources=[resource]), 4).results
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer.configs == []


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_in_every_version(connection: RawConnection, new_topic: NewTopicFunction, version: int) -> None:
    topic = new_topic()
    wanted = [DescribeLogDirsRequest.DescribableLogDirTopic(topic=topic, partitions=[0])]
    [directory] = connection.call(DescribeLogDirsRequest(topics=wanted), version).results
    assert directory.error_code == 0
    everything = connection.call(DescribeLogDirsRequest(topics=None), version).results
    assert [d.log_dir for d in everything] == [directory.log_dir]
