"""Reassignments: started, finished, changed, cancelled, listed (C10)."""

import pytest

from penstock.controller.reassignment import Reassignment, decide_alter_reassignments, ongoing_reassignments
from penstock.controller.topics import NewTopic
from penstock.model.errors import ErrorCode
from tests.controller.cluster import Cluster, directory
from tests.controller.test_isr import ask
from tests.controller.test_topics import create


def five() -> Cluster:
    cluster = Cluster(5)
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    return cluster


def move(cluster: Cluster, *replicas: int, partition: int = 0, topic: str = "a", factor: bool = True) -> int:
    wanted = [Reassignment(topic, partition, replicas or None)]
    (answer,) = cluster.run(
        lambda view: decide_alter_reassignments(view.image, wanted, cluster.settings, allow_factor_change=factor)
    )
    return answer.code if answer else 0


def test_a_partition_moves_when_all_targets_are_in_sync() -> None:
    cluster = five()
    assert move(cluster, 4, 5, 3) == 0
    partition = cluster.partition()
    assert partition.replicas == (4, 5, 3, 1, 2)
    assert (partition.adding_replicas, partition.removing_replicas) == ((4, 5), (1, 2))
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((1, 2, 3), 1, 0)
    assert partition.directory_of(4) == directory(40)
    assert [ongoing.topic for ongoing in ongoing_reassignments(cluster.image)] == ["a"]
    ask(cluster, (1, 2, 3, 4))
    assert cluster.partition().replicas == (4, 5, 3, 1, 2)
    assert ask(cluster, (1, 2, 3, 4, 5)) == ErrorCode.NEW_LEADER_ELECTED
    partition = cluster.partition()
    assert (partition.replicas, set(partition.isr), partition.leader) == ((4, 5, 3), {3, 4, 5}, 4)
    assert (partition.adding_replicas, partition.removing_replicas, partition.leader_epoch) == ((), (), 1)
    assert partition.directories == (directory(40), directory(50), directory(30))
    assert not list(ongoing_reassignments(cluster.image))


def test_a_dead_target_holds_it_up() -> None:
    cluster = five()
    cluster.fence(3)
    assert move(cluster, 4, 3) == 0
    ask(cluster, (1, 2, 4))
    assert cluster.partition().removing_replicas == (1, 2), "C10: 3 is not in sync"


def test_fewer_and_more_replicas() -> None:
    cluster = five()
    assert move(cluster, 2, 1) == 0
    partition = cluster.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((2, 1), (1, 2), 1)
    assert partition.leader_epoch == 1, "C2: a replica less is a leader epoch more"
    assert move(cluster, 2, 1, 4) == 0
    assert cluster.partition().adding_replicas == (4,)
    ask(cluster, (1, 2, 4), sender=1)
    assert cluster.partition().adding_replicas == ()
    assert cluster.partition().leader_epoch == 1


def test_another_order_is_another_preference() -> None:
    cluster = five()
    assert move(cluster, 3, 2, 1) == 0
    partition = cluster.partition()
    assert (partition.replicas, partition.leader, partition.leader_epoch) == ((3, 2, 1), 1, 0)
    assert partition.directories == (directory(30), directory(20), directory(10))
    end = cluster.image.end_offset
    assert move(cluster, 3, 2, 1) == 0
    assert cluster.image.end_offset == end


def test_changing_ones_mind() -> None:
    cluster = five()
    move(cluster, 4, 2, 3)
    move(cluster, 5, 2, 3)
    partition = cluster.partition()
    assert partition.replicas == (5, 2, 3, 1)
    assert (partition.adding_replicas, partition.removing_replicas) == ((5,), (1,))
    ask(cluster, (1, 2, 3), sender=1)
    move(cluster)
    partition = cluster.partition()
    assert set(partition.replicas) == {1, 2, 3}
    assert (partition.adding_replicas, partition.removing_replicas) == ((), ())


def test_a_cancellation_must_not_cost_what_is_in_sync() -> None:
    cluster = five()
    move(cluster, 4, 5, 3)
    ask(cluster, (1, 4))
    cluster.fence(2)
    cluster.fence(3)
    assert move(cluster) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, "1 alone is below min ISR 2"
    cluster.beat(2)
    ask(cluster, (1, 2, 4))
    assert move(cluster) == 0
    assert (cluster.partition().replicas, set(cluster.partition().isr)) == ((3, 1, 2), {1, 2})


def test_no_cancellation_where_nothing_moves() -> None:
    assert move(five()) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(
    ("replicas", "other", "code"),
    [
        ((1, 1), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 9), {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ((1, 2), {"factor": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ((1, 2), {"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1, 2), {"topic": "x"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_refusals(replicas: tuple[int, ...], other: dict[str, object], code: ErrorCode) -> None:
    assert move(five(), *replicas, **other) == code  # type: ignore[arg-type]


def test_empty_and_twice() -> None:
    cluster = five()
    wanted = [Reassignment("a", 0, ()), Reassignment("a", 0, (1,))]
    answers = cluster.run(lambda view: decide_alter_reassignments(view.image, wanted, cluster.settings))
    assert [answer and answer.code for answer in answers] == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REQUEST,
    ]
