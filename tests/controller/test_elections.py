"""Preferred leaders, leaders at any price, and what changing min.insync.replicas does to who is eligible."""

from typing import Any

import pytest

from penstock.controller import elections
from penstock.controller.configs import Change, Op
from penstock.controller.counters import ControllerCounters, survey
from penstock.controller.elections import (
    PREFERRED_TYPE,
    UNCLEAN_TYPE,
    decide_elect_leaders,
    decide_elect_where_leaderless,
    decide_rebalance_leaders,
)
from penstock.controller.partition_change import PartitionChange
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments
from penstock.controller.topics import NewTopic
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import RECOVERED, RECOVERING
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from penstock.wire.struct import RecordMessage
from tests.controller.cluster import Cluster, directory
from tests.controller.test_configs import TOPIC, change
from tests.controller.test_heartbeats import three
from tests.controller.test_isr import ask
from tests.controller.test_topics import create

A0 = TopicPartition("a", 0)


def elect(cluster: Cluster, kind: int, *wanted: TopicPartition) -> list[int]:
    answer = cluster.run(lambda view: decide_elect_leaders(view.image, kind, wanted or None, cluster.settings))
    assert not isinstance(answer, Refusal)
    return [refusal.code if refusal else 0 for _, refusal in answer]


def test_preferred() -> None:
    cluster = three()
    assert elect(cluster, PREFERRED_TYPE, A0, TopicPartition("x", 0)) == [
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert elect(cluster, PREFERRED_TYPE) == [], "all in order"
    cluster.fence(1)
    assert elect(cluster, PREFERRED_TYPE, A0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    [(_, refused)] = cluster.run(
        lambda view: decide_elect_leaders(view.image, PREFERRED_TYPE, [A0], cluster.settings)
    )
    assert refused.message == "the preferred leader of a-0, broker 1, is down or not in sync", "another leads it"
    cluster.beat(1)
    assert elect(cluster, PREFERRED_TYPE) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE], "not in sync yet"
    ask(cluster, (1, 2, 3), sender=2)
    epoch = cluster.partition().leader_epoch
    assert elect(cluster, PREFERRED_TYPE, A0) == [0]
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, epoch + 1)


