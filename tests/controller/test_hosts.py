"""Brokers of one host are one failure domain, with as many leaders of their own as any; racks are kept apart."""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.controller.balance import plan_balance, plan_drain, undrainable
from penstock.controller.internal_topics import decide_grow_internal_topics
from penstock.controller.partitions import MorePartitions
from penstock.controller.placement import failure_domains
from penstock.controller.topics import NewTopic, default_replication_factor
from tests.controller.cluster import Cluster, directory
from tests.controller.test_balance import carry_out, loads
from tests.controller.test_partitions import grow
from tests.controller.test_topics import create


def cluster_of(brokers_per_host: list[int]) -> Cluster:
    cluster = Cluster(0)
    for host, brokers in enumerate(brokers_per_host):
        join(cluster, f"machine{host}", brokers)
    return cluster


def join(cluster: Cluster, host: str | None, brokers: int, rack: str | None = None) -> None:
    first = len(cluster.image.brokers) + 1
    for broker in range(first, first + brokers):
        cluster.register(broker, directories=(directory(broker),), host=host, rack=rack)


def assert_apart(cluster: Cluster) -> None:
    """No two replicas of a partition on one host while another host has none."""
    brokers = cluster.image.brokers
    hosts = {broker.host for broker in brokers.values()}
    for topic in cluster.image.topics.values():
        for state in topic.partitions:
            held = {brokers[replica].host for replica in state.replicas}
            assert len(held) == min(len(state.replicas), len(hosts)), (topic.name, state.replicas)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 4))
def test_a_host_holds_one_replica_while_others_are_free(hosts: list[int], factor: int, joining: int) -> None:
    cluster = cluster_of(hosts)
    create(cluster, NewTopic("default", 12), NewTopic("chosen", 12, min(factor, sum(hosts))))
    assert_apart(cluster)
    assert len(cluster.partition("default").replicas) == min(3, len(hosts))
    _, leaders = loads(cluster)
    assert max(leaders.values()) - min(leaders[broker] for broker in cluster.image.brokers) <= 2, "of two topics"
    join(cluster, "machine-new", joining)
    balance(cluster)
    assert_apart(cluster)


def balance(cluster: Cluster) -> None:
    rounds = 0
    while moves := plan_balance(cluster.image, 50):
        carry_out(cluster, moves)
        rounds += 1
        assert rounds < 50, "it never comes to rest"


def racks_held(cluster: Cluster) -> list[int]:
    """Of each partition, over how many racks it is spread."""
    brokers = cluster.image.brokers
    states = [state for topic in cluster.image.topics.values() for state in topic.partitions]
    return [len({brokers[replica].rack for replica in state.replicas}) for state in states]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 4),
)
@example([3, 1, 1], 3, 1, 3, 1)
def test_a_rack_holds_one_replica_while_others_are_free(
    racks: list[int], factor: int, joined: int, joining: int, leaving: int
) -> None:
    """When topics are created, when brokers join an old rack or a new one, and when one is drained."""
    cluster = Cluster(0)
    for rack, brokers in enumerate(racks):
        join(cluster, None, brokers, f"rack{rack}")
    factor = min(factor, sum(racks))
    create(cluster, NewTopic("a", 12, factor))
    created = racks_held(cluster)
    assert set(created) == {min(factor, len(racks))}
    join(cluster, None, joining, f"rack{joined}")
    balance(cluster)
    balanced = racks_held(cluster)
    assert set(balanced) == {min(factor, len({broker.rack for broker in cluster.image.brokers.values()}))}
    leaving = min(leaving, sum(racks))
    while moves := plan_drain(cluster.image, [leaving], 50):
        carry_out(cluster, moves)
    assert not list(undrainable(cluster.image, [leaving]))
    assert loads(cluster)[0][leaving] == 0
    left = len({broker.rack for broker in cluster.image.brokers.values() if broker.id != leaving})
    drained = racks_held(cluster)
    assert all(now >= min(before, left) for now, before in zip(drained, balanced, strict=True)), "nor does a drain"


def test_a_new_rack_is_filled_with_what_belongs_apart_and_with_nothing_that_it_would_give_back() -> None:
    cluster = Cluster(0)
    join(cluster, None, 3, "old")
    create(cluster, NewTopic("alone", 12, 1), NewTopic("shared", 12, 3))
    join(cluster, None, 1, "new")
    moved = set()
    while moves := plan_balance(cluster.image, 5):
        assert len(moves) <= 5
        moved |= {move.topic for move in moves}
        carry_out(cluster, moves)
    assert all(4 in state.replicas for state in cluster.image.topics["shared"].partitions)
    assert loads(cluster)[0] == {1: 12, 2: 12, 3: 12, 4: 12}
    assert moved == {"shared"}


def test_one_host_keeps_one_copy_and_spreads_its_leaders() -> None:
    cluster = cluster_of([4])
    assert failure_domains(cluster.image) == 1
    assert default_replication_factor(cluster.image, cluster.settings) == 1
    create(cluster, NewTopic("a", 8), NewTopic("__consumer_offsets", 4, 1))
    assert Counter(state.leader for state in cluster.image.topics["a"].partitions) == {1: 2, 2: 2, 3: 2, 4: 2}
    grow_internal = lambda: cluster.run(  # noqa: E731
        lambda view: decide_grow_internal_topics(view.image, cluster.settings, 100)
    )
    assert grow_internal() == 0, "a second copy on the same host helps nobody"
    join(cluster, "another", 2)
    assert grow_internal() == 4
    carry_out(cluster, [])
    assert_apart(cluster)
    assert grow_internal() == 0, "two hosts, two copies"


def test_a_topic_that_grows_keeps_away_from_the_host_of_a_broker_that_is_down() -> None:
    cluster = cluster_of([2, 1])
    create(cluster, NewTopic("__consumer_offsets", assignments={0: (1, 3)}))
    join(cluster, "machine2", 1)
    cluster.fence(1)
    assert cluster.run(lambda view: decide_grow_internal_topics(view.image, cluster.settings, 100)) == 1
    assert cluster.partition("__consumer_offsets").replicas == (1, 3, 4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=2, max_size=5), st.sets(st.integers(1, 12), max_size=6), st.integers(2, 4)
)
@example([2, 2, 1], {5}, 3)
@example([2, 1, 1], {2, 4}, 3)
def test_a_host_that_is_away_holds_its_replica_all_the_same(hosts: list[int], away: set[int], factor: int) -> None:
    """It will be back; two replicas on one host stay."""
    cluster = cluster_of(hosts)
    away = {broker for broker in away if 1 < broker <= sum(hosts)}
    for broker in away:
        cluster.fence(broker)
    create(cluster, NewTopic("default", 12), NewTopic("chosen", 12, min(factor, sum(hosts))))
    assert_apart(cluster)
    assert len(cluster.partition("default").replicas) == min(3, len(hosts))
    assert grow(cluster, MorePartitions("chosen", 24)) == [None]
    assert_apart(cluster)
    for state in cluster.image.topics["chosen"].partitions:
        assert state.leader == state.replicas[0]
        assert set(state.isr) == set(state.replicas) - away


def test_brokers_that_say_nothing_of_their_host_are_told_apart() -> None:
    cluster = Cluster(2)
    assert failure_domains(cluster.image) == 2
    join(cluster, "machine", 3)
    assert failure_domains(cluster.image) == 3
    cluster.fence(1)
    assert failure_domains(cluster.image) == 2
