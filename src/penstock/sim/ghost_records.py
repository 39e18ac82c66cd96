"""What was committed in one compacted log, by record: compaction rewrites batches and drops what is superseded.

As a `GhostLog`, it grows with the highest watermark that any replica has shown. Records that a replica still has must
be those that were committed; one that it lacks must have a later one of the same key. Control records and those of
transactions may go for other reasons and are only compared where they are. No world is old enough for a tombstone to
go.
"""

from typing import NamedTuple

from penstock.log.partition_log import PartitionLog
from penstock.records.batch import BatchHeader
from penstock.records.reader import read_records
from penstock.sim.ghost_log import Ghost, Violation


class GhostRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    epoch: int
    may_go: bool
    """A control record, or one of a transaction."""


class GhostRecords(Ghost):
    def __init__(self, name: str, rule: str) -> None:
        super().__init__(name, rule)
        self._records: dict[int, GhostRecord] = {}
        self._newest: dict[bytes | None, int] = {}
        """The offset of the last record of each key."""

    def _changes(self, log: PartitionLog) -> tuple[int, ...]:
        return (log.generation, log.directory.swaps)

    def _compare_batch(
        self, replica: str, data: bytes, position: int, header: BatchHeader, start: int, grow: bool
    ) -> None:
        may_go = header.is_control or header.is_transactional
        found = {
            record.offset: GhostRecord(record.key, record.value, header.partition_leader_epoch, may_go)
            for record in read_records(data, position)
        }
        if header.next_offset > self.end_offset:
            if grow:
                self._grow(replica, header, found)
            return
        for offset, record in found.items():
            known = self._records.get(offset)
            if known != record:
                raise Violation(f"{self.rule}: {replica} has {record} at {self.name}@{offset}, committed was {known}")
        for offset in range(start, header.next_offset):
            known = self._records.get(offset)
            if known is not None and offset not in found and not self._may_lack(offset, known):
                raise Violation(f"{self.rule}: {replica} lacks {known} at {self.name}@{offset}, the last of its key")

    def _may_lack(self, offset: int, record: GhostRecord) -> bool:
        return record.may_go or self._newest[record.key] > offset

    def _grow(self, replica: str, header: BatchHeader, found: dict[int, GhostRecord]) -> None:
        """Before anybody compacts it: offsets follow each other."""
        if header.base_offset != self.end_offset or sorted(found) != list(range(self.end_offset, header.next_offset)):
            raise Violation(f"{self.rule}: {self.name} goes on with {header} after {self.end_offset} on {replica}")
        self._records |= found
        self._newest |= {record.key: offset for offset, record in found.items()}
        self.end_offset = header.next_offset
        self.shown_by = replica
