"""Rewriting a group of segments as one: walks their batches, asks for fates, writes what stays.

A group always ends where its last segment ended: if nothing of the last batch stays, an empty one keeps the offset.
So segments join without gaps, and what a half-done swap replaces can be told from the files. A segment of its own
that would come out as it went in is left alone; nothing is written for it.
"""

from collections.abc import Generator, Iterator

from penstock.log.compaction.batch_rewrite import empty_batch, original, rewrite_data, rewrite_marker
from penstock.log.compaction.cleaned_file import CleanedFile, CleanedSegment
from penstock.log.compaction.dirty_scan import CleanScan, walk_segment
from penstock.log.compaction.latest import DirtyKeys
from penstock.log.compaction.plan import RoundPlan, SegmentPlan
from penstock.log.compaction.transactions import AbortedRanges, ObservedTransactions
from penstock.log.scan import ScannedBatch
from penstock.model.ports import Buffer, Disk
from penstock.records.batch import DELETE_HORIZON_BIT, HEADER, NO_TIMESTAMP, BatchHeader


class Fates:
    """Where a batch's fates come from: the clean section, the dirty one, or nowhere behind what was covered."""

    __slots__ = ("_clean", "_covered_end_offset", "_dirty", "_first_dirty_offset", "_taken")

    def __init__(self, clean: CleanScan, dirty: DirtyKeys, first_dirty_offset: int, covered_end_offset: int) -> None:
        self._clean = clean
        self._dirty = dirty.fates
        self._first_dirty_offset = first_dirty_offset
        self._covered_end_offset = covered_end_offset
        self._taken = 0

    def cover(self, header: BatchHeader) -> bool:
        return header.base_offset < self._covered_end_offset

    def of(self, header: BatchHeader) -> Generator[int, None, bytes]:
        """A generator that returns the fates of this data batch; yields costs when it must read ahead."""
        count = header.record_count
        if header.last_offset >= self._first_dirty_offset:
            start = self._taken
            self._taken = start + count
            return bytes(self._dirty[start : start + count])
        if not self._clean.has(count):
            yield from self._clean.fill()
        return self._clean.take(count)


class GroupRewrite:
    """One group. Run `steps` to its end; then `result` is the new segment, or None if nothing changed."""

    def __init__(
        self,
        disk: Disk,
        plan: RoundPlan,
        group: list[SegmentPlan],
        fates: Fates,
        aborted: AbortedRanges,
        observed: ObservedTransactions,
        last_of_unsettled: dict[int, int],
    ) -> None:
        self._disk = disk
        self._plan = plan
        self._group = group
        self._fates = fates
        self._aborted = aborted
        self._observed = observed
        self._last_of_unsettled = last_of_unsettled
        self._out = CleanedFile(disk, plan.path, group[0].base_offset, plan.tag, plan.index_interval_bytes)
        self.last_horizon_ms: int | None = None
        """When the last of the tombstones that stayed may go."""
        self.result: CleanedSegment | None = None
        self.records_kept = 0

    def steps(self) -> Iterator[int]:
        if len(self._group) > 1:
            self._out.start()
        for segment in self._group:
            for batch in walk_segment(self._disk, self._plan.path, segment):
                header = batch.header
                yield header.size_bytes
                kept = yield from self._decide(batch)
                if kept is None and header.next_offset >= self._group[-1].end_offset:
                    kept = _shell(batch)
                yield from self._put(batch, kept)
        if self._out.is_started:
            bases = [segment.base_offset for segment in self._group]
            had_index = any(self._disk.exists(f"{self._plan.path}/{base:020d}.txnindex") for base in bases)
            self.result = self._out.finish(bases, with_txn_index=had_index)

    def _decide(self, batch: ScannedBatch) -> Generator[int, None, Buffer | None]:
        """A generator that returns what stays of a batch: the batch as it is, a smaller one, or None."""
        header = batch.header
        if header.is_control:
            return self._decide_marker(batch)
        self._observed.see_data(header)
        if not self._fates.cover(header):
            return original(batch)
        fates = yield from self._fates.of(header)
        kept = rewrite_data(batch, fates, self._plan.now_ms, self._plan.delete_retention_ms)
        if kept is None and self._is_last_of_producer(header):
            return _shell(batch)
        return kept

    def _decide_marker(self, batch: ScannedBatch) -> Buffer | None:
        """Markers go when their transaction has gone and their delete horizon has passed, as tombstones do."""
        header, now_ms = batch.header, self._plan.now_ms
        may_go = self._observed.see_marker(header, batch.data, batch.pos)
        if not may_go or self._plan.only_tombstones or not self._fates.cover(header):
            ended = self._aborted.ended_by(header)
            if ended is not None:
                self._out.aborted.append(ended)
            return original(batch)
        if self._is_last_of_producer(header):
            return original(batch)
        if header.record_count == 0 or (header.has_delete_horizon and header.base_timestamp <= now_ms):
            return None
        if header.has_delete_horizon:
            return original(batch)
        return rewrite_marker(batch, now_ms + self._plan.delete_retention_ms)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Its sequence number, or for want of records its epoch, may have to be told from this batch alone."""
        if header.producer_id in self._plan.unsettled_producers and not header.is_control:
            # Of those without a batch in the dirty section nearly nothing is left by earlier rounds.
            return self._last_of_unsettled.get(header.producer_id, header.last_offset) == header.last_offset
        producer = self._plan.producers.get(header.producer_id)
        if producer is None:
            return False
        if producer.last_offset >= 0:
            return header.last_offset == producer.last_offset
        return header.is_control and header.producer_epoch == producer.producer_epoch

    def _put(self, batch: ScannedBatch, kept: Buffer | None) -> Iterator[int]:
        out = self._out
        is_same = isinstance(kept, memoryview)  # passed on byte for byte
        if not is_same and not out.is_started:
            source = self._disk.open(f"{self._plan.path}/{self._group[0].base_offset:020d}.log", writable=False)
            yield from out.copy(source, batch.position)
            source.close()
        if kept is None:
            return
        header = batch.header if is_same else BatchHeader._make(HEADER.unpack_from(kept))
        self.records_kept += header.record_count
        if header.attributes & DELETE_HORIZON_BIT and not header.is_control:
            self.last_horizon_ms = max(self.last_horizon_ms or 0, header.base_timestamp)
        # The time of an empty batch is that of no record; a look-up by time must not stop there.
        out.note(header.size_bytes, header.last_offset, header.max_timestamp if header.record_count else NO_TIMESTAMP)
        if out.is_started:
            out.write(kept)
            yield len(kept)


def _shell(batch: ScannedBatch) -> Buffer:
    """What must stay of a batch of which nothing stays. A marker is as small as it gets."""
    header = batch.header
    return original(batch) if header.is_control or header.record_count == 0 else empty_batch(header)
