"""What the controller has done, as plain numbers, counted from committed metadata; and how the cluster is.

`ControllerCounters.follow` is a metadata listener. It counts what changed while this node listened, whoever decided
it; a metrics page shows it for the active controller. Elsewhere several changes may come as one, of which only the
outcome is seen; but every unclean election is, since any broker is asked for those.
"""

from typing import NamedTuple

from penstock.metadata.delta import MetadataDelta, TopicChange
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import NO_LEADER, PartitionImage


class ControllerCounters:
    """Only ever grow, but for the time that the process lives."""

    __slots__ = (
        "elections",
        "fencings",
        "isr_expansions",
        "isr_shrinks",
        "leaderless_changes",
        "reassignments_completed",
        "reassignments_started",
        "unclean_elections",
        "unfencings",
    )

    def __init__(self) -> None:
        self.elections = 0
        self.unclean_elections = 0
        self.leaderless_changes = 0
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.reassignments_started = 0
        self.reassignments_completed = 0
        self.fencings = 0
        self.unfencings = 0

    def follow(self, delta: MetadataDelta, _image: MetadataImage) -> None:
        before = delta.image
        for broker_id, broker in delta.changed_brokers.items():
            known = before.brokers.get(broker_id)
            was_there = known is not None and not known.fenced
            is_there = broker is not None and not broker.fenced
            self.fencings += was_there and not is_there
            self.unfencings += is_there and not was_there
        for change in delta.topic_changes.values():
            if not change.created:
                self._count_topic(change, before)

    def _count_topic(self, change: TopicChange, before: MetadataImage) -> None:
        self.unclean_elections += change.unclean_elections
        known = before.topics_by_id.get(change.id)
        for number in change.changed if known is not None else ():
            old = known.partition(number) if known is not None else None
            if old is not None:
                self._count(old, change.partitions[number])

    def _count(self, old: PartitionImage, new: PartitionImage) -> None:
        if new.leader != old.leader:
            if new.leader == NO_LEADER:
                self.leaderless_changes += 1
            else:
                self.elections += 1
        self.isr_shrinks += not set(old.isr) <= set(new.isr)
        self.isr_expansions += not set(new.isr) <= set(old.isr)
        was_moving = bool(old.adding_replicas or old.removing_replicas)
        moves = bool(new.adding_replicas or new.removing_replicas)
        self.reassignments_started += moves and not was_moving
        self.reassignments_completed += was_moving and not moves


class ClusterHealth(NamedTuple):
    """How things are at one moment."""

    partitions: int
    leaderless: int
    under_replicated: int
    reassigning: int
    not_preferred: int
    fenced_brokers: int


def survey(image: MetadataImage) -> ClusterHealth:
    """Looks at every partition: some 0.2 s for a million, so not for the hot path."""
    leaderless = under_replicated = reassigning = not_preferred = 0
    for topic in image.topics.values():
        for state in topic.partitions:
            leaderless += state.leader == NO_LEADER
            under_replicated += len(state.isr) < len(state.replicas)
            reassigning += bool(state.adding_replicas or state.removing_replicas)
            not_preferred += state.leader != state.replicas[0]
    fenced = sum(broker.fenced for broker in image.brokers.values())
    return ClusterHealth(image.partition_count, leaderless, under_replicated, reassigning, not_preferred, fenced)
