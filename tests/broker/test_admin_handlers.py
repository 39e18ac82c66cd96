"""The admin handlers over a socket: settings, partitions, coordinators, producer ids, addresses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.controller_service import ControllerService
from penstock.broker.metadata_driver import MetadataUnavailable
from penstock.log.partition_log import PartitionLog
from penstock.metadata.features import DEFAULT_LEVELS, SUPPORTED_FEATURES
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import ZERO_UUID
from penstock.testing import Broker
from penstock.wire.generated.alter_configs import AlterConfigsRequest
from penstock.wire.generated.api_versions import ApiVersionsRequest
from penstock.wire.generated.begin_quorum_epoch import BeginQuorumEpochRequest
from penstock.wire.generated.create_partitions import CreatePartitionsRequest
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.delete_topics import DeleteTopicsRequest
from penstock.wire.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.generated.describe_configs import DescribeConfigsRequest
from penstock.wire.generated.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.wire.generated.elect_leaders import ElectLeadersRequest
from penstock.wire.generated.end_quorum_epoch import EndQuorumEpochRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.fetch_snapshot import FetchSnapshotRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.generated.vote import VoteRequest
from tests.conformance.raw import RawConnection

TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND = 0, 1, 2
_METADATA_ID = bytes(15) + b"\x01"


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker({"num.partitions": "2", "log.retention.hours": "2"}) as broker:
        yield broker


@pytest.fixture
def connection(shared: Broker) -> Iterator[RawConnection]:
    with RawConnection(shared.bootstrap) as opened:
        yield opened


def create(connection: RawConnection, name: str, partitions: int = -1, **configs: str) -> Any:
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name,
                partitions,
                -1,
                [],
                [CreateTopicsRequest.CreatableTopicConfig(k.replace("_", "."), v) for k, v in configs.items()],
            )
        ]
    )
    (result,) = connection.call(request, 7).topics
    return result


def describe(connection: RawConnection, kind: int, name: str, keys: list[str] | None = None, version: int = 4) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource(kind, name, keys)
    request = DescribeConfigsRequest([resource], include_synonyms=True, include_documentation=version >= 3)
    (result,) = connection.call(request, version).results
    return result


def values(result: Any) -> dict[str, tuple[str | None, int]]:
    return {row.name: (row.value, row.config_source) for row in result.configs}


def alter(connection: RawConnection, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    change = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(kind, name, [change(*c) for c in changes])
    (result,) = connection.call(IncrementalAlterConfigsRequest([resource]), 1).responses
    return result


def test_api_versions_names_the_features(connection: RawConnection) -> None:
    response = connection.call(ApiVersionsRequest("test", "1.0"), 4)
    assert response.error_code == 0
    supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
    assert supported.pop("penstock.two.phase.commit") == (1, 1)
    assert supported.pop("kraft.version") == (1, 1)
    assert supported == {name: tuple(levels) for name, levels in SUPPORTED_FEATURES.items()}
    finalized = {f.name: f.max_version_level for f in response.finalized_features}
    assert finalized.pop("kraft.version") == 1, "voters can be added and removed"
    assert finalized == DEFAULT_LEVELS
    assert finalized["transaction.version"] == 2
    assert response.finalized_features_epoch >= 0
    keys = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    assert keys[0] == (0, 13), "Produce is advertised from 0 on"
    assert 71 not in keys
    assert 72 not in keys


@pytest.mark.parametrize("name", ["", "bad name!", "-x"])
def test_a_client_must_name_itself_properly(connection: RawConnection, name: str) -> None:
    assert connection.call(ApiVersionsRequest(name, "1.0"), 3).error_code == ErrorCode.INVALID_REQUEST


def test_a_created_topic_tells_its_settings(connection: RawConnection) -> None:
    result = create(connection, "told", retention_ms="1d")
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)
    rows = {row.name: (row.value, row.config_source) for row in result.configs}
    assert rows["retention.ms"] == ("86400000", 1)
    assert rows["cleanup.policy"] == ("delete", 5)
    refused = create(connection, "told")
    assert (refused.error_code, refused.configs) == (ErrorCode.TOPIC_ALREADY_EXISTS, [])
    assert "already exists" in refused.error_message


def test_validating_creates_nothing(connection: RawConnection) -> None:
    topic = CreateTopicsRequest.CreatableTopic("validated", 3, 1)
    (result,) = connection.call(CreateTopicsRequest([topic], validate_only=True), 7).topics
    assert (result.error_code, result.num_partitions, result.topic_id) == (0, 3, bytes(16))
    asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="validated")], False)
    assert connection.call(asked, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topic_settings_with_their_layers(connection: RawConnection) -> None:
    create(connection, "layers", retention_ms="5")
    result = describe(connection, TOPIC, "layers", ["retention.ms"])
    (row,) = result.configs
    assert (row.value, row.config_source, row.config_type, row.is_sensitive) == ("5", 1, 5, False)
    assert [(s.name, s.value, s.source) for s in row.synonyms] == [
        ("retention.ms", "5", 1),
        ("log.retention.hours", "7200000", 4),
        ("log.retention.hours", "604800000", 5),
    ]
    assert row.documentation
    assert len(describe(connection, TOPIC, "layers", []).configs) > 20, "an empty list of names means all"
    for version in range(1, 5):
        assert describe(connection, TOPIC, "layers", None, version).error_code == 0


def test_broker_settings(connection: RawConnection) -> None:
    rows = values(describe(connection, BROKER, "1"))
    assert rows["num.partitions"] == ("2", 4)
    assert rows["message.max.bytes"] == ("1048588", 5)
    assert rows["default.replication.factor"][0] == "1", "Debezium reads it as a number"
    assert describe(connection, BROKER, "").configs == []
    assert describe(connection, BROKER, "9").error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert describe(connection, BROKER, "x").error_code == ErrorCode.INVALID_REQUEST
    assert describe(connection, GROUP, "g").error_code == ErrorCode.INVALID_REQUEST
    assert describe(connection, TOPIC, "no").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_changing_topic_settings(connection: RawConnection) -> None:
    create(connection, "changing")
    assert (
        alter(
            connection, TOPIC, "changing", ("retention.ms", SET, "7"), ("cleanup.policy", APPEND, "compact")
        ).error_code
        == 0
    )
    rows = values(describe(connection, TOPIC, "changing"))
    assert (rows["retention.ms"], rows["cleanup.policy"]) == (("7", 1), ("delete,compact", 1))
    assert alter(connection, TOPIC, "changing", ("retention.ms", DELETE, None)).error_code == 0
    assert values(describe(connection, TOPIC, "changing"))["retention.ms"] == ("7200000", 4)
    refused = alter(connection, TOPIC, "changing", ("retention.sm", SET, "7"))
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "did you mean retention.ms?" in refused.error_message
    change = AlterConfigsRequest.AlterableConfig("segment.bytes", "2000")
    resource = AlterConfigsRequest.AlterConfigsResource(TOPIC, "changing", [change])
    for version in range(3):
        assert connection.call(AlterConfigsRequest([resource]), version).responses[0].error_code == 0
    rows = values(describe(connection, TOPIC, "changing"))
    assert (rows["segment.bytes"], rows["cleanup.policy"]) == (("2000", 1), ("delete", 5))


def test_dynamic_broker_settings_take_effect(connection: RawConnection, shared: Broker) -> None:
    assert alter(connection, BROKER, "", ("num.partitions", SET, "4")).error_code == 0
    assert create(connection, "four").num_partitions == 4
    assert values(describe(connection, BROKER, "1"))["num.partitions"] == ("4", 3)
    assert values(describe(connection, BROKER, "")) == {"num.partitions": ("4", 3)}
    assert alter(connection, BROKER, "1", ("num.partitions", SET, "3")).error_code == 0
    assert shared.node.broker.settings.num_partitions == 3
    for name in ("", "1"):
        assert alter(connection, BROKER, name, ("num.partitions", DELETE, None)).error_code == 0
    assert values(describe(connection, BROKER, "1"))["num.partitions"] == ("2", 4)
    assert alter(connection, BROKER, "1", ("node.id", SET, "5")).error_code == ErrorCode.INVALID_CONFIG


def test_logger_levels(connection: RawConnection) -> None:
    assert values(describe(connection, LOGGER, "1"))["penstock"][1] == 6
    assert alter(connection, LOGGER, "1", ("penstock.broker", SET, "ERROR")).error_code == 0
    assert values(describe(connection, LOGGER, "1", ["penstock.broker"])) == {"penstock.broker": ("ERROR", 6)}
    assert alter(connection, LOGGER, "1", ("penstock.broker", DELETE, None)).error_code == 0
    for change in (("penstock.nothing", SET, "INFO"), ("penstock.broker", SET, "LOUD")):
        assert alter(connection, LOGGER, "1", change).error_code == ErrorCode.INVALID_CONFIG
    for change in (("penstock", DELETE, None), ("penstock.broker", APPEND, "INFO")):
        assert alter(connection, LOGGER, "1", change).error_code == ErrorCode.INVALID_REQUEST
    assert alter(connection, LOGGER, "7", ("penstock", SET, "INFO")).error_code == ErrorCode.INVALID_REQUEST
    assert describe(connection, LOGGER, "7").error_code == ErrorCode.INVALID_REQUEST


def test_adding_partitions(connection: RawConnection) -> None:
    create(connection, "growing", 1)
    for version in range(4):
        topic = CreatePartitionsRequest.CreatePartitionsTopic("growing", version + 2, None)
        (result,) = connection.call(CreatePartitionsRequest([topic], 1000), version).results
        assert (result.name, result.error_code) == ("growing", 0)
    assignments = [CreatePartitionsRequest.CreatePartitionsAssignment([1])]
    topic = CreatePartitionsRequest.CreatePartitionsTopic("growing", 6, assignments)
    assert connection.call(CreatePartitionsRequest([topic], 1000, True), 3).results[0].error_code == 0
    topic = CreatePartitionsRequest.CreatePartitionsTopic("growing", 2, None)
    (result,) = connection.call(CreatePartitionsRequest([topic], 1000), 3).results
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="growing")])
    assert len(connection.call(asked, 12).topics[0].partitions) == 5


def test_deleting(connection: RawConnection) -> None:
    create(connection, "gone", retention_ms="5")
    (result,) = connection.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1), 5).responses
    assert (result.name, result.error_code) == ("gone", 0)
    (result,) = connection.call(DeleteTopicsRequest(topic_names=["gone"], timeout_ms=1), 5).responses
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    create(connection, "gone")
    assert values(describe(connection, TOPIC, "gone"))["retention.ms"] == ("7200000", 4), "settings went with it"


def test_a_deletion_names_a_topic_once_and_in_one_way(connection: RawConnection) -> None:
    """A name beside an id is no second choice: under it there may be another topic by now."""
    create(connection, "stays")
    row, other = DeleteTopicsRequest.DeleteTopicState, b"i" * 16
    rows = [row("stays", other), row(), row("stays"), row("stays"), row(topic_id=other)]
    results = connection.call(DeleteTopicsRequest(rows, timeout_ms=1), 6).responses
    assert [(result.name, result.topic_id, result.error_code) for result in results] == [
        ("stays", other, ErrorCode.INVALID_REQUEST),
        (None, ZERO_UUID, ErrorCode.INVALID_REQUEST),
        ("stays", ZERO_UUID, ErrorCode.INVALID_REQUEST),
        (None, other, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    (result,) = connection.call(DeleteTopicsRequest(topic_names=["stays", "stays"], timeout_ms=1), 5).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert values(describe(connection, TOPIC, "stays"))


def test_the_coordinator_is_where_the_hash_says(connection: RawConnection, shared: Broker) -> None:
    for version in range(7):
        if version < 4:
            found = connection.call(FindCoordinatorRequest(key="group", key_type=0), version)
        else:
            (found,) = connection.call(FindCoordinatorRequest(coordinator_keys=["group"]), version).coordinators
        assert (found.error_code, found.node_id, f"{found.host}:{found.port}") == (0, 1, shared.bootstrap)
    topic = shared.node.broker.image.topic("__consumer_offsets")
    assert topic is not None
    assert len(topic.partitions) == 50
    assert topic.is_internal
    assert 0 <= coordinator_partition("group", 50) < 50
    assert shared.node.broker.image.topic_config("__consumer_offsets")["cleanup.policy"] == "compact"


def test_several_coordinators_at_once(connection: RawConnection) -> None:
    response = connection.call(FindCoordinatorRequest(coordinator_keys=["a", "b", "c"]), 6)
    assert [(row.key, row.error_code) for row in response.coordinators] == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize("key_type", [2, 9])
def test_other_coordinators_are_refused(connection: RawConnection, key_type: int) -> None:
    (found,) = connection.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 6).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
    assert found.error_message


def test_producer_ids_are_distinct(connection: RawConnection) -> None:
    given = [connection.call(InitProducerIdRequest(None, 1), version) for version in range(6)]
    assert {response.error_code for response in given} == {0}
    assert len({response.producer_id for response in given}) == 6
    assert {response.producer_epoch for response in given} == {0}


def test_describe_cluster_by_endpoint_type(connection: RawConnection, shared: Broker) -> None:
    response = connection.call(DescribeClusterRequest(include_cluster_authorized_operations=True), 2)
    assert [(b.broker_id, f"{b.host}:{b.port}", b.is_fenced) for b in response.brokers] == [
        (1, shared.bootstrap, False)
    ]
    assert response.cluster_authorized_operations > 0
    assert response.cluster_id == shared.node.broker.cluster_id
    assert (
        connection.call(DescribeClusterRequest(endpoint_type=2), 1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    )
    assert (
        connection.call(DescribeClusterRequest(endpoint_type=7), 1).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    )


def test_authorised_operations_only_on_request(connection: RawConnection) -> None:
    create(connection, "allowed")
    asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="allowed")])
    assert connection.call(asked, 10).topics[0].topic_authorized_operations == -(2**31)
    asked.include_topic_authorized_operations = True
    asked.include_cluster_authorized_operations = True
    response = connection.call(asked, 10)
    assert response.topics[0].topic_authorized_operations > 0
    assert response.cluster_authorized_operations > 0


def test_topics_page_by_page(connection: RawConnection) -> None:
    for name in ("page-a", "page-b", "page-c"):
        create(connection, name, 3)
    names = ["page-c", "page-a", "page-b", "page-missing"]
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name) for name in names]
    cursor = None
    seen = []
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(wanted, 4, cursor)
        response = connection.call(request, 0)
        assert sum(len(topic.partitions) for topic in response.topics) <= 4
        for topic in response.topics:
            if topic.name == "page-missing":
                assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for partition in topic.partitions:
                seen.append((topic.name, partition.partition_index))
                assert partition.eligible_leader_replicas == []
                assert partition.last_known_elr == []
        if response.next_cursor is None:
            break
        at = response.next_cursor
        cursor = DescribeTopicPartitionsRequest.Cursor(at.topic_name, at.partition_index)
    assert seen == [(name, number) for name in ("page-a", "page-b", "page-c") for number in range(3)]


def test_advertised_listeners_are_told() -> None:
    settings = {"advertised.listeners": "PLAINTEXT://broker.example:19092"}
    with Broker(settings) as broker, RawConnection(broker.bootstrap) as connection:
        (row,) = connection.call(MetadataRequest([]), 12).brokers
        assert (row.host, row.port) == ("broker.example", 19092)
        (row,) = connection.call(DescribeClusterRequest(), 0).brokers
        assert (row.host, row.port) == ("broker.example", 19092)


def test_topics_are_not_created_on_demand_when_switched_off() -> None:
    with Broker({"auto.create.topics.enable": "false"}) as broker, RawConnection(broker.bootstrap) as connection:
        asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="new")], True)
        for version in range(14):
            assert connection.call(asked, version).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        bad = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="a b")], True)
        assert connection.call(bad, 9).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_metadata_log_is_no_topic() -> None:
    """A replica of it would take its directory: no client, by asking for it or by making it, may bring that about."""
    with Broker() as broker:
        with RawConnection(broker.bootstrap) as connection:
            asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="__cluster_metadata")], True)
            assert connection.call(asked, 12).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            asked.allow_auto_topic_creation = False
            assert connection.call(asked, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert create(connection, "__cluster_metadata").error_code == ErrorCode.INVALID_REQUEST
            assert create(connection, "kept").error_code == 0
        broker.restart()
        with RawConnection(broker.bootstrap) as connection:
            assert [topic.name for topic in connection.call(MetadataRequest(None), 12).topics] == ["kept"]


def test_the_metadata_log_is_fetched_by_members_only(connection: RawConnection) -> None:
    """A client that fetches it as a voter would have the leader count what nobody has."""
    part = FetchRequest.FetchPartition(current_leader_epoch=1, fetch_offset=1, last_fetched_epoch=1)
    for version, topic, code in (
        (12, FetchRequest.FetchTopic("__cluster_metadata", ZERO_UUID, [part]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (14, FetchRequest.FetchTopic("", _METADATA_ID, [part]), ErrorCode.UNKNOWN_TOPIC_ID),
    ):
        (row,) = connection.call(FetchRequest(replica_id=1, topics=[topic]), version).responses
        assert row.partitions[0].error_code == code
        assert not row.partitions[0].records


def test_members_are_answered_in_every_version() -> None:
    """Older ones have no room for where the leader is."""
    settings = {"listeners": "CONTROLLER://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"}
    vote, begin, end, snapshot = VoteRequest, BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchSnapshotRequest
    name = "__cluster_metadata"
    with Broker(settings) as broker:
        assert broker.node is not None
        (endpoint,) = broker.node.broker.driver.controller_endpoints
        with RawConnection(f"127.0.0.1:{endpoint.port}") as connection:
            for request in (
                vote(topics=[vote.TopicData(name, [vote.PartitionData()])]),
                begin(topics=[begin.TopicData(name, [begin.PartitionData()])]),
                end(topics=[end.TopicData(name, [end.PartitionData()])]),
                snapshot(topics=[snapshot.TopicSnapshot(name, [snapshot.PartitionSnapshot()])]),
            ):
                for version in range(request.MIN_VERSION, request.MAX_VERSION + 1):
                    answer = connection.call(request, version)
                    assert answer.topics[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH
                    assert bool(answer.node_endpoints) == (version > 0)
            for version in range(2):
                answer = connection.call(DescribeClusterRequest(), version)
                assert answer.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
            for version in range(4, FetchRequest.MAX_VERSION + 1):
                topic = FetchRequest.FetchTopic(name) if version < 13 else FetchRequest.FetchTopic("", _METADATA_ID)
                topic.partitions = [FetchRequest.FetchPartition(current_leader_epoch=0 if version >= 9 else -1)]
                answer = connection.call(FetchRequest(topics=[topic]), version)
                code = ErrorCode.FENCED_LEADER_EPOCH if version >= 12 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                assert answer.responses[0].partitions[0].error_code == code
                assert bool(answer.node_endpoints) == (version >= 16)


def test_an_election_that_cannot_be_held_is_refused_in_every_version(
    connection: RawConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise MetadataUnavailable("the disk is full")

    monkeypatch.setattr(ControllerService, "_append", refuse)
    kind, code = ElectLeadersRequest, ErrorCode.KAFKA_STORAGE_ERROR
    for version in range(3):
        answer = connection.call(kind(topic_partitions=[kind.TopicPartitions("t", [0, 1])]), version)
        rows = [row.error_code for topic in answer.replica_election_results for row in topic.partition_result]
        assert (answer.error_code, rows) == ((code, []) if version else (0, [code, code]))


def test_settings_and_topics_survive_a_restart() -> None:
    with Broker() as broker:
        with RawConnection(broker.bootstrap) as connection:
            topic_id = create(connection, "kept", 3, retention_ms="9").topic_id
            first = connection.call(InitProducerIdRequest(None, 1), 4).producer_id
        broker.restart()
        with RawConnection(broker.bootstrap) as connection:
            asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name="kept")])
            (topic,) = connection.call(asked, 12).topics
            assert (topic.topic_id, len(topic.partitions)) == (topic_id, 3)
            assert values(describe(connection, TOPIC, "kept"))["retention.ms"] == ("9", 1)
            assert connection.call(InitProducerIdRequest(None, 1), 4).producer_id > first


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(data_dir=tmp_path) as broker, RawConnection(broker.bootstrap) as connection:
        create(connection, "before")
        full = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "no space left; free space and retry")
        monkeypatch.setattr(PartitionLog, "append_as_leader", lambda *_args, **_more: full)
        result = create(connection, "after")
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert "free space" in result.error_message
        assert alter(connection, TOPIC, "before", ("retention.ms", SET, "1")).error_code == full.code
        assert connection.call(DeleteTopicsRequest(topic_names=["before"]), 5).responses[0].error_code == full.code
        assert connection.call(InitProducerIdRequest(None, 1), 4).error_code == full.code
        monkeypatch.undo()
        assert create(connection, "after").error_code == 0


def test_internal_topics_are_created_as_the_broker_needs_them() -> None:
    settings = {"transaction.state.log.num.partitions": "5", "offsets.topic.num.partitions": "3"}
    with Broker(settings) as broker, RawConnection(broker.bootstrap) as connection:
        for name, partitions in (("__transaction_state", 5), ("__consumer_offsets", 3)):
            asked = MetadataRequest([MetadataRequest.MetadataRequestTopic(name=name)], True)
            (topic,) = connection.call(asked, 12).topics
            assert (topic.error_code, len(topic.partitions), topic.is_internal) == (0, partitions, True)
            assert values(describe(connection, TOPIC, name))["cleanup.policy"] == ("compact", 1)
            (result,) = connection.call(DeleteTopicsRequest(topic_names=[name]), 5).responses
            assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
