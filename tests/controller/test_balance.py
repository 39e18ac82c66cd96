"""Placement over hosts and racks, spreading to brokers that joined, draining, and internal topics that grow."""

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.controller import balance
from penstock.controller.balance import plan_balance, plan_drain, undrainable
from penstock.controller.better_places import BetterPlaces
from penstock.controller.brokers import decide_unregister_broker
from penstock.controller.elections import UNCLEAN_TYPE, decide_elect_leaders
from penstock.controller.internal_topics import decide_grow_internal_topics
from penstock.controller.placement import Place, plan_spread
from penstock.controller.reassignment import Reassignment, decide_alter_reassignments, ongoing_reassignments
from penstock.controller.topics import NewTopic
from tests.controller.balancing import decide_balance
from tests.controller.cluster import Cluster, directory
from tests.controller.test_topics import create


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8), st.data())
def test_replicas_share_no_host_where_there_are_enough(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    """`shape`: per host, how many brokers and which rack."""
    groups = [[Place(0, f"h{n}", f"r{rack}")] * brokers for n, (brokers, rack) in enumerate(shape)]
    places = [place._replace(broker_id=i) for i, place in enumerate(p for group in groups for p in group)]
    factor = data.draw(st.integers(1, len(places)))
    by_id = {place.broker_id: place for place in places}
    racks = {place.rack for place in places}
    planned = list(plan_spread(places, 0, 40, factor, data.draw(st.integers(0, 9))))
    for replicas in planned:
        assert len(set(replicas)) == factor
        if factor <= len(shape):
            assert len({by_id[replica].host for replica in replicas}) == factor, "D4"
        if factor <= len(shape) and factor <= len(racks):
            assert len({by_id[replica].rack for replica in replicas}) == factor
    leaders = Counter(replicas[0] for replicas in planned)
    assert max(leaders.values()) - min(leaders.get(place.broker_id, 0) for place in places) <= 1


def test_brokers_of_one_machine_share_a_host() -> None:
    cluster = Cluster(1)
    for broker in range(2, 7):
        cluster.register(broker, directories=(directory(broker * 10),), host=f"machine{broker // 2}")
    create(cluster, NewTopic("a", 30, 3))
    topic = cluster.image.topic("a")
    assert topic is not None
    for partition in topic.partitions:
        assert len({cluster.image.brokers[replica].machine for replica in partition.replicas}) == 3


def carry_out(cluster: Cluster, moves: list, but_for: Collection[str] = ()) -> None:  # type: ignore[type-arg]
    """Reassigns, and lets every new replica come into sync at once, but for those of topics that cannot."""
    cluster.run(lambda view: decide_alter_reassignments(view.image, moves, cluster.settings))
    from penstock.controller.isr import Member, WantedIsr, decide_alter_partition

    for ongoing in [each for each in ongoing_reassignments(cluster.image) if each.topic not in but_for]:
        topic = cluster.image.topic(ongoing.topic)
        assert topic is not None
        state = ongoing.state
        brokers = cluster.image.brokers
        members = tuple(Member(r, brokers[r].epoch) for r in state.replicas if r in brokers)
        want = WantedIsr(topic.id, ongoing.partition, state.leader_epoch, state.partition_epoch, members)
        sender = cluster.image.brokers[state.leader]
        cluster.run(
            lambda view, sender=sender, want=want: decide_alter_partition(
                view, sender.id, sender.epoch, [want], cluster.settings
            )
        )
    assert {ongoing.topic for ongoing in ongoing_reassignments(cluster.image)} <= set(but_for)


def loads(cluster: Cluster) -> tuple[Counter[int], Counter[int]]:
    states = [state for topic in cluster.image.topics.values() for state in topic.partitions]
    replicas = Counter(replica for state in states for replica in state.replicas)
    return replicas, Counter(state.replicas[0] for state in states)


def remove(cluster: Cluster, broker: int) -> None:
    """Without a drain: partitions go on naming it."""
    cluster.fence(broker)
    cluster.run(lambda view: decide_unregister_broker(view, broker, cluster.settings))


def test_a_broker_that_joined_gets_its_share() -> None:
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 12, 3), NewTopic("b", 8, 2))
    cluster.register(4, directories=(directory(40),))
    rounds = 0
    while moves := plan_balance(cluster.image, 5):
        assert len(moves) <= 5
        carry_out(cluster, moves)
        rounds += 1
        assert rounds < 20
    replicas, leaders = loads(cluster)
    assert max(replicas.values()) - min(replicas.values()) <= 1
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert rounds > 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 3), st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 3))
def test_balance_comes_to_rest(before: int, joining: int, topics: list[int], factor: int) -> None:
    cluster = Cluster(before)
    create(cluster, *[NewTopic(f"t{n}", count, min(factor, before)) for n, count in enumerate(topics)])
    for broker in range(before + 1, before + 1 + joining):
        cluster.register(broker, directories=(directory(broker * 10),))
    for _ in range(60):
        moves = plan_balance(cluster.image, 10)
        if not moves:
            break
        carry_out(cluster, moves)
    else:
        raise AssertionError("it never comes to rest")
    replicas, _ = loads(cluster)
    counts = [replicas[broker] for broker in cluster.image.brokers]
    assert max(counts) - min(counts) <= 2


