"""Cutting the end off a log, as followers and the metadata quorum must after a change of leader.

Rare, so it simply does its file operations where it is called (the loop): a few fsyncs, some ten milliseconds. Who
cuts many logs pauses between them. Plans that are under way see another generation afterwards and are discarded. The
recovery point moves down with the end, on disk before the log does: where segments go by all checkpoints, since one
that was closed will be written again, otherwise by the journal.
"""

import contextlib
import logging
from typing import TYPE_CHECKING

from penstock.log.aborted import cut_aborted
from penstock.log.deletion import SEGMENT_SUFFIXES
from penstock.log.errors import NoRoom
from penstock.log.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from penstock.log.reading import end_offset_before, locate, segment_holding
from penstock.log.rebuild import rebuild_producers
from penstock.log.scan import SegmentScan
from penstock.log.segment import Segment
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from penstock.log.time_index import decode_all
from penstock.model.ports import Disk
from penstock.records.batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

_LOGGER = logging.getLogger(__name__)


def truncate_log(log: "PartitionLog", offset: int) -> None:
    """Everything at and behind `offset` goes; a batch that holds `offset` goes as a whole. Raises `CorruptSegment`
    where damage hides the place, and nothing was cut, or who had written what is left."""
    offset = max(offset, log.local_log_start_offset)
    if not log.segments or offset <= log.segments[0].base_offset:
        truncate_fully(log, offset)
        return
    segments = list(log.segments)
    keep = segment_holding(segments, offset - 1) + 1
    synced_end_offset = log.synced_end_offset
    position = locate(segments[keep - 1], offset, log.directory.files, log.directory.cache)
    end_offset = _end_offset_before(log, segments[keep - 1], position, offset)
    _begin(log, segments[keep - 1].base_offset, end_offset, removes_segments=keep < len(segments))
    while len(segments) > keep:
        _remove_segment(log, segments.pop())
    _remove_snapshots_above(log, segments[-1].base_offset)
    log.segments = tuple(segments)
    active = log.active = segments[-1]
    _truncate_segment(log, active, position, end_offset)
    if end_offset < log.log_start_offset:  # what is left lies below the start, within a batch that went
        truncate_fully(log, log.log_start_offset)
        return
    log.end_offset = end_offset
    log.synced_end_offset = min(synced_end_offset, end_offset)
    log.size_bytes = sum(segment.size_bytes for segment in segments)
    log.leader_epochs.truncate_to(end_offset)
    log.high_watermark = min(log.high_watermark, end_offset)
    log.directory.lower_cleaned_offset(log.name, end_offset)
    if not log.producers.truncate(end_offset):
        void = log.unsynced.void_snapshots()
        log.producers = rebuild_producers(log.directory.disk, log.path, log.segments, end_offset, void)
    _LOGGER.info("%s truncated to offset %d", log.name, end_offset)


def truncate_fully(log: "PartitionLog", offset: int) -> None:
    """Nothing is left; the log starts again at `offset`, which counts with the next sync. Without room it is there
    in memory only, and has no files."""
    _drop_all(log, offset)
    moves_down = offset < log.log_start_offset
    log.log_start_offset = log.local_log_start_offset = offset
    log.high_watermark = offset
    if moves_down:
        # After a crash records below the start on disk would be cut off: it moves down before there are any.
        log.directory.make_checkpoints_urgent()
    _begin_anew(log, offset)
    if log.segments:
        # Only the name of its first file tells where the log is. Until that is durable, nothing here counts.
        log.synced_end_offset = 0
        if log.directory.commit is not None:
            log.directory.commit.request(log)


def begin_below_start(log: "PartitionLog", offset: int) -> None:
    """An empty log is to begin with a batch that holds its start, and so at `offset`, where the batch begins.

    The start stays: nobody sees the records before it. The log ends below its start until the batch is appended;
    where that fails, `return_to_start` follows.
    """
    had_files = log.has_files
    _drop_all(log, offset)
    if not had_files:
        # Only checkpoints tell its start then, maybe not yet, and the recovery point of older files may be above.
        log.directory.make_checkpoints_urgent()
    _begin_anew(log, offset)


def return_to_start(log: "PartitionLog", offset: int) -> None:
    """Nothing could be appended from below the start, `offset`, on: the log is empty there again. Needs no room."""
    for segment in log.segments:
        _remove_segment(log, segment)
    log.segments = ()
    log.active = None
    log.end_offset = log.synced_end_offset = offset


def _drop_all(log: "PartitionLog", offset: int) -> None:
    if log.segments:
        _begin(log, min(log.segments[0].base_offset, offset), offset, removes_segments=True)
    for segment in reversed(log.segments):  # last first: whatever a crash leaves has no gap
        _remove_segment(log, segment)
    log.segments = ()
    log.active = None
    log.size_bytes = 0
    log.end_offset = log.synced_end_offset = offset


