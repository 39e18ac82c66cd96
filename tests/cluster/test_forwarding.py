"""Whatever changes the cluster may be asked of any broker: the active controller does it."""

import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.broker.forwarding import FORWARDED_APIS
from penstock.controller.features import SAFE_DOWNGRADE, UPGRADE
from penstock.metadata.features import DEFAULT_LEVELS, GROUP_VERSION, KRAFT_LEVEL, KRAFT_VERSION, TRANSACTION_VERSION
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode
from penstock.testing import Cluster
from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.generated.add_raft_voter import AddRaftVoterRequest
from penstock.wire.generated.alter_configs import AlterConfigsRequest
from penstock.wire.generated.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from penstock.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.generated.create_partitions import CreatePartitionsRequest
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.delete_topics import DeleteTopicsRequest
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest
from penstock.wire.generated.elect_leaders import ElectLeadersRequest
from penstock.wire.generated.incremental_alter_configs import IncrementalAlterConfigsRequest
from penstock.wire.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from penstock.wire.generated.remove_raft_voter import RemoveRaftVoterRequest
from penstock.wire.generated.unregister_broker import UnregisterBrokerRequest
from penstock.wire.generated.unregister_controller import UnregisterControllerRequest
from penstock.wire.generated.update_features import UpdateFeaturesRequest
from penstock.wire.header import encode_request_header
from penstock.wire.served import SERVED
from penstock.wire.struct import ApiMessage, Struct

TOPIC = 2
"""Kind of a resource that has settings."""


class Wish(NamedTuple):
    request: ApiMessage
    code: ErrorCode = ErrorCode.NONE
    is_done: Callable[[MetadataImage], object] = lambda image: True


def count(image: MetadataImage, topic: str) -> int:
    found = image.topic(topic)
    return len(found.partitions) if found is not None else 0


def replicas(image: MetadataImage, topic: str) -> tuple[int, ...]:
    found = image.topic(topic)
    return found.partitions[0].replicas if found is not None else ()


