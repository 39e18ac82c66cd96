"""AlterPartition: what is taken, and exactly what is answered otherwise (C3)."""

import pytest

from penstock.controller.isr import Member, WantedIsr, decide_alter_partition
from penstock.metadata.partition import RECOVERED, RECOVERING, PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from tests.controller.cluster import Cluster, directory
from tests.controller.test_heartbeats import three


def ask(
    cluster: Cluster, isr: tuple[int, ...], sender: int = 1, epochs: dict[int, int] | None = None, **other: object
) -> PartitionImage | ErrorCode:
    """AlterPartition of a-0 by its leader, right in everything but what is named."""
    topic = cluster.image.topic("a")
    assert topic is not None
    state = topic.partitions[0]
    known = {broker.id: broker.epoch for broker in cluster.image.brokers.values()} | (epochs or {})
    members = tuple(Member(broker, known.get(broker, 0)) for broker in isr)
    want = WantedIsr(topic.id, 0, state.leader_epoch, state.partition_epoch, members)._replace(**other)  # type: ignore[arg-type]
    epoch = cluster.image.brokers[sender].epoch
    answer = cluster.run(lambda view: decide_alter_partition(view, sender, epoch, [want], cluster.settings))
    assert not isinstance(answer, Refusal)
    return answer[0]


def test_shrink_and_expand() -> None:
    cluster = three()
    answer = ask(cluster, (1, 2))
    assert isinstance(answer, PartitionImage)
    assert answer == cluster.partition()
    assert (answer.isr, answer.partition_epoch, answer.leader_epoch) == ((1, 2), 1, 0)
    ask(cluster, (1,))
    assert cluster.partition().eligible_leader_replicas == (2,), "C7: below min ISR"
    ask(cluster, (1, 3))
    assert (cluster.partition().isr, cluster.partition().eligible_leader_replicas) == ((1, 3), ())


def test_the_same_set_changes_nothing() -> None:
    cluster = three()
    end = cluster.image.end_offset
    assert ask(cluster, (3, 1, 2)) == cluster.partition()
    assert cluster.image.end_offset == end


@pytest.mark.parametrize(
    ("isr", "sender", "other", "error"),
    [
        ((1, 2), 1, {"leader_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), 1, {"partition_epoch": 6}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), 1, {"leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1, 2), 1, {"leader_epoch": 0, "partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1, 2), 2, {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), 1, {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 4), 1, {}, ErrorCode.INVALID_REQUEST),
        ((2, 3), 1, {}, ErrorCode.INVALID_REQUEST),
        ((1, 1), 1, {}, ErrorCode.INVALID_REQUEST),
        ((), 1, {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), 1, {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((1,), 1, {"leader_recovery_state": RECOVERING}, ErrorCode.INVALID_REQUEST),
        ((1,), 1, {"leader_recovery_state": 7}, ErrorCode.INVALID_REQUEST),
        ((1, 2), 1, {"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ((1, 2), 1, {"partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_refusals(isr: tuple[int, ...], sender: int, other: dict[str, object], error: ErrorCode) -> None:
    cluster = three()
    cluster.fence(1)
    cluster.beat(1)
    ask(cluster, (2, 3, 1), sender=2)
    cluster.fence(2)
    cluster.beat(2)
    ask(cluster, (3, 1, 2), sender=cluster.partition().leader)
    leader = cluster.partition().leader
    swap = {1: leader, leader: 1}
    end = cluster.image.end_offset
    members = tuple(swap.get(broker, broker) for broker in isr)
    assert ask(cluster, members, swap.get(sender, sender), **other) == error
    assert cluster.image.end_offset == end


@pytest.mark.parametrize("how", ["fenced", "shutting down", "other incarnation", "gone", "bad directory"])
def test_who_may_not_join(how: str) -> None:
    cluster = three()
    ask(cluster, (1, 2))
    if how == "fenced":
        cluster.fence(3)
    elif how == "shutting down":
        cluster.beat(3, want_shut_down=True)
    elif how == "bad directory":
        cluster.image = cluster.image._replace(
            brokers={**cluster.image.brokers, 3: cluster.image.brokers[3]._replace(directories=(directory(77),))}
        )
    elif how == "gone":
        brokers = {broker: image for broker, image in cluster.image.brokers.items() if broker != 3}
        cluster.image = cluster.image._replace(brokers=brokers)
    late = {3: 1} if how == "other incarnation" else {}
    before = cluster.partition()
    assert ask(cluster, (1, 2, 3), epochs=late) == ErrorCode.INELIGIBLE_REPLICA
    assert cluster.partition() == before._replace(partition_epoch=before.partition_epoch + 1)


def test_a_late_copy_of_a_refused_request_is_refused() -> None:
    cluster = three()
    ask(cluster, (1, 2))
    epoch = cluster.partition().partition_epoch
    cluster.fence(3)
    assert ask(cluster, (1, 2, 3)) == ErrorCode.INELIGIBLE_REPLICA
    cluster.beat(3)
    assert ask(cluster, (1, 2, 3), partition_epoch=epoch) == ErrorCode.INVALID_UPDATE_VERSION
    assert isinstance(ask(cluster, (1, 2, 3)), PartitionImage)


def test_an_old_incarnation_is_not_heard() -> None:
    cluster = three()
    answer = cluster.run(lambda view: decide_alter_partition(view, 1, 0, [], cluster.settings))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.STALE_BROKER_EPOCH
    answer = cluster.run(lambda view: decide_alter_partition(view, 9, 0, [], cluster.settings))
    assert isinstance(answer, Refusal)
    assert answer.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_leader_that_recovered_says_so() -> None:
    cluster = three(unclean_leader_election_enable="true")
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.beat(1)
    assert cluster.partition().leader_recovery_state == RECOVERING
    answer = ask(cluster, (1,), leader_recovery_state=RECOVERED)
    assert isinstance(answer, PartitionImage)
    assert answer.leader_recovery_state == RECOVERED
    assert cluster.partition() == answer
    assert ask(cluster, (1,), leader_recovery_state=RECOVERING) == ErrorCode.INVALID_REQUEST
