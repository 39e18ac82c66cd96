"""Where logs may start (P12): what was not deleted stays."""

import sys
from collections.abc import Iterable, Sequence

from penstock.replication.partition import Partition
from penstock.sim.ghost_log import Violation
from penstock.sim.history import TopicPartition


class StartLaw:
    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, int] = {}
        """Up to where somebody asked for records to be deleted; at and above it none may go."""

    def asked(self, partition: TopicPartition, offset: int) -> None:
        self.wanted[partition] = max(offset, self.wanted.get(partition, 0))

    def leave_to_retention(self, partitions: Iterable[TopicPartition]) -> None:
        """By size: nobody can tell up to where."""
        self.wanted.update(dict.fromkeys(partitions, sys.maxsize))

    def check(self, replica: str, partition: Partition, before: int) -> int:
        """A start never goes back while a replica is open, and is nowhere that nobody wanted. Returns it. Compaction
        makes holes, and is not looked at here."""
        start, where = partition.log.log_start_offset, f"{partition.topic}-{partition.index}"
        if start < before:
            raise Violation(f"P12: the start of {where} on {replica} went from {before} to {start}")
        if start > partition.high_watermark:
            raise Violation(f"P12: {replica} starts {where} at {start}, {partition.high_watermark} are committed")
        wanted = self.wanted.get((partition.topic, partition.index), 0)
        if start > wanted and "compact" not in partition.log.config.cleanup_policy:
            raise Violation(f"P12: {replica} starts {where} at {start}, deleted was up to {wanted}")
        return start


def late_starts(leader: Sequence[Partition], replicas: Iterable[tuple[str, Partition]]) -> list[str]:
    """Replicas that still have what their leader has deleted. They may have deleted more: retention is their own."""
    wanted = max((each.log.log_start_offset for each in leader), default=0)
    return [name for name, each in replicas if each.log.log_start_offset < wanted]