def test_draining() -> None:
    cluster = Cluster(4)
    create(cluster, NewTopic("a", 10, 3))
    while moves := plan_drain(cluster.image, [2], 4):
        carry_out(cluster, moves)
    replicas, _ = loads(cluster)
    assert replicas[2] == 0
    assert not list(undrainable(cluster.image, [2]))
    assert len(list(undrainable(cluster.image, [1, 3]))) == 10, "three replicas need three brokers"


def test_partitions_of_a_broker_that_is_down_are_left_alone() -> None:
    """Their move would not end before it is back, and keep it from being drained meanwhile."""
    cluster = Cluster(4)
    create(cluster, NewTopic("a", 12, 3))
    cluster.register(5, directories=(directory(50),))
    cluster.fence(4)
    while moves := plan_balance(cluster.image, 5):
        for move in moves:
            assert 4 not in cluster.partition("a", move.partition).replicas
        carry_out(cluster, moves)
    assert loads(cluster)[0][5] > 0


def test_partitions_of_a_broker_that_is_about_to_stop_are_left_alone() -> None:
    """It is back soon: others would be preferred as leaders of what it led, and their moves would wait for it."""
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 6, 3))
    cluster.beat(2, want_shut_down=True)
    assert cluster.image.brokers[2].in_controlled_shutdown
    assert plan_balance(cluster.image, 20) == []
    cluster.register(4, directories=(directory(40),))
    create(cluster, NewTopic("b", assignments=dict.fromkeys(range(2), (1,))))
    assert {move.topic for move in plan_balance(cluster.image, 20)} == {"b"}


def test_what_a_removed_broker_held_goes_elsewhere() -> None:
    cluster = Cluster(4)
    create(cluster, NewTopic("a", 12, 3))
    remove(cluster, 4)
    assert loads(cluster)[0][4] == 9
    while moves := plan_balance(cluster.image, 5):
        carry_out(cluster, moves)
    assert loads(cluster)[0] == {1: 12, 2: 12, 3: 12}


def test_what_a_removed_broker_held_stays_where_there_is_no_other() -> None:
    """Nothing is begun that is refused, nothing is said to be on its way, and it goes on when there is a broker."""
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 6, 3), NewTopic("b", assignments=dict.fromkeys(range(4), (1, 2))))
    remove(cluster, 3)
    moves = plan_balance(cluster.image, 20)
    assert {move.topic for move in moves} == {"b"}, "where leaderships are uneven"
    assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 20)) == len(moves)
    assert plan_balance(cluster.image, 20) == []
    assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 20)) == 0
    assert len(list(undrainable(cluster.image, [3]))) == 6
    cluster.register(4, directories=(directory(40),))
    while moves := plan_balance(cluster.image, 5):
        carry_out(cluster, moves)
    assert loads(cluster)[0][3] == 0


def test_a_removed_broker_goes_before_a_drained_one() -> None:
    cluster = Cluster(5)
    create(cluster, NewTopic("a", assignments={0: (4, 3, 1)}))
    remove(cluster, 3)
    remove(cluster, 5)
    [move] = plan_balance(cluster.image, 5, leaving=[4])
    assert set(move.replicas or ()) == {1, 2, 4}


