"""The sticky assignment: as even as possible, moving as little as possible.

1. Everyone keeps what it owns, if it still reads the topic; of two owners the one of the later generation.
2. Unowned partitions go to the least loaded member that reads their topic.
3. Partitions move from the most to the least loaded member that may take them, while that evens things out.

The result is balanced: no single partition could move from a member to one that has at least two fewer.
"""

from collections.abc import Mapping, Sequence

from penstock.client.consumer.protocol import Member
from penstock.model.ids import TopicPartition

Loads = dict[str, dict[TopicPartition, None]]


def assign_sticky(members: Sequence[Member], partition_counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    ordered = sorted(members, key=lambda m: m.order)
    loads: Loads = {member.member_id: {} for member in ordered}
    readers = {
        topic: names for topic in partition_counts if (names := [m.member_id for m in ordered if topic in m.topics])
    }
    owners = _current_owners(ordered, partition_counts)
    for partition, member_id in owners.items():
        loads[member_id][partition] = None
    if readers and all(len(names) == len(ordered) for names in readers.values()):
        _give_up_excess(loads, sum(partition_counts[topic] for topic in readers))
    held = {partition for load in loads.values() for partition in load}
    free = [
        TopicPartition(topic, number)
        for topic in sorted(readers, key=lambda name: (len(readers[name]), name))
        for number in range(partition_counts[topic])
        if (topic, number) not in held
    ]
    for partition in free:
        taker = min(readers[partition.topic], key=lambda name: len(loads[name]))
        loads[taker][partition] = None
    _even_out(loads, readers)
    return {member_id: sorted(load) for member_id, load in loads.items()}


def _current_owners(members: Sequence[Member], partition_counts: Mapping[str, int]) -> dict[TopicPartition, str]:
    """Valid claims: the partition exists, its topic is still read, and no later generation claims it too.

    Two claims of the same generation contradict each other, so neither counts. (KAFKA-12984)
    """
    claims: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for partition in member.owned:
            if partition.topic not in member.topics or partition.partition >= partition_counts.get(
                partition.topic, 0
            ):
                continue
            generation, owner = claims.get(partition, (-2, None))
            if member.generation > generation:
                claims[partition] = (member.generation, member.member_id)
            elif member.generation == generation and owner != member.member_id:
                claims[partition] = (generation, None)
    return {partition: owner for partition, (_, owner) in claims.items() if owner is not None}


def _give_up_excess(loads: Loads, total: int) -> None:
    """When everyone reads everything: nobody keeps more than its share, and few keep the larger share."""
    share, larger = divmod(total, len(loads))
    for load in sorted(loads.values(), key=len, reverse=True):
        keep = share
        if len(load) > share and larger > 0:
            keep, larger = share + 1, larger - 1
        for partition in sorted(load)[keep:]:
            del load[partition]


def _even_out(loads: Loads, readers: Mapping[str, list[str]]) -> None:
    """Each move takes a partition to a member with at least two fewer, so the spread shrinks and this ends."""
    moved = True
    while moved:
        moved = False
        for giver in sorted(loads, key=lambda name: len(loads[name]), reverse=True):
            load = loads[giver]
            if len(load) <= min(map(len, loads.values())) + 1:
                break
            for partition in list(load):
                taker = min(readers[partition.topic], key=lambda name: len(loads[name]))
                if len(loads[taker]) + 1 < len(load):
                    del load[partition]
                    loads[taker][partition] = None
                    moved = True


def withhold_moving(
    members: Sequence[Member], assignment: dict[str, list[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """Leaves out what someone else still owns: its owner sees it gone, gives it up and rejoins."""
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.owned:
            owners.setdefault(partition, set()).add(member.member_id)
    return {
        member_id: [p for p in partitions if p not in owners or member_id in owners[p]]
        for member_id, partitions in assignment.items()
    }
