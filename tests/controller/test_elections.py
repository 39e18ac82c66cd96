"""Preferred leaders, leaders at any price, and what changing min.insync.replicas does to who is eligible."""

from penstock.controller.configs import Change, Op
from penstock.controller.counters import ControllerCounters, survey
from penstock.controller.elections import (
    PREFERRED_TYPE,
    UNCLEAN_TYPE,
    decide_elect_leaders,
    decide_elect_where_leaderless,
    decide_rebalance_leaders,
)
from penstock.metadata.delta import MetadataDelta
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from tests.controller.cluster import Cluster
from tests.controller.test_configs import TOPIC, change
from tests.controller.test_heartbeats import three
from tests.controller.test_isr import ask

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
    cluster.beat(1)
    assert elect(cluster, PREFERRED_TYPE) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE], "not in sync yet"
    ask(cluster, (1, 2, 3), sender=2)
    epoch = cluster.partition().leader_epoch
    assert elect(cluster, PREFERRED_TYPE, A0) == [0]
    assert (cluster.partition().leader, cluster.partition().leader_epoch) == (1, epoch + 1)


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
    counters = ControllerCounters()
    delta = MetadataDelta(before)
    topic = cluster.image.topic("a")
    assert topic is not None
    for record in decide_elect_leaders(before, UNCLEAN_TYPE, [A0], cluster.settings).records:
        delta.replay(record)
    counters.follow(delta, delta.close(1, 1))
    assert (counters.elections, counters.unclean_elections) == (1, 1)


def test_a_setting_that_allows_it_is_enough() -> None:
    cluster = three()
    for broker in (1, 2, 3):
        cluster.fence(broker)
    cluster.beat(1)
    change(cluster, TOPIC, Change("unclean.leader.election.enable", Op.SET, "true"))
    assert cluster.run(lambda view: decide_elect_where_leaderless(view.image, cluster.settings)) == 1
    assert cluster.partition().leader == 1


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
