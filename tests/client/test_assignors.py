"""Assignors as properties: every partition exactly once, balanced, and sticky keeps what it can."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.assignors import assignors_by_name
from penstock.client.consumer.protocol import Member
from penstock.client.consumer.sticky import assign_sticky
from penstock.client.errors import UsageError
from penstock.model.ids import TopicPartition

TOPICS = ("a", "b", "c", "d")
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9), min_size=1)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[Member], dict[str, int]]:
    """Members with subscriptions and, sometimes contradicting, claims of what they own."""
    partition_counts = draw(counts)
    members = []
    for index in range(draw(st.integers(1, 6))):
        topics = draw(st.frozensets(st.sampled_from(TOPICS), min_size=1))
        claims = [TopicPartition(t, p) for t in TOPICS for p in range(10)]
        owned = draw(st.lists(st.sampled_from(claims), max_size=8, unique=True))
        generation = draw(st.integers(-1, 3))
        members.append(Member(f"m{index}", topics, tuple(owned), generation))
    return members, partition_counts


def readable(members: list[Member], partition_counts: dict[str, int]) -> set[TopicPartition]:
    return {
        TopicPartition(topic, p)
        for topic, count in partition_counts.items()
        if any(topic in m.topics for m in members)
        for p in range(count)
    }


@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
@settings(max_examples=80, deadline=None)
@given(group=groups())
def test_every_partition_goes_to_exactly_one_reader(name: str, group: tuple[list[Member], dict[str, int]]) -> None:
    members, partition_counts = group
    assign = assign_sticky if name == "sticky" else assignors_by_name([name])[0].assign
    assignment = assign(members, partition_counts)
    given_out = Counter(p for partitions in assignment.values() for p in partitions)
    assert given_out == Counter(readable(members, partition_counts))
    by_id = {m.member_id: m for m in members}
    assert set(assignment) == set(by_id)
    for member_id, partitions in assignment.items():
        assert all(p.topic in by_id[member_id].topics for p in partitions)


@settings(max_examples=80, deadline=None)
@given(group=groups())
def test_sticky_is_balanced(group: tuple[list[Member], dict[str, int]]) -> None:
    members, partition_counts = group
    assignment = assign_sticky(members, partition_counts)
    for giver, partitions in assignment.items():
        for taker in members:
            if len(assignment[taker.member_id]) + 2 <= len(assignment[giver]):
                assert not any(p.topic in taker.topics for p in partitions)


@settings(max_examples=60, deadline=None)
@given(partition_counts=counts, size=st.integers(1, 6))
def test_round_robin_and_sticky_share_evenly_when_all_read_all(partition_counts: dict[str, int], size: int) -> None:
    members = [Member(f"m{i}", frozenset(TOPICS)) for i in range(size)]
    for name in ("roundrobin", "cooperative-sticky"):
        (assignor,) = assignors_by_name([name])
        loads = [len(p) for p in assignor.assign(members, partition_counts).values()]
        assert max(loads) - min(loads) <= 1


@settings(max_examples=60, deadline=None)
@given(partition_counts=counts, size=st.integers(2, 6), leaver=st.integers(0, 5))
def test_sticky_keeps_what_it_has(partition_counts: dict[str, int], size: int, leaver: int) -> None:
    """Nothing moves when nothing changed; when one leaves, the others keep theirs."""
    members = [Member(f"m{i}", frozenset(TOPICS)) for i in range(size)]
    first = assign_sticky(members, partition_counts)
    again = [m._replace(owned=tuple(first[m.member_id]), generation=1) for m in members]
    assert assign_sticky(again, partition_counts) == first
    left = [m for m in again if m.member_id != f"m{leaver % size}"]
    after = assign_sticky(left, partition_counts)
    for member in left:
        assert set(first[member.member_id]) <= set(after[member.member_id])


@settings(max_examples=60, deadline=None)
@given(partition_counts=counts, size=st.integers(1, 5))
def test_cooperative_hands_over_in_two_steps(partition_counts: dict[str, int], size: int) -> None:
    """A joiner gets only what is free; after the owners gave up, the second round completes the balance."""
    (assignor,) = assignors_by_name(["cooperative-sticky"])
    members = [Member(f"m{i}", frozenset(TOPICS)) for i in range(size)]
    first = assignor.assign(members, partition_counts)
    grown = [m._replace(owned=tuple(first[m.member_id]), generation=1) for m in members]
    grown.append(Member("new", frozenset(TOPICS)))
    step = assignor.assign(grown, partition_counts)
    assert not set(step["new"]) & {p for partitions in first.values() for p in partitions}
    for member in members:
        assert set(step[member.member_id]) <= set(first[member.member_id])
    second = [m._replace(owned=tuple(step[m.member_id]), generation=2) for m in grown]
    final = assignor.assign(second, partition_counts)
    loads = [len(p) for p in final.values()]
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == sum(partition_counts.values())
    for member in grown:
        assert set(step[member.member_id]) <= set(final[member.member_id])


def test_the_later_generation_wins_a_contested_partition() -> None:
    t0, t1 = TopicPartition("a", 0), TopicPartition("a", 1)
    old = Member("old", frozenset("a"), (t0, t1), generation=3)
    new = Member("new", frozenset("a"), (t0,), generation=4)
    assert assign_sticky([old, new], {"a": 2}) == {"old": [t1], "new": [t0]}


def test_range_gives_the_first_members_the_extra_partitions() -> None:
    """The example of Java's RangeAssignor."""
    (assignor,) = assignors_by_name(["range"])
    members = [Member("C0", frozenset({"t0", "t1"})), Member("C1", frozenset({"t0", "t1"}))]
    assignment = assignor.assign(members, {"t0": 3, "t1": 3})
    assert [str(p) for p in assignment["C0"]] == ["t0-0", "t0-1", "t1-0", "t1-1"]
    assert [str(p) for p in assignment["C1"]] == ["t0-2", "t1-2"]


def test_static_members_are_ordered_by_instance() -> None:
    (assignor,) = assignors_by_name(["range"])
    members = [
        Member("z", frozenset("t"), instance_id="1"),
        Member("a", frozenset("t"), instance_id="2"),
        Member("b", frozenset("t")),
    ]
    assignment = assignor.assign(members, {"t": 4})
    assert [len(assignment[m]) for m in ("z", "a", "b")] == [2, 1, 1]
    assert assignment["z"][0].partition == 0


def test_eager_and_cooperative_do_not_mix() -> None:
    with pytest.raises(UsageError, match="cannot be offered together"):
        assignors_by_name(["range", "cooperative-sticky"])
    with pytest.raises(UsageError, match="not an assignor"):
        assignors_by_name(["ranged"])
