"""What to compact, decided on the loop: how dirty a log is, and a round as plain data that a worker can carry out.

The dirty section of a log is what no round has looked at yet, from the cleaner checkpoint on. Only whole closed
segments are compacted, and only those that lie below the last stable offset, are on stable storage, and are older
than `min.compaction.lag.ms`.
"""

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.log.aborted import aborted_entries
from penstock.log.config import MAX_LONG
from penstock.log.producers import NO_OFFSET
from penstock.log.txn_index import AbortedTransaction
from penstock.records.batch import HEADER, HEADER_BYTES, NO_TIMESTAMP, BatchHeader

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment

_NO_KEYS_BUFFER_BYTES = 1 << 20


class Dirt(NamedTuple):
    """How much of a log waits for compaction."""

    first_dirty_offset: int
    end_offset: int
    """Nothing at or above it may be compacted now."""
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """A record has waited longer than `max.compaction.lag.ms`."""
    settled_end_offset: int
    """Below it everything is committed and on stable storage."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / max(1, self.clean_bytes + self.dirty_bytes)


class SegmentPlan(msgspec.Struct, frozen=True, array_like=True):
    base_offset: int
    end_offset: int
    size_bytes: int


class ProducerPlan(msgspec.Struct, frozen=True, array_like=True):
    """An active producer: its last batch must stay, if only as an empty one."""

    last_offset: int
    """Of its last data batch; −1 where only a marker tells its epoch."""
    producer_epoch: int


class RoundPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One round over one log. Plain data: it may be sent to another process."""

    path: str
    tag: str
    """Part of the names of the round's files: what is left of an older one is never taken for them."""
    segments: list[SegmentPlan]
    """All closed segments from the start of the log up to the end of what may be compacted."""
    later_bases: list[int]
    """Closed segments behind them: their transaction indexes tell of transactions that began before."""
    active_aborted: list[AbortedTransaction]
    """What the transaction index of the active segment holds."""
    producers: dict[int, ProducerPlan]
    """Active producers whose last batch lies below the end."""
    unsettled_producers: set[int]
    """Active producers whose last batch may yet be lost: what they wrote before it must tell their state then."""
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    buffer_bytes: int
    """Memory for keys; beside it a few megabytes are used for reading and writing."""
    only_tombstones: bool = False
    """Nothing is dirty; only tombstones whose time has come are removed, from these segments alone."""

    @property
    def end_offset(self) -> int:
        return self.segments[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)


def measure_dirt(log: "PartitionLog", stable_end_offset: int, now_ms: int) -> Dirt:
    """Loop-safe (a small read per segment not seen before). `stable_end_offset`: the last stable offset."""
    config = log.config
    first_dirty = _first_dirty_offset(log)
    limit = min(stable_end_offset, log.synced_end_offset)
    clean_bytes = dirty_bytes = 0
    end_offset = first_dirty
    is_overdue = False
    may_grow = True
    for segment, segment_end in closed_segments(log):
        if segment_end <= first_dirty:
            clean_bytes += segment.size_bytes
            may_grow = may_grow and not segment.dirty
            continue
        may_grow = may_grow and segment_end <= limit and not segment.dirty and not _is_too_young(log, segment, now_ms)
        if may_grow:
            dirty_bytes += segment.size_bytes
            end_offset = segment_end
        if config.max_compaction_lag_ms < MAX_LONG and not is_overdue:
            is_overdue = 0 <= first_timestamp(log, segment) < now_ms - config.max_compaction_lag_ms
    return Dirt(first_dirty, end_offset, clean_bytes, dirty_bytes, is_overdue and dirty_bytes > 0, limit)


def wants_compaction(log: "PartitionLog", dirt: Dirt) -> bool:
    return dirt.dirty_bytes > 0 and (dirt.is_overdue or dirt.ratio > log.config.min_cleanable_dirty_ratio)


