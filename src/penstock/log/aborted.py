"""Which transactions a read-committed reader must skip: the aborted ones that reach into what it reads.

Entries stand in the transaction index of the segment with the abort marker, which may lie behind the segment that is
read. They are kept in memory once looked at; segments without aborted transactions cost one look at the file system.
"""

from typing import TYPE_CHECKING

from penstock.log.reading import segment_holding
from penstock.log.sync import NO_SPACE_ERRORS, SyncPlan
from penstock.log.txn_index import AbortedTransaction, append_aborted, encode_aborted, read_aborted, write_aborted

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment

_SUFFIX = ".txnindex"


def aborted_transactions(log: "PartitionLog", start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Producer id and first offset of every aborted transaction with records in `start_offset`…`end_offset`.

    A read lies within one segment, so the end is brought forward to the end of that segment: more than is needed, but
    never the history of the whole log.
    """
    segments = log.segments
    at = max(segment_holding(segments, start_offset), 0)
    if at + 1 < len(segments):
        end_offset = min(end_offset, segments[at + 1].base_offset)
    found: list[tuple[int, int]] = []
    for segment in segments[at:]:
        for entry in aborted_entries(log, segment):
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= end_offset:
                return found
    return found


def note_aborted(log: "PartitionLog", segment: "Segment", entry: AbortedTransaction) -> None:
    """Adds an entry. On a full disk the whole index is written with the next sync that finds room."""
    entries = aborted_entries(log, segment)
    entries.append(entry)
    name = f"{segment.base_offset:020d}{_SUFFIX}"
    try:
        if not log.unsynced.waits(name):
            append_aborted(log.directory.disk, segment.path + _SUFFIX, entry)
            return
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:
            log.directory.fail(error)
            return
    log.unsynced.add_small_file(name, encode_aborted(entries))


def cut_aborted(log: "PartitionLog", segment: "Segment", end_offset: int) -> None:
    """The segment was truncated: only markers below `end_offset` are left. Needs no room."""
    entries = aborted_entries(log, segment)
    kept = segment.aborted = [entry for entry in entries if entry.last_offset < end_offset]
    name = f"{segment.base_offset:020d}{_SUFFIX}"
    if log.unsynced.waits(name):
        log.unsynced.add_small_file(name, encode_aborted(kept))
    elif len(kept) < len(entries):
        write_aborted(log.directory.disk, segment.path + _SUFFIX, kept)


def renew_indexes(log: "PartitionLog", plan: SyncPlan) -> None:
    """The log was truncated under a sync: the indexes that it wrote may hold what went. Those in front of the cut are
    left alone: compaction may replace them before the next sync, which would bring them back."""
    names = [name for name, _ in plan.small_files if name.endswith(_SUFFIX)]
    names = [name for name in names if int(name[: -len(_SUFFIX)]) >= plan.cut_offset]
    plan.small_files = [each for each in plan.small_files if each[0] not in names]
    segments = {f"{segment.base_offset:020d}{_SUFFIX}": segment for segment in log.segments}
    disk = log.directory.disk
    for name in names:
        if name in segments:
            log.unsynced.add_small_file(name, encode_aborted(aborted_entries(log, segments[name])))
        elif disk.exists(f"{log.path}/{name}"):
            disk.remove(f"{log.path}/{name}")


def aborted_entries(log: "PartitionLog", segment: "Segment") -> list[AbortedTransaction]:
    """All entries of a segment. Loop-safe (a small read when nobody has looked before)."""
    if segment.aborted is None:
        path = segment.path + _SUFFIX
        disk = log.directory.disk
        segment.aborted = read_aborted(disk, path) if disk.exists(path) else []
    return segment.aborted
