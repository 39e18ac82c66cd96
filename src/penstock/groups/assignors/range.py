"""The `range` assignor: each topic is cut into one range per subscriber, in the same order for all topics.

So members get the same partition numbers of topics with the same number of partitions, as joins need it. Not sticky,
except that static members keep their place: they are ordered by instance id, before the dynamic ones.
"""

from penstock.groups.assignors.spec import NOTHING, Assignment, GroupSpec, MemberSpec


def assign_range(spec: GroupSpec) -> dict[str, Assignment]:
    if not spec.members:
        return {}
    members = sorted(spec.members, key=_order)
    targets: dict[str, dict[bytes, frozenset[int]]] = {member.member_id: {} for member in members}
    for topic, subscribers in _subscribers(spec, members).items():
        _cut(topic, spec.partition_counts[topic], subscribers, targets)
    return {member.member_id: _same_or_new(member.target, targets[member.member_id]) for member in members}


def _order(member: MemberSpec) -> tuple[bool, str]:
    return (member.instance_id is None, member.instance_id or member.member_id)


def _subscribers(spec: GroupSpec, members: list[MemberSpec]) -> dict[bytes, list[MemberSpec]]:
    if spec.has_one_subscription:
        return dict.fromkeys(sorted(members[0].topics), members)
    subscribers: dict[bytes, list[MemberSpec]] = {topic: [] for topic in sorted(spec.partition_counts)}
    for member in members:
        for topic in member.topics:
            subscribers[topic].append(member)
    return subscribers


def _cut(
    topic: bytes, partitions: int, subscribers: list[MemberSpec], targets: dict[str, dict[bytes, frozenset[int]]]
) -> None:
    """The first ranges are longer by one where it does not divide evenly; the last members may get nothing."""
    if not subscribers:
        return
    length, longer = divmod(partitions, len(subscribers))
    start = 0
    for index, member in enumerate(subscribers):
        end = start + length + (index < longer)
        if start == end:
            break
        targets[member.member_id][topic] = frozenset(range(start, end))
        start = end


def _same_or_new(old: Assignment, new: Assignment) -> Assignment:
    return old if old == new else new or NOTHING
