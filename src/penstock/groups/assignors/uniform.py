"""The `uniform` assignor: members get the same number of partitions, give or take one, and keep what they may keep.

Here the usual case, where all members subscribe to the same topics: two passes, linear in members and partitions,
and no partition moves unless balance demands it. Where subscriptions differ see `uniform_mixed`.
"""

from collections.abc import Iterator, Mapping

from penstock.groups.assignors.spec import NOTHING, Assignment, GroupSpec, MemberSpec
from penstock.groups.assignors.uniform_mixed import assign_mixed


def assign_uniform(spec: GroupSpec) -> dict[str, Assignment]:
    if not spec.members:
        return {}
    if spec.has_one_subscription:
        return _assign_same(spec)
    return assign_mixed(spec)


def _assign_same(spec: GroupSpec) -> dict[str, Assignment]:
    topics = sorted(spec.members[0].topics)
    counts = {topic: spec.partition_counts[topic] for topic in topics}
    quotas = _Quotas(sum(counts.values()), len(spec.members))
    kept = [_subscribed_part(member, counts) for member in spec.members]
    limits = quotas.limits([_size(target) for target in kept])
    kept = [_at_most(target, limit) for target, limit in zip(kept, limits, strict=True)]
    free = _unowned(counts, kept)
    result: dict[str, Assignment] = {}
    for member, target, limit in zip(spec.members, kept, limits, strict=True):
        filled = _filled(target, limit - _size(target), free)
        result[member.member_id] = member.target if filled == member.target else filled
    return result


class _Quotas:
    """How many partitions each member may have: all the same, and one more for as many as the remainder says."""

    def __init__(self, partitions: int, members: int) -> None:
        self._least, self._extras = divmod(partitions, members)

    def limits(self, sizes: list[int]) -> list[int]:
        """Those that have more than the least today get the extra ones first: it saves moving a partition."""
        extras = self._extras
        limits = []
        for size in sizes:
            takes_extra = size > self._least and extras > 0
            extras -= takes_extra
            limits.append(self._least + takes_extra)
        for index, limit in enumerate(limits):
            if not extras:
                break
            if limit == self._least:
                limits[index] += 1
                extras -= 1
        return limits


def _size(target: Assignment) -> int:
    return sum(map(len, target.values()))


def _subscribed_part(member: MemberSpec, counts: Mapping[bytes, int]) -> Assignment:
    target = member.target
    if all(topic in counts for topic in target):
        return target
    return {topic: partitions for topic, partitions in target.items() if topic in counts}


def _at_most(target: Assignment, limit: int) -> Assignment:
    if _size(target) <= limit:
        return target
    part = {}
    for topic in sorted(target):
        if limit > 0:
            part[topic] = frozenset(sorted(target[topic])[:limit])
            limit -= len(part[topic])
    return part


def _unowned(counts: Mapping[bytes, int], kept: list[Assignment]) -> Iterator[tuple[bytes, int]]:
    owned: dict[bytes, set[int]] = {topic: set() for topic in counts}
    for target in kept:
        for topic, partitions in target.items():
            owned[topic] |= partitions
    for topic, count in counts.items():
        for partition in range(count):
            if partition not in owned[topic]:
                yield topic, partition


def _filled(target: Assignment, room: int, free: Iterator[tuple[bytes, int]]) -> Assignment:
    """The target with the next `room` free partitions; there are exactly as many as all members have room for."""
    if room == 0:
        return target or NOTHING
    added: dict[bytes, set[int]] = {}
    for _ in range(room):
        topic, partition = next(free)
        added.setdefault(topic, set()).add(partition)
    return {**target, **{topic: target.get(topic, frozenset()) | new for topic, new in added.items()}}