def test_all_are_elected_while_the_records_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a million partitions keep the loop; those in order cost no more than a look."""
    cluster = three()
    create(cluster, NewTopic("b", assignments=dict.fromkeys(range(5), (2, 1, 3))))
    cluster.fence(1)
    cluster.beat(1)
    ask(cluster, (1, 2, 3), sender=2)
    elect_one, tried = elections._elect, []

    def count(*given: Any) -> Any:
        tried.append(given[1])
        return elect_one(*given)

    monkeypatch.setattr(elections, "_elect", count)
    decision = decide_elect_leaders(cluster.image, PREFERRED_TYPE, None, cluster.settings)
    assert decision.answer == tried == []
    assert len(list(decision.records)) == len(tried) == 1
    assert decision.answer == [(A0, None)]


def test_the_clock_gives_leaderships_back() -> None:
    cluster = three()
    cluster.fence(1)
    cluster.beat(1)
    ask(cluster, (1, 2, 3), sender=2)
    assert survey(cluster.image).not_preferred == 1
    assert cluster.run(lambda view: decide_rebalance_leaders(view.image, cluster.settings, 0)) == 0
    assert cluster.run(lambda view: decide_rebalance_leaders(view.image, cluster.settings, 10)) == 1
    assert cluster.partition().leader == 1
    assert cluster.run(lambda view: decide_rebalance_leaders(view.image, cluster.settings, 10)) == 0


def test_unclean_by_hand() -> None:
    cluster = three()
    assert elect(cluster, UNCLEAN_TYPE, A0) == [ErrorCode.ELECTION_NOT_NEEDED]
    for broker in (1, 2, 3):
        cluster.fence(broker)
    assert elect(cluster, UNCLEAN_TYPE, A0) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    cluster.beat(1)
    assert cluster.partition().leader == -1
    before = cluster.image
    assert elect(cluster, UNCLEAN_TYPE, A0) == [0]
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (1, (1,), ())
    answer = cluster.run(lambda view: decide_elect_leaders(view.image, 5, None, cluster.settings))
    assert isinstance(answer, Refusal)
    assert counted(before, *decide_elect_leaders(before, UNCLEAN_TYPE, [A0], cluster.settings).records) == (1, 1)


def test_at_any_price_but_not_who_has_only_just_begun_to_copy() -> None:
    """While a partition moves, a replica that fell behind has more than the one that comes."""
    cluster = three()
    cluster.register(4, directories=(directory(40),))
    cluster.fence(3)
    move = Reassignment("a", 0, (4, 1, 2))
    cluster.run(lambda view: decide_alter_reassignments(view.image, [move], cluster.settings))
    for broker in (1, 2):
        cluster.fence(broker)
    cluster.beat(3)
    assert (cluster.partition().leader, cluster.partition().replicas) == (-1, (4, 1, 2, 3))
    assert elect(cluster, UNCLEAN_TYPE, A0) == [0]
    assert cluster.partition().leader == 3


def counted(before: MetadataImage, *records: RecordMessage) -> tuple[int, int]:
    """Elections and unclean ones, as a node counts them that learns of these records at once."""
    counters, delta = ControllerCounters(), MetadataDelta(before)
    for record in records:
        delta.replay(record)
    counters.follow(delta, delta.close(before.end_offset + len(records), 1))
    return counters.elections, counters.unclean_elections


def test_an_unclean_election_counts_also_when_it_is_over_before_it_is_seen() -> None:
    """A node that follows may learn in one fetch that there is an unclean leader and that it has recovered."""
    cluster = three()
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.beat(1)
    before = cluster.image
    assert elect(cluster, UNCLEAN_TYPE, A0) == [0]
    topic, partition = cluster.image.topic("a"), cluster.partition()
    assert topic is not None
    elected = PartitionChangeRecord(0, topic.id, isr=[1], leader=1, leader_recovery_state=RECOVERING)
    recovered = PartitionChangeRecord(0, topic.id, isr=[1, 2], leader_recovery_state=RECOVERED)
    assert counted(before, elected) == counted(before, elected, recovered) == (1, 1)
    assert counted(before, elected, recovered, PartitionChangeRecord(0, topic.id, leader=2)) == (1, 1)
    assert partition.leader_recovery_state == RECOVERING


def test_a_setting_that_allows_it_is_enough() -> None:
    cluster = three()
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.beat(1)
    change(cluster, TOPIC, Change("unclean.leader.election.enable", Op.SET, "true"))
    assert list(decide_elect_where_leaderless(cluster.image, cluster.settings).records)
    assert cluster.run(lambda view: decide_elect_where_leaderless(view.image, cluster.settings))
    assert cluster.partition().leader == 1
    assert not list(decide_elect_where_leaderless(cluster.image, cluster.settings).records)


def test_where_nobody_is_there_nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away may be the only one of a great many partitions: to look at them is to be quick."""
    cluster = three()
    create(cluster, NewTopic("b", assignments={0: (3,), 1: (3,)}), NewTopic("c", assignments={0: (3, 1)}))
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.beat(2)
    build, built = PartitionChange.build, []

    def note(change: PartitionChange, topic_id: bytes, number: int) -> PartitionChangeRecord | None:
        built.append(change.old.replicas)
        return build(change, topic_id, number)

    monkeypatch.setattr(PartitionChange, "build", note)
    assert not list(decide_elect_where_leaderless(cluster.image, cluster.settings).records)
    others = [TopicPartition("b", 0), TopicPartition("b", 1), TopicPartition("c", 0)]
    assert elect(cluster, UNCLEAN_TYPE, *others) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE] * 3
    assert cluster.partition().leader == 2
    assert built == []


def test_another_min_isr_forgets_who_was_eligible() -> None:
    cluster = three()
    ask(cluster, (1,))
    assert set(cluster.partition().eligible_leader_replicas) == {2, 3}
    epoch = cluster.partition().partition_epoch
    change(cluster, TOPIC, Change("min.insync.replicas", Op.SET, "1"))
    assert cluster.partition().eligible_leader_replicas == (), "C9"
    assert cluster.partition().partition_epoch == epoch + 1


def test_where_nobody_is_in_sync_the_eligible_stay() -> None:
    cluster = three()
    for broker in (1, 2, 3):
        cluster.fence(broker)
    change(cluster, TOPIC, Change("min.insync.replicas", Op.SET, "3"))
    assert set(cluster.partition().eligible_leader_replicas) == {2, 3}
