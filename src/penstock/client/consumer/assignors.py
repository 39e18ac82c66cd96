"""Who reads what: the assignors that a group's leader runs. Pure functions of members and partition counts.

The results of `range` and `roundrobin` are those of Kafka's Java client for the same input, so it does not matter
which library's member happens to lead.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.client.consumer.protocol import Member
from penstock.client.consumer.sticky import assign_sticky, withhold_moving
from penstock.client.errors import UsageError
from penstock.model.ids import TopicPartition

Assignment = dict[str, list[TopicPartition]]


class Assignor(Protocol):
    """`cooperative` assignors let members keep reading what they keep while the group rebalances. (KIP-429)"""

    name: str
    cooperative: bool

    def assign(self, members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment: ...


class RangeAssignor:
    """Per topic, a contiguous range for each member: same-numbered partitions of topics go to the same member."""

    name = "range"
    cooperative = False

    def assign(self, members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
        assignment: Assignment = {member.member_id: [] for member in members}
        for topic in sorted(partition_counts):
            readers = sorted((m for m in members if topic in m.topics), key=lambda m: m.order)
            if not readers:
                continue
            share, extra = divmod(partition_counts[topic], len(readers))
            start = 0
            for index, member in enumerate(readers):
                end = start + share + (index < extra)
                assignment[member.member_id] += [TopicPartition(topic, p) for p in range(start, end)]
                start = end
        return assignment


class RoundRobinAssignor:
    """All partitions of all topics dealt out in turn; a member that does not read the topic is skipped."""

    name = "roundrobin"
    cooperative = False

    def assign(self, members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
        assignment: Assignment = {member.member_id: [] for member in members}
        circle = sorted(members, key=lambda m: m.order)
        subscribed = frozenset[str]().union(*(member.topics for member in members))
        turn = 0
        for topic in sorted(subscribed & partition_counts.keys()):
            for partition in range(partition_counts[topic]):
                while topic not in circle[turn % len(circle)].topics:
                    turn += 1
                assignment[circle[turn % len(circle)].member_id].append(TopicPartition(topic, partition))
                turn += 1
        return assignment


class CooperativeStickyAssignor:
    """Balanced, and every member keeps as much of what it has as balance allows.

    In two steps: a partition that moves is first given up, and handed out in the next rebalance.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
        return withhold_moving(members, assign_sticky(members, partition_counts))


_BY_NAME: dict[str, type[Assignor]] = {
    "range": RangeAssignor,
    "roundrobin": RoundRobinAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}


def assignors_by_name(names: Sequence[str]) -> list[Assignor]:
    """In order of preference. Eager and cooperative ones cannot be mixed in one member."""
    unknown = [name for name in names if name not in _BY_NAME]
    if unknown or not names:
        what = f"{unknown[0]!r} is not an assignor" if unknown else "no assignor given"
        raise UsageError(what, hint=f"one of {', '.join(_BY_NAME)}")
    found = [_BY_NAME[name]() for name in names]
    if len({assignor.cooperative for assignor in found}) > 1:
        raise UsageError(
            "cooperative-sticky cannot be offered together with eager assignors",
            hint="use cooperative-sticky alone, or any of range and roundrobin",
        )
    return found
