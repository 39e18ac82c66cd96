"""Reading keys ahead of the rewrite: all of the dirty section first, then the clean section piece by piece.

Blocking, in steps: each generator yields what a step cost in bytes, so that its driver can pause or throttle. The
rewrite walks the same batches in the same order and takes their fates from here.
"""

import logging
from collections.abc import Generator, Iterator

from penstock.log.compaction.latest import ENTRY_BYTES, SUPERSEDED, VALUE, DirtyKeys, KeySpool, add_keys
from penstock.log.compaction.plan import RoundPlan, SegmentPlan
from penstock.log.compaction.record_scan import ScannedKeys, scan_keys
from penstock.log.compaction.transactions import AbortedRanges
from penstock.log.errors import CorruptSegment
from penstock.log.scan import ScannedBatch, SegmentScan
from penstock.model.ports import Disk
from penstock.records.batch import HEADER_BYTES, CorruptBatch
from penstock.records.compression import decompress

_LOGGER = logging.getLogger(__name__)
_MIN_PIECE_RECORDS = 50_000
_MAX_PIECE_RECORDS = 4_000_000


def walk_segment(disk: Disk, path: str, segment: SegmentPlan) -> Iterator[ScannedBatch]:
    """Blocking. All batches of a closed segment; damage raises, for nothing damaged may be rewritten as sound."""
    file_path = f"{path}/{segment.base_offset:020d}.log"
    file = disk.open(file_path, writable=False)
    try:
        scan = SegmentScan(file, segment.size_bytes, segment.base_offset)
        yield from scan
    finally:
        file.close()
    if scan.fault is not None:
        raise CorruptSegment(file_path, scan.end_position, scan.fault, scan.next_offset)


def payload_of(batch: ScannedBatch) -> bytes:
    header = batch.header
    view = memoryview(batch.data)[batch.pos + HEADER_BYTES : batch.pos + header.size_bytes]
    return decompress(header.codec, view)


def scan_batch(batch: ScannedBatch) -> ScannedKeys | None:
    """None when the records cannot be read: the batch stays as it is, for whoever can make sense of it."""
    try:
        return scan_keys(payload_of(batch), batch.header.record_count)
    except CorruptBatch as error:
        _LOGGER.warning("the batch at offset %d is kept as it is: %s", batch.header.base_offset, error)
        return None


class DirtyScan:
    """Finds the last record of each key from the first dirty offset on, as far as memory reaches."""

    __slots__ = ("_aborted", "_disk", "_plan", "covered_end_offset", "keys", "last_of_unsettled", "records_read")

    def __init__(self, disk: Disk, plan: RoundPlan, aborted: AbortedRanges) -> None:
        self._disk = disk
        self._plan = plan
        self._aborted = aborted
        self.keys = DirtyKeys(plan.buffer_bytes, plan.end_offset - plan.first_dirty_offset)
        self.covered_end_offset = plan.first_dirty_offset
        """Below it everything was looked at. The end of a segment, unless one segment alone is too much."""
        self.last_of_unsettled: dict[int, int] = {}
        """Last offset of the last batch of each unsettled producer that has one here."""
        self.records_read = 0

    def steps(self) -> Iterator[int]:
        for segment in self._plan.segments:
            if segment.end_offset > self._plan.first_dirty_offset:
                is_whole = yield from self._scan_segment(segment)
                if not is_whole:
                    break
                self.covered_end_offset = segment.end_offset
        yield from (int(entries * ENTRY_BYTES) for entries in self.keys.seal())

    def _scan_segment(self, segment: SegmentPlan) -> Generator[int, None, bool]:
        """Returns whether all of it was read."""
        plan, keys = self._plan, self.keys
        for batch in walk_segment(self._disk, plan.path, segment):
            header = batch.header
            if header.last_offset < plan.first_dirty_offset:
                continue
            if header.producer_id in plan.unsettled_producers and not header.is_control:
                self.last_of_unsettled[header.producer_id] = header.last_offset
            count = 0 if header.is_control else header.record_count
            if not keys.has_room(count) and len(keys.fates):
                yield from self._make_room()
                if not keys.has_room(count + self._half_full_records()):
                    if segment.base_offset <= plan.first_dirty_offset:
                        self.covered_end_offset = header.base_offset
                    return False
            if count:
                self._add(batch)
            yield header.size_bytes
        return True

    def _add(self, batch: ScannedBatch) -> None:
        count = batch.header.record_count
        self.records_read += count
        if self._aborted.hold(batch.header):
            self.keys.skip(count, SUPERSEDED)
            return
        scanned = scan_batch(batch)
        if scanned is None:
            self.keys.skip(count, VALUE)
        else:
            self.keys.add(scanned)

    def _make_room(self) -> Iterator[int]:
        yield from (int(entries * ENTRY_BYTES) for entries in self.keys.dedupe())

    def _half_full_records(self) -> int:
        """Going on pays only if much room was made; otherwise dedupe would run again at once."""
        return int(self._plan.buffer_bytes / (2 * (ENTRY_BYTES + 1)))


class CleanScan:
    """Fates of the records in front of the first dirty offset, in pieces that fit into the rest of the buffer."""

    __slots__ = ("_aborted", "_batches", "_fates", "_keys", "_piece_records", "_taken")

    def __init__(self, disk: Disk, plan: RoundPlan, aborted: AbortedRanges, keys: DirtyKeys) -> None:
        self._aborted = aborted
        self._keys = keys
        self._batches = self._walk(disk, plan)
        room = int((plan.buffer_bytes - keys.sealed_bytes) / (ENTRY_BYTES + 1))
        self._piece_records = min(max(room, _MIN_PIECE_RECORDS), _MAX_PIECE_RECORDS)
        self._fates = bytearray()
        self._taken = 0

    def _walk(self, disk: Disk, plan: RoundPlan) -> Iterator[ScannedBatch]:
        for segment in plan.segments:
            if segment.base_offset >= plan.first_dirty_offset:
                return
            for batch in walk_segment(disk, plan.path, segment):
                if batch.header.last_offset >= plan.first_dirty_offset:
                    return
                if not batch.header.is_control and batch.header.record_count:
                    yield batch

    def has(self, count: int) -> bool:
        """Whether the next `count` fates are known; otherwise `fill` first."""
        return len(self._fates) - self._taken >= count

    def take(self, count: int) -> bytes:
        """The fates of the next batch, in the order of the log; control batches have none."""
        start = self._taken
        self._taken = start + count
        return bytes(self._fates[start : start + count])

    def fill(self) -> Iterator[int]:
        """Reads the keys of the next piece and looks them up. Yields costs in bytes."""
        assert self._taken == len(self._fates)
        self._fates, self._taken = bytearray(), 0
        spool = self._keys.new_spool()
        for batch in self._batches:
            self._add(batch, spool)
            yield batch.header.size_bytes
            if len(self._fates) >= self._piece_records:
                break
        yield from (entries * 8 for entries in self._keys.supersede(spool, self._fates))

    def _add(self, batch: ScannedBatch, spool: KeySpool) -> None:
        is_aborted = self._aborted.hold(batch.header)
        scanned = None if is_aborted else scan_batch(batch)
        if scanned is not None:
            add_keys(spool, self._fates, scanned)
        else:
            self._fates += bytes([SUPERSEDED if is_aborted else VALUE]) * batch.header.record_count