def test_what_is_on_its_way_to_a_drained_broker_is_sent_elsewhere() -> None:
    cluster = Cluster(5)
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    move = Reassignment("a", 0, (1, 2, 4))
    cluster.run(lambda view: decide_alter_reassignments(view.image, [move], cluster.settings))
    assert cluster.partition().adding_replicas == (4,)
    carry_out(cluster, plan_drain(cluster.image, [4], 5))
    assert 4 not in cluster.partition().replicas
    assert len(cluster.partition().replicas) == 3


def begin(cluster: Cluster, *moves: Reassignment) -> None:
    cluster.run(lambda view: decide_alter_reassignments(view.image, moves, cluster.settings))


def test_what_is_on_its_way_to_a_removed_broker_is_sent_elsewhere() -> None:
    """It would never arrive, and nothing else would be moved for waiting."""
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 8, 3))
    cluster.register(4, directories=(directory(40),))
    assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 4)) == 4
    remove(cluster, 4)
    cluster.register(5, directories=(directory(50),))
    rounds = 0
    while cluster.run(lambda view: decide_balance(view.image, cluster.settings, 4)):
        assert len(list(ongoing_reassignments(cluster.image))) <= 4
        carry_out(cluster, [])
        rounds += 1
        assert rounds < 10
    assert loads(cluster)[0] == {1: 6, 2: 6, 3: 6, 5: 6}


def test_what_cannot_be_sent_elsewhere_holds_nothing_up() -> None:
    cluster = Cluster(4)
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}), NewTopic("b", assignments={0: (1,), 1: (1,), 2: (1,)}))
    begin(cluster, Reassignment("a", 0, (1, 2, 4)))
    remove(cluster, 4)
    cluster.fence(3)
    assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 1)) == 1
    assert cluster.partition("a").adding_replicas == (4,)
    assert cluster.partition("b").adding_replicas == (2,)


def test_what_only_a_removed_broker_had_holds_nothing_up() -> None:
    """It has no leader, and its move ends when somebody elects one that has nothing."""
    cluster = Cluster(3)
    create(cluster, NewTopic("a", assignments={0: (3,)}), NewTopic("b", assignments=dict.fromkeys(range(4), (1,))))
    remove(cluster, 3)
    rounds = 0
    while cluster.run(lambda view: decide_balance(view.image, cluster.settings, 1)):
        carry_out(cluster, [], but_for={"a"})
        rounds += 1
        assert rounds < 10
    assert cluster.partition("a").adding_replicas == (2,)
    assert loads(cluster)[0] == {1: 3, 2: 2, 3: 1}
    cluster.run(lambda view: decide_elect_leaders(view.image, UNCLEAN_TYPE, None, cluster.settings))
    assert cluster.partition("a").leader == 2
    carry_out(cluster, [])
    assert cluster.partition("a").replicas == (2,)


def test_a_drain_sends_elsewhere_what_leaves_for_a_removed_broker() -> None:
    cluster = Cluster(5)
    create(cluster, NewTopic("a", assignments={0: (1, 2, 3)}))
    begin(cluster, Reassignment("a", 0, (1, 2, 4)))
    remove(cluster, 4)
    carry_out(cluster, plan_drain(cluster.image, [3], 5))
    assert set(cluster.partition().replicas) == {1, 2, 5}


def test_the_clock_moves_a_bounded_number() -> None:
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 12, 3))
    cluster.register(4, directories=(directory(40),))
    for _ in range(2):
        assert cluster.run(lambda view: decide_balance(view.image, cluster.settings, 4)) == 4
        assert len(list(ongoing_reassignments(cluster.image))) <= 4


