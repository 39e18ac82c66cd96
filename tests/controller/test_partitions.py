"""Adding partitions."""

import pytest

from penstock.controller.partitions import MorePartitions, decide_create_partitions
from penstock.controller.topics import MAX_PARTITIONS_PER_REQUEST, NewTopic
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster
from tests.controller.test_topics import create


def grow(cluster: Cluster, *wanted: MorePartitions, validate_only: bool = False) -> list[Refusal | None]:
    return cluster.run(
        lambda view: decide_create_partitions(view.image, wanted, cluster.rng, validate_only=validate_only)
    )


def cluster_with_topics(brokers: int = 1) -> Cluster:
    cluster = Cluster(brokers)
    create(cluster, NewTopic("a", 2, min(2, brokers)), NewTopic("__consumer_offsets", 1, 1))
    return cluster


def test_partitions_are_added_behind_the_old_ones() -> None:
    cluster = cluster_with_topics(3)
    before = cluster.image.topic("a")
    assert before is not None
    assert grow(cluster, MorePartitions("a", 5)) == [None]
    after = cluster.image.topic("a")
    assert after is not None
    assert (after.id, len(after.partitions)) == (before.id, 5)
    assert after.partitions[:2] == before.partitions
    assert all(len(partition.replicas) == 2 for partition in after.partitions)


def test_a_broker_that_is_away_for_a_while_gets_its_replicas_all_the_same() -> None:
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 1, 3))
    cluster.fence(3)
    assert grow(cluster, MorePartitions("a", 3)) == [None]
    for number in (1, 2):
        partition = cluster.partition(number=number)
        assert (sorted(partition.replicas), sorted(partition.isr)) == ([1, 2, 3], [1, 2])


def test_by_hand_and_validating() -> None:
    cluster = cluster_with_topics(3)
    assert grow(cluster, MorePartitions("a", 3, [(3, 1)]), validate_only=True) == [None]
    assert cluster.image.partition("a", 2) is None
    assert grow(cluster, MorePartitions("a", 3, [(3, 1)])) == [None]
    partition = cluster.image.partition("a", 2)
    assert partition is not None
    assert partition.replicas == (3, 1)


@pytest.mark.parametrize(
    ("more", "code", "part"),
    [
        (MorePartitions("nothing", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nothing"),
        (MorePartitions("a", 2), ErrorCode.INVALID_PARTITIONS, "already has 2"),
        (MorePartitions("a", 1), ErrorCode.INVALID_PARTITIONS, "cannot be taken away"),
        (MorePartitions("a", 3 + MAX_PARTITIONS_PER_REQUEST), ErrorCode.POLICY_VIOLATION, "one request"),
        (MorePartitions("a", 4, [(1, 2)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "2 are new"),
        (MorePartitions("a", 3, [(1,)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "not 2"),
        (MorePartitions("a", 3, [(1, 9)]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no broker 9"),
        (MorePartitions("__consumer_offsets", 3), ErrorCode.INVALID_TOPIC_EXCEPTION, "internal"),
    ],
)
def test_refusals(more: MorePartitions, code: ErrorCode, part: str) -> None:
    cluster = cluster_with_topics(3)
    end = cluster.image.end_offset
    (answer,) = grow(cluster, more)
    assert answer is not None
    assert answer.code == code
    assert part in answer.message
    assert cluster.image.end_offset == end


def test_a_topic_named_twice_is_refused() -> None:
    cluster = cluster_with_topics()
    answers = grow(cluster, MorePartitions("a", 3), MorePartitions("a", 4))
    assert [answer and answer.code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2
