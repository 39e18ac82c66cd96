"""One round of compaction over one log, on files alone: scan first, then rewrite group after group.

Blocking, in steps. Whoever drives it swaps each group in before the next one is rewritten: a tombstone may only go
when everything it deletes went before it, also on disk.
"""

from collections.abc import Iterator

import msgspec

from penstock.log.compaction.cleaned_file import CleanedSegment
from penstock.log.compaction.dirty_scan import CleanScan, DirtyScan
from penstock.log.compaction.plan import RoundPlan, SegmentPlan
from penstock.log.compaction.rewrite import Fates, GroupRewrite
from penstock.log.compaction.transactions import AbortedRanges, ObservedTransactions
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.log.txn_index import AbortedTransaction, read_aborted
from penstock.model.ports import Disk

MAX_GROUP_SEGMENTS = 64
"""Swapping a group in renames a file for each of its segments, on the loop."""


class Scanned(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    covered_end_offset: int
    groups: int
    unique_keys: int
    records_read: int


class Rewritten(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What became of a group."""

    bases: list[int]
    cleaned: CleanedSegment | None
    """None when nothing changed and nothing was written."""
    last_horizon_ms: int | None
    """When all tombstones that stayed may go."""
    records_kept: int


class Round:
    """Run `scan` to its end, then `rewrite` for each group in order."""

    def __init__(self, disk: Disk, plan: RoundPlan) -> None:
        self._disk = disk
        self._plan = plan
        self._groups: list[list[SegmentPlan]] = []
        self._observed = ObservedTransactions()
        self._aborted: AbortedRanges
        self._fates: Fates
        self._last_of_unsettled: dict[int, int]
        self.scanned: Scanned
        self.rewritten: Rewritten

    def scan(self) -> Iterator[int]:
        """Yields costs in bytes; afterwards `scanned` tells the result."""
        plan = self._plan
        aborted = self._aborted = AbortedRanges(self._read_aborted())
        dirty = DirtyScan(self._disk, plan, aborted)
        yield from dirty.steps()
        covered = dirty.covered_end_offset
        self._last_of_unsettled = dirty.last_of_unsettled
        clean = CleanScan(self._disk, plan, aborted, dirty.keys)
        yield from clean.fill()  # from here on it reads ahead of the rewrite, never behind a swap
        self._fates = Fates(clean, dirty.keys, plan.first_dirty_offset, covered)
        self._groups = self._group([segment for segment in plan.segments if segment.base_offset < covered])
        self.scanned = Scanned(
            covered_end_offset=covered,
            groups=len(self._groups),
            unique_keys=dirty.keys.unique_keys,
            records_read=dirty.records_read,
        )

    def rewrite(self, number: int) -> Iterator[int]:
        """Yields costs in bytes; afterwards `rewritten` tells the result."""
        group = self._groups[number]
        rewrite = GroupRewrite(
            self._disk, self._plan, group, self._fates, self._aborted, self._observed, self._last_of_unsettled
        )
        yield from rewrite.steps()
        self.rewritten = Rewritten(
            bases=[segment.base_offset for segment in group],
            cleaned=rewrite.result,
            last_horizon_ms=rewrite.last_horizon_ms,
            records_kept=rewrite.records_kept,
        )

    def _read_aborted(self) -> list[AbortedTransaction]:
        bases = [segment.base_offset for segment in self._plan.segments] + self._plan.later_bases
        entries = list(self._plan.active_aborted)
        for base in bases:
            entries += read_aborted(self._disk, f"{self._plan.path}/{base:020d}.txnindex")
        return entries

    def _group(self, segments: list[SegmentPlan]) -> list[list[SegmentPlan]]:
        """Neighbours that together are no larger than one segment may be, so that small ones join in time."""
        groups: list[list[SegmentPlan]] = []
        sizes = (0, 0, 0)
        for segment in segments:
            added = self._sizes(segment)
            if groups and self._fits(groups[-1], segment, sizes, added):
                groups[-1].append(segment)
                sizes = (sizes[0] + added[0], sizes[1] + added[1], sizes[2] + added[2])
            else:
                groups.append([segment])
                sizes = added
        return groups

    def _fits(
        self, group: list[SegmentPlan], segment: SegmentPlan, sizes: tuple[int, int, int], added: tuple[int, int, int]
    ) -> bool:
        plan = self._plan
        return (
            group[-1].end_offset == segment.base_offset
            and len(group) < MAX_GROUP_SEGMENTS
            and sizes[0] + added[0] <= plan.segment_bytes
            and max(sizes[1] + added[1], sizes[2] + added[2]) <= plan.segment_index_bytes
            and segment.end_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET
        )

    def _sizes(self, segment: SegmentPlan) -> tuple[int, int, int]:
        stem = f"{self._plan.path}/{segment.base_offset:020d}"
        return segment.size_bytes, self._size(stem + ".index"), self._size(stem + ".timeindex")

    def _size(self, path: str) -> int:
        return self._disk.size(path) if self._disk.exists(path) else 0