def test_a_plan_pauses_and_weighs_only_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million partitions would keep whoever plans for seconds, and most of them have the replicas of others."""
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 600, 3), *[NewTopic(f"b{number}", 1, 3) for number in range(12)])
    weighed: Counter[tuple[int, ...]] = Counter()
    evener = BetterPlaces.evener

    def count(places: BetterPlaces, replicas: tuple[int, ...]) -> tuple[int, ...]:
        weighed[replicas] += 1
        return evener(places, replicas)

    monkeypatch.setattr(BetterPlaces, "evener", count)
    monkeypatch.setattr(balance, "_LOOKS_PER_STEP", 100)
    while plan_balance(cluster.image, 20):
        carry_out(cluster, plan_balance(cluster.image, 20))
    weighed.clear()
    pauses = len(list(balance.balance_in_steps(cluster.image, 20)))
    assert pauses >= 18, "to count, and to look twice"
    assert weighed.total() == len(weighed) <= 6


def test_names_are_sorted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "_LOOKS_PER_STEP", 3)
    names = [f"t{number * 7 % 11}" for number in range(11)]
    for some in ([], names[:1], names):
        assert balance.finished(balance._in_order(some)) == sorted(some)


def test_what_has_changed_since_it_was_planned_is_not_begun() -> None:
    cluster = Cluster(3)
    create(cluster, NewTopic("a", 4, 3))
    cluster.register(4, directories=(directory(40),))
    plan = balance.finished(balance.balance_in_steps(cluster.image, 2))
    assert [(move.topic, move.partition) for move in plan.moves] == [("a", 0), ("a", 1)]
    replicas = cluster.partition("a", 0).replicas
    begin(cluster, Reassignment("a", 0, replicas[::-1]))
    assert cluster.run(lambda view: balance.decide_begin(view.image, plan, cluster.settings)) == 1
    assert not cluster.partition("a", 0).adding_replicas
    assert cluster.partition("a", 1).adding_replicas == (4,)
    plan = balance.finished(balance.balance_in_steps(cluster.image, 2))
    assert len(plan.moves) == 1
    cluster.fence(4)
    end = cluster.image.end_offset
    assert cluster.run(lambda view: balance.decide_begin(view.image, plan, cluster.settings)) == 1, "moved before"
    assert cluster.image.end_offset == end


def test_internal_topics_grow() -> None:
    cluster = Cluster(1)
    create(
        cluster, NewTopic("__consumer_offsets", 5, 1), NewTopic("__transaction_state", 2, 1), NewTopic("mine", 3, 1)
    )
    grow = lambda: cluster.run(  # noqa: E731
        lambda view: decide_grow_internal_topics(view.image, cluster.settings, 4)
    )
    assert grow() == 0
    for broker in (2, 3):
        cluster.register(broker, directories=(directory(broker * 10),))
    assert grow() == 4
    carry_out(cluster, [])
    assert grow() == 3
    assert "min.insync.replicas" not in cluster.image.topic_config("__transaction_state")
    carry_out(cluster, [])
    assert grow() == 0
    assert len(cluster.partition("__consumer_offsets", 4).replicas) == 3
    assert len(cluster.partition("mine").replicas) == 1
    assert cluster.image.topic_config("__consumer_offsets")["min.insync.replicas"] == "2"
    end = cluster.image.end_offset
    assert grow() == 0
    assert cluster.image.end_offset == end


def test_internal_topics_grow_past_a_broker_that_was_removed() -> None:
    """What it held is replaced, and keeps none of the others from growing."""
    cluster = Cluster(2)
    alone = NewTopic("__transaction_state", assignments={0: (1,), 1: (1,)})
    create(cluster, NewTopic("__consumer_offsets", 5, 2), alone)
    remove(cluster, 2)
    for broker in (3, 4):
        cluster.register(broker, directories=(directory(broker * 10),))
    rounds = 0
    while cluster.run(lambda view: decide_grow_internal_topics(view.image, cluster.settings, 2)):
        assert list(ongoing_reassignments(cluster.image)), "it answers what it has begun"
        carry_out(cluster, [])
        rounds += 1
        assert rounds < 10
    for topic in ("__consumer_offsets", "__transaction_state"):
        for state in cluster.image.topics[topic].partitions:
            assert set(state.replicas) == {1, 3, 4}


def test_three_replicas_ask_for_two() -> None:
    cluster = Cluster(3)
    create(cluster, NewTopic("a"), NewTopic("b", configs={"min.insync.replicas": "3"}), NewTopic("c", 1, 2))
    assert cluster.image.topic_config("a") == {"min.insync.replicas": "2"}
    assert cluster.image.topic_config("b") == {"min.insync.replicas": "3"}
    assert cluster.image.topic_config("c") == {}
    cluster = Cluster(3, min_insync_replicas="1")
    create(cluster, NewTopic("a"))
    assert cluster.image.topic_config("a") == {}
