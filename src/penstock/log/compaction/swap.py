"""Putting a compacted segment in the place of the segments it stands for, so that a crash leaves one or the other.

The files of the new segment are complete and synced under `.cleaned`. On the loop they are renamed to `.swap`, the
log file last: from that rename on the swap counts, and a start after a crash finishes it. Then the old segments but
the first are renamed to `.deleted`, and the `.swap` files take the first one's names, again the log file last. File
systems keep the order of renames within a directory, so a crash leaves a prefix of these steps. A full disk may
refuse a new name: until the first old file is replaced the steps are taken back, last first; after that the directory
has failed, and the next start goes on.

Readers on the loop see all or nothing of a swap. Readers in the pool look again when one came in between
(`lookup.look_up`).
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.log.compaction.cleaned_file import INDEX_SUFFIXES, SWAP_SUFFIX, CleanedSegment
from penstock.log.errors import CorruptSegment
from penstock.log.scan import SegmentScan
from penstock.log.segment import Segment
from penstock.model.ports import Disk, DiskFile

if TYPE_CHECKING:
    from penstock.log.directory import LogDirectory
    from penstock.log.partition_log import PartitionLog

_DELETED_SUFFIX = ".deleted"


def swap_in(log: "PartitionLog", cleaned: CleanedSegment) -> list[DiskFile] | None:
    """Called on the loop: some renames. None when the old segments are no longer there, and nothing was done.

    The names are durable, and what is left of the old segments is gone, after `settle_swap`. It also takes the file
    that was replaced: letting go of the last reference to a big file takes time, so that is done in the pool.
    """
    first = next((at for at, s in enumerate(log.segments) if s.base_offset == cleaned.base_offset), -1)
    old = log.segments[first : first + len(cleaned.old_bases)]
    if first < 0 or [segment.base_offset for segment in old] != cleaned.old_bases or log.active in old:
        return None
    directory = log.directory
    replaced = [directory.files.open(old[0])]
    segment = _as_segment(log, cleaned)
    with directory.swapping():
        _rename_files(directory, segment.path, cleaned)
        for each in old:
            directory.files.release(each)
            directory.cache.forget(each.path + ".index")
        log.segments = (*log.segments[:first], segment, *log.segments[first + len(old) :])
        log.size_bytes += segment.size_bytes - sum(each.size_bytes for each in old)
    return replaced


def _as_segment(log: "PartitionLog", cleaned: CleanedSegment) -> Segment:
    segment = Segment(log.path, cleaned.base_offset, cleaned.size_bytes, created_ms=log.directory.clock.now_ms())
    segment.first_timestamp = cleaned.first_timestamp
    segment.max_timestamp = cleaned.max_timestamp
    segment.max_timestamp_offset = cleaned.max_timestamp_offset
    return segment


def _rename_files(directory: "LogDirectory", path: str, cleaned: CleanedSegment) -> None:
    suffixes = [*(INDEX_SUFFIXES if cleaned.has_txn_index else INDEX_SUFFIXES[:2]), ".log"]
    steps = [(path + suffix + cleaned.cleaned_suffix, path + suffix + SWAP_SUFFIX) for suffix in suffixes]
    for base in cleaned.old_bases[1:]:
        old = f"{path.rpartition('/')[0]}/{base:020d}.log"
        steps.append((old, old + _DELETED_SUFFIX))
    for at, (old, new) in enumerate(steps):
        try:
            directory.disk.rename(old, new)
        except OSError:
            with _nothing_left_half_done(directory):
                for before, after in reversed(steps[:at]):
                    directory.disk.rename(after, before)
            raise
    with _nothing_left_half_done(directory):
        for suffix in suffixes:
            directory.disk.rename(path + suffix + SWAP_SUFFIX, path + suffix)


@contextlib.contextmanager
def _nothing_left_half_done(directory: "LogDirectory") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        directory.fail(error)
        raise


def settle_swap(disk: Disk, path: str, cleaned: CleanedSegment, replaced: list[DiskFile]) -> None:
    """Blocking. Makes a swap durable and removes what is left of the old segments. Readers hold their files open."""
    disk.sync_dir(path)
    replaced.clear()
    for base in cleaned.old_bases[1:]:
        for suffix in (f".log{_DELETED_SUFFIX}", *INDEX_SUFFIXES, ".snapshot"):
            with contextlib.suppress(FileNotFoundError):
                disk.remove(f"{path}/{base:020d}{suffix}")
    txn_index = f"{path}/{cleaned.base_offset:020d}.txnindex"
    if cleaned.has_txn_index and disk.size(txn_index) == 0:
        disk.remove(txn_index)


def finish_swaps(disk: Disk, path: str) -> None:
    """Blocking, at start. Completes swaps that a crash has interrupted; what else is unfinished is removed later."""
    names = disk.list_dir(path)
    swaps = sorted(name for name in names if name.endswith(".log" + SWAP_SUFFIX))
    for name in swaps:
        stem = name[: -len(".log" + SWAP_SUFFIX)]
        end_offset = _end_offset(disk, f"{path}/{name}", int(stem))
        for other in names:
            if other.endswith(".log") and int(stem) < int(other[: -len(".log")]) < end_offset:
                disk.remove(f"{path}/{other}")
        for suffix in INDEX_SUFFIXES:
            if stem + suffix + SWAP_SUFFIX in names:
                disk.rename(f"{path}/{stem}{suffix}{SWAP_SUFFIX}", f"{path}/{stem}{suffix}")
        disk.rename(f"{path}/{name}", f"{path}/{stem}.log")
    if swaps:
        disk.sync_dir(path)


def _end_offset(disk: Disk, path: str, base_offset: int) -> int:
    """Where the segments end that this file stands for: a compacted segment keeps its last offset."""
    file = disk.open(path, writable=False)
    scan = SegmentScan(file, file.size(), base_offset)
    for _ in scan:
        pass
    file.close()
    if scan.fault is not None:
        raise CorruptSegment(path, scan.end_position, scan.fault)
    return scan.next_offset