def wishes(topic: str, order: tuple[int, ...]) -> dict[int, Wish]:
    """Of each API something that is done, or that only the controller refuses for this reason.

    `order`: another one of the replicas of the only partition.
    """
    new = f"{topic}-new"
    create, delete, grow = CreateTopicsRequest, DeleteTopicsRequest, CreatePartitionsRequest
    alter, change, elect = AlterConfigsRequest, IncrementalAlterConfigsRequest, ElectLeadersRequest
    move, quorum = AlterPartitionReassignmentsRequest, DescribeQuorumRequest
    return {
        ApiKey.CREATE_TOPICS: Wish(
            create([create.CreatableTopic(new, 2, 3)]), is_done=lambda image: count(image, new) == 2
        ),
        ApiKey.DELETE_TOPICS: Wish(
            delete([delete.DeleteTopicState(topic)], timeout_ms=10_000),
            is_done=lambda image: image.topic(topic) is None,
        ),
        ApiKey.CREATE_PARTITIONS: Wish(
            grow([grow.CreatePartitionsTopic(topic, 3, None)], 10_000), is_done=lambda image: count(image, topic) == 3
        ),
        ApiKey.ALTER_CONFIGS: Wish(
            alter([alter.AlterConfigsResource(TOPIC, topic, [alter.AlterableConfig("retention.ms", "1234567")])]),
            is_done=lambda image: image.topic_config(topic).get("retention.ms") == "1234567",
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Wish(
            change(
                [change.AlterConfigsResource(TOPIC, topic, [change.AlterableConfig("retention.ms", 0, "7654321")])]
            ),
            is_done=lambda image: image.topic_config(topic).get("retention.ms") == "7654321",
        ),
        ApiKey.ELECT_LEADERS: Wish(
            elect(0, [elect.TopicPartitions(topic, [0])], 10_000), ErrorCode.ELECTION_NOT_NEEDED
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Wish(
            move(10_000, True, [move.ReassignableTopic(topic, [move.ReassignablePartition(0, list(order))])]),
            is_done=lambda image: replicas(image, topic) == order,
        ),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Wish(ListPartitionReassignmentsRequest(10_000)),
        ApiKey.UPDATE_FEATURES: Wish(
            UpdateFeaturesRequest(10_000, [UpdateFeaturesRequest.FeatureUpdateKey("no.such.feature", 1)]),
            ErrorCode.INVALID_UPDATE_VERSION,
        ),
        ApiKey.UNREGISTER_BROKER: Wish(UnregisterBrokerRequest(99), ErrorCode.BROKER_ID_NOT_REGISTERED),
        ApiKey.UNREGISTER_CONTROLLER: Wish(UnregisterControllerRequest(99), ErrorCode.BROKER_ID_NOT_REGISTERED),
        ApiKey.DESCRIBE_QUORUM: Wish(quorum([quorum.TopicData("__cluster_metadata", [quorum.PartitionData(0)])])),
        ApiKey.ADD_RAFT_VOTER: Wish(
            AddRaftVoterRequest("another cluster", 10_000, 99), ErrorCode.INCONSISTENT_CLUSTER_ID
        ),
        ApiKey.REMOVE_RAFT_VOTER: Wish(RemoveRaftVoterRequest(None, 99), ErrorCode.VOTER_NOT_FOUND),
    }


def codes_in(response: Any) -> set[int]:
    """Every error code of a response, at its top and of each thing that was asked for."""
    found = {response.error_code} if hasattr(response, "error_code") else set()
    for name in response.__slots__:
        value = getattr(response, name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                found |= codes_in(each)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3) as running:
        yield running


def ask(cluster: Cluster, node_id: int, request: ApiMessage, max_version: int | None = None) -> Any:
    """The answer of that broker to a client."""
    broker = cluster.brokers[node_id]
    kind: type[Any] = API_TABLE[request.API_KEY].response_class()
    address = ("127.0.0.1", broker.port)
    return broker.run(broker.node.peers.request(address, request, kind, 10_000, max_version=max_version))


@pytest.mark.parametrize("key", sorted(FORWARDED_APIS & SERVED.keys()), ids=lambda key: API_TABLE[key].name)
def test_a_broker_that_is_not_the_controller_asks_it(cluster: Cluster, key: int) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    wish = wishes(topic, replicas(cluster.image(), topic)[::-1])[key]
    active = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    asked = next(node_id for node_id in cluster.running if node_id != active)
    response = ask(cluster, asked, wish.request)
    assert codes_in(response) - {0} == {wish.code} - {0}, f"broker {asked}, {active} is active: {response}"
    assert wish.is_done(cluster.image()), response


def told_by(cluster: Cluster, node_id: int) -> ApiVersionsResponse:
    response: ApiVersionsResponse = ask(cluster, node_id, ApiVersionsRequest("test", "1"))
    assert response.error_code == 0
    return response


def levels_told(cluster: Cluster, node_id: int) -> dict[str, int]:
    """0 is told by leaving the feature out. The quorum's own never changes."""
    features = told_by(cluster, node_id).finalized_features
    assert all(each.min_version_level == each.max_version_level > 0 for each in features)
    levels = {each.name: each.max_version_level for each in features}
    assert levels.pop(KRAFT_VERSION) == KRAFT_LEVEL
    return levels


def update_features(
    cluster: Cluster, version: int, levels: dict[str, int], kind: int = UPGRADE, **rest: Any
) -> set[int]:
    """The codes of the answer to that version of the request, which in version 0 has other words for a downgrade."""
    row = UpdateFeaturesRequest.FeatureUpdateKey
    how = {"upgrade_type": kind} if version else {"allow_downgrade": kind == SAFE_DOWNGRADE}
    rows = [row(name, level, **how) for name, level in levels.items()]
    active = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    asked = next(node_id for node_id in cluster.running if node_id != active)
    return codes_in(ask(cluster, asked, UpdateFeaturesRequest(10_000, rows, **rest), version))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_feature_levels_that_change_are_told_by_every_broker(cluster: Cluster, version: int) -> None:
    def everybody_tells(levels: dict[str, int]) -> None:
        for node_id in cluster.brokers:
            cluster.wait_for(
                lambda node_id=node_id: levels_told(cluster, node_id) == levels,  # type: ignore[misc]
                f"broker {node_id} tells {levels_told(cluster, node_id)}, not {levels}",
            )

    everybody_tells(DEFAULT_LEVELS)
    epochs = {node_id: told_by(cluster, node_id).finalized_features_epoch for node_id in cluster.brokers}
    lower = {GROUP_VERSION: 0, TRANSACTION_VERSION: 1}
    refused = {ErrorCode.INVALID_UPDATE_VERSION}
    assert update_features(cluster, version, lower) - {0} == refused, "a downgrade must be asked for"
    if version:
        assert update_features(cluster, version, lower, SAFE_DOWNGRADE, validate_only=True) == {0}
    everybody_tells(DEFAULT_LEVELS)
    assert update_features(cluster, version, lower, SAFE_DOWNGRADE) == {0}
    everybody_tells({name: level for name, level in {**DEFAULT_LEVELS, **lower}.items() if level})
    assert update_features(cluster, version, {GROUP_VERSION: 9}) - {0} == refused
    assert update_features(cluster, version, {name: DEFAULT_LEVELS[name] for name in lower}) == {0}
    everybody_tells(DEFAULT_LEVELS)
    for node_id in cluster.brokers:
        assert told_by(cluster, node_id).finalized_features_epoch > epochs[node_id]


def test_what_a_cut_off_broker_holds_is_dropped_when_its_client_hangs_up(cluster: Cluster) -> None:
    """The client asks elsewhere and makes a topic of that name anew: a deletion that comes late must not meet it."""
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    active = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    held_by = next(node_id for node_id in cluster.running if node_id != active)
    router = cluster.brokers[held_by].node.broker.router
    deletions = router.requests.get(ApiKey.DELETE_TOPICS, 0)
    out = bytearray(4)
    encode_request_header(ApiKey.DELETE_TOPICS, 6, 1, "test", out)
    row = DeleteTopicsRequest.DeleteTopicState
    DeleteTopicsRequest([row(topic)], timeout_ms=20_000).encode(6, out)
    out[:4] = (len(out) - 4).to_bytes(4, "big")
    cluster.isolate(held_by)
    try:
        with socket.create_connection(("127.0.0.1", cluster.brokers[held_by].port)) as client:
            client.sendall(out)
            cluster.wait_for(lambda: router.requests.get(ApiKey.DELETE_TOPICS, 0) > deletions, "not received")
    finally:
        cluster.heal()
    cluster.wait_for(lambda: not router._tasks, "the request is still held")
    assert cluster.image().topic(topic) is not None
