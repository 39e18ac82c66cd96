"""What was committed in one compacted log, by record: compaction rewrites batches and drops what is superseded.

As `GhostLog`, it grows with the highest watermark that any replica has shown. Records that a replica still has must
be those that were committed; one that it lacks must have a later one of the same key. Control records and those of
transactions may go for other reasons and are only compared where they are. No world is old enough for a tombstone to
go.
"""

from typing import NamedTuple

from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.records.batch import BatchHeader, iter_headers
from penstock.records.reader import read_records
from penstock.sim.ghost_log import READ_BYTES, Violation, is_damaged


class GhostRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    epoch: int
    may_go: bool
    """A control record, or one of a transaction."""


class GhostRecords:
    """In the place of a `GhostLog`."""

    def __init__(self, name: str, rule: str) -> None:
        self.name = name
        self.rule = rule
        self.end_offset = 0
        self._records: dict[int, GhostRecord] = {}
        self._newest: dict[bytes | None, int] = {}
        """The offset of the last record of each key."""
        self._verified: dict[str, tuple[int, int, int]] = {}
        """How far each replica was compared, and after which truncations and compactions that was."""

    def forget_replica(self, replica: str) -> None:
        self._verified.pop(replica, None)

    def shows(self, replica: str, log: PartitionLog, high_watermark: int, *, rotten: bool = False) -> None:
        moves = (log.generation, log.directory.swaps)
        start, *before = self._verified.get(replica, (0, *moves))
        if tuple(before) != moves:
            start = 0
        if high_watermark > start:
            start = self.compare(replica, log, start, high_watermark, grow=True, rotten=rotten)
        self._verified[replica] = (start, *moves)

    def compare(
        self,
        replica: str,
        log: PartitionLog,
        start: int,
        end_offset: int,
        *,
        grow: bool = False,
        rotten: bool = False,
    ) -> int:
        """Compares the replica's records with the committed ones; returns where it stopped."""
        offset = max(start, log.log_start_offset)
        while offset < end_offset:
            data = log.read_bytes(offset, READ_BYTES, end_offset)
            if rotten and (isinstance(data, ErrorCode) or is_damaged(data)):
                break
            if isinstance(data, ErrorCode):
                raise Violation(f"{self.rule}: {replica} cannot read {self.name}@{offset}: {data.name}")
            before = offset
            for position, header in iter_headers(data):
                if header.next_offset <= end_offset:
                    self._compare_batch(replica, data, position, header, offset, grow)
                    offset = max(offset, header.next_offset)
            if offset == before:
                break
        return offset

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