def plan_round(log: "PartitionLog", dirt: Dirt, now_ms: int, buffer_bytes: int) -> RoundPlan:
    """Loop-safe (a small read of the active segment's transaction index)."""
    return _round_plan(log, [s for s in closed_segments(log) if s[1] <= dirt.end_offset], dirt, now_ms, buffer_bytes)


def plan_tombstone_round(log: "PartitionLog", dirt: Dirt, bases: frozenset[int], now_ms: int) -> RoundPlan | None:
    """A round over the clean segments that start at `bases`; None when they are gone. One that was the active segment
    again, since the log was cut there, waits for its sync."""
    bases = bases - {segment.base_offset for segment in log.segments if segment.dirty}
    chosen = [s for s in closed_segments(log) if s[0].base_offset in bases and s[1] <= dirt.first_dirty_offset]
    return _round_plan(log, chosen, dirt, now_ms, _NO_KEYS_BUFFER_BYTES, only_tombstones=True) if chosen else None


def _round_plan(
    log: "PartitionLog",
    segments: list[tuple["Segment", int]],
    dirt: Dirt,
    now_ms: int,
    buffer_bytes: int,
    *,
    only_tombstones: bool = False,
) -> RoundPlan:
    config = log.config
    end_offset = segments[-1][1]
    assert log.active is not None
    return RoundPlan(
        path=log.path,
        tag=f"{log.directory.clock.now_ms():x}",
        segments=[SegmentPlan(segment.base_offset, end, segment.size_bytes) for segment, end in segments],
        later_bases=[s.base_offset for s in log.segments[:-1] if s.base_offset >= end_offset],
        active_aborted=list(aborted_entries(log, log.active)),
        producers={
            producer_id: ProducerPlan(entry.last_offset, entry.producer_epoch)
            for producer_id, entry in log.producers.items()
            if entry.last_offset == NO_OFFSET or entry.last_offset < end_offset
        },
        unsettled_producers={
            producer_id
            for producer_id, entry in log.producers.items()
            if entry.last_offset == NO_OFFSET or entry.last_offset >= dirt.settled_end_offset
        },
        first_dirty_offset=dirt.first_dirty_offset,
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        buffer_bytes=buffer_bytes,
        only_tombstones=only_tombstones,
    )


def closed_segments(log: "PartitionLog") -> list[tuple["Segment", int]]:
    """All but the active segment, each with its end offset."""
    segments = log.segments
    return [(segments[at], segments[at + 1].base_offset) for at in range(len(segments) - 1)]


def _first_dirty_offset(log: "PartitionLog") -> int:
    """The cleaner checkpoint, unless it is not of this log: then everything is dirty."""
    checkpoint = log.directory.cleaned_offsets.get(log.name, 0)
    return log.log_start_offset if checkpoint > log.end_offset else max(checkpoint, log.log_start_offset)


def is_active_overdue(log: "PartitionLog", now_ms: int) -> bool:
    """The active segment is never compacted: it must be closed when a record in it has waited too long."""
    active, lag_ms = log.active, log.config.max_compaction_lag_ms
    return active is not None and lag_ms < MAX_LONG and 0 <= active.first_timestamp < now_ms - lag_ms


def _is_too_young(log: "PartitionLog", segment: "Segment", now_ms: int) -> bool:
    lag_ms = log.config.min_compaction_lag_ms
    return lag_ms > 0 and segment.largest_timestamp(log.directory.disk).timestamp > now_ms - lag_ms


def first_timestamp(log: "PartitionLog", segment: "Segment") -> int:
    """Of the segment's first batch; read once, then remembered."""
    if segment.first_timestamp == NO_TIMESTAMP and segment.size_bytes >= HEADER_BYTES:
        raw = log.directory.files.open(segment).read_at(0, HEADER_BYTES)
        segment.first_timestamp = BatchHeader._make(HEADER.unpack(raw)).max_timestamp
    return segment.first_timestamp