def _begin_anew(log: "PartitionLog", offset: int) -> None:
    from penstock.log.appending import create_first_segment

    log.directory.lower_cleaned_offset(log.name, offset)
    log.leader_epochs.clear()
    log.producers.clear()
    _remove_snapshots_above(log, -1)
    try:
        create_first_segment(log, offset, log.directory.clock.now_ms())
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:  # without room the next append makes it, as in a new log
            raise


def _begin(log: "PartitionLog", recovery_point: int, end_offset: int, *, removes_segments: bool) -> None:
    """Raises `NoRoom` when nothing was changed. While segments go, nothing from `recovery_point` on is certain."""
    synced_end_offset = log.synced_end_offset
    log.generation += 1
    log.clean_end_offset = -1
    log.synced_end_offset = min(synced_end_offset, recovery_point)
    log.directory.make_checkpoints_urgent()
    try:
        if removes_segments:
            log.directory.write_checkpoints()
        else:
            log.directory.lower_recovery_point(log.name, end_offset)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:
            raise
        if removes_segments:
            log.synced_end_offset = synced_end_offset
            raise NoRoom(log.name, log.directory.path) from error
        # It is cut all the same; after a crash it would be taken for damaged, and fetched anew.


def _remove_segment(log: "PartitionLog", segment: Segment) -> None:
    directory = log.directory
    log.unsynced.forget_closed(segment)
    directory.files.release(segment)
    directory.cache.forget(segment.path + ".index")
    for suffix in SEGMENT_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            directory.disk.remove(segment.path + suffix)


def _truncate_segment(log: "PartitionLog", segment: Segment, position: int, end_offset: int) -> None:
    """Cuts the segment where a batch begins, with which the log ends at `end_offset`, and makes it the active one."""
    directory = log.directory
    try:
        segment.flush_indexes(directory.disk, directory.cache)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:  # without room the newest entries are given up: indexes are sparse
            raise
    file = directory.files.open(segment)
    file.truncate(position)
    file.sync()  # what was below `offset` counts as synced, so what lay behind it must not come back
    segment.size_bytes = position
    segment.begun_bytes = min(segment.begun_bytes, position)
    segment.dirty = False
    segment.marks = None
    segment.is_full = False
    log.unsynced.forget_closed(segment)
    _truncate_indexes(directory.disk, segment, position, end_offset)
    cut_aborted(log, segment, end_offset)
    directory.cache.forget(segment.path + ".index")


def _end_offset_before(log: "PartitionLog", segment: Segment, position: int, offset: int) -> int:
    """Where the log ends when everything from `position` on goes: the base of the batch that went, or `offset`. Where
    compaction left a gap in front of that, or a segment is gone, its last batch ends sooner: a restart would find the
    end there."""
    if position >= segment.size_bytes or log.name in log.directory.cleaned_offsets:
        return end_offset_before(segment, position, log.directory.files, log.directory.cache)
    base_offset = int.from_bytes(log.directory.files.open(segment).read_at(position, 8), "big")
    return min(base_offset, offset)


def _truncate_indexes(disk: Disk, segment: Segment, position: int, end_offset: int) -> None:
    """Keeps only entries of batches that are still there, and starts appending behind them. Needs no room."""
    positions = segment.read_offset_entries(disk).positions
    keep = sum(1 for at in positions if at < position)
    positions = positions[:keep]
    times = [
        (timestamp, relative)
        for timestamp, relative in decode_all(segment.read_time_entries(disk))
        if segment.base_offset + relative < end_offset
    ]
    _shorten(disk, segment.path + ".index", keep * OFFSET_ENTRY_BYTES)
    _shorten(disk, segment.path + ".timeindex", len(times) * TIME_ENTRY_BYTES)
    last_timestamp, last_relative = times[-1] if times else (NO_TIMESTAMP, 0)
    segment.become_active(keep, len(times) * TIME_ENTRY_BYTES, last_timestamp)
    segment.bytes_since_index = position - (positions[-1] if keep else 0)
    segment.max_timestamp = last_timestamp
    segment.max_timestamp_offset = segment.base_offset + last_relative
    # The index is sparse: batches behind its last entry may hold a larger timestamp.
    file = disk.open(segment.path + ".log", writable=False)
    for batch in SegmentScan(file, position, segment.base_offset, positions[-1] if keep else 0):
        if batch.header.max_timestamp > segment.max_timestamp:
            segment.max_timestamp = batch.header.max_timestamp
            segment.max_timestamp_offset = batch.header.last_offset


def _shorten(disk: Disk, path: str, size: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # there was no room for it
        file = disk.open(path)
        file.truncate(size)
        file.close()


def _remove_snapshots_above(log: "PartitionLog", offset: int) -> None:
    log.unsynced.forget_small_files(offset)
    disk = log.directory.disk
    if not disk.exists(log.path):
        return
    for name in disk.list_dir(log.path):
        if name.endswith(".snapshot") and int(name[: -len(".snapshot")]) > offset:
            disk.remove(f"{log.path}/{name}")
    # If one came back after a crash, it would describe producers of a history that is gone.
    disk.sync_dir(log.path)
