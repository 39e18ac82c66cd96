"""Rebuilding from the batches themselves: indexes of a segment, producer state of a log. All of it blocks."""

import contextlib
import logging
from collections.abc import Collection, Sequence

from penstock.log.checkpoints import read_whole
from penstock.log.config import LogConfig
from penstock.log.epochs import LeaderEpochs
from penstock.log.errors import CorruptSegment
from penstock.log.offset_index import IndexCache
from penstock.log.producer_snapshot import CorruptSnapshot, decode_snapshot
from penstock.log.producers import BATCHES_KEPT, CompletedTransaction, ProducerBatch, ProducerStates
from penstock.log.replay import replay_batch
from penstock.log.scan import SegmentScan
from penstock.log.segment import Segment
from penstock.log.txn_index import AbortedTransaction, append_aborted
from penstock.model.ports import Disk
from penstock.records.batch import NO_TIMESTAMP

_LOGGER = logging.getLogger(__name__)
SNAPSHOT_SUFFIX = ".snapshot"
_REFILL_BYTES = 1 << 20


def rebuild_segment(
    segment: Segment,
    next_offset: int,
    epochs: LeaderEpochs,
    producers: ProducerStates,
    disk: Disk,
    cache: IndexCache,
    config: LogConfig,
    *,
    dense: bool,
) -> SegmentScan:
    """Walks the segment's batches up to the first bad one and rebuilds its indexes, epochs and producers from them.

    The segment is left as an active one; the file is not changed. The scan says where and why it ended. `dense`: the
    log was never compacted, so there are no gaps between offsets.
    """
    for suffix in (".index", ".timeindex", ".txnindex"):
        with contextlib.suppress(FileNotFoundError):
            disk.remove(segment.path + suffix)
    cache.forget(segment.path + ".index")
    segment.become_active()
    file = disk.open(segment.path + ".log", writable=False)
    scan = SegmentScan(file, segment.size_bytes, next_offset, epoch=epochs.latest, dense=dense)
    for batch in scan:
        header = batch.header
        if batch.position == 0:
            segment.first_timestamp = header.max_timestamp
        max_timestamp = header.max_timestamp if header.record_count else NO_TIMESTAMP  # compaction leaves empty ones
        if segment.note_batch(batch.position, header.size_bytes, header.last_offset, max_timestamp, config):
            segment.flush_indexes(disk, cache)
        completed = replay_batch(header, batch.data, batch.pos, epochs, producers)
        if completed is not None and completed.aborted:
            append_aborted(disk, segment.path + ".txnindex", aborted_entry(producers, completed))
    file.close()
    segment.flush_indexes(disk, cache)
    return scan


def aborted_entry(producers: ProducerStates, completed: CompletedTransaction) -> AbortedTransaction:
    """The index entry of a transaction that was just aborted."""
    stable = min(producers.first_open_offset(), completed.last_offset + 1)
    return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, stable)


def load_snapshot(
    disk: Disk, path: str, upto_offset: int, void: Collection[int] = ()
) -> tuple[int, ProducerStates] | None:
    """The latest readable producer snapshot at or below an offset. Damaged ones are removed on the way; those at
    `void` offsets describe a history that is gone."""
    offsets = sorted(
        (int(name[: -len(SNAPSHOT_SUFFIX)]) for name in disk.list_dir(path) if name.endswith(SNAPSHOT_SUFFIX)),
        reverse=True,
    )
    for offset in offsets:
        if offset > upto_offset or offset in void:
            continue
        file_path = f"{path}/{offset:020d}{SNAPSHOT_SUFFIX}"
        try:
            return offset, decode_snapshot(read_whole(disk, file_path) or b"")
        except CorruptSnapshot as error:
            _LOGGER.warning("%s is damaged (%s) and is removed; an older one takes its place", file_path, error)
            disk.remove(file_path)
    return None


def rebuild_producers(
    disk: Disk, path: str, segments: Sequence[Segment], end_offset: int, void: Collection[int] = ()
) -> ProducerStates:
    """Producer state as of `end_offset`: the latest snapshot that is not `void` and the batches behind it. Damage
    raises: behind it producers would be forgotten."""
    snapshot = load_snapshot(disk, path, end_offset, void)
    offset, producers = snapshot or (segments[0].base_offset, ProducerStates())
    epochs = LeaderEpochs()
    for index, segment in enumerate(segments):
        segment_end = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
        if segment_end <= offset:
            continue
        file = disk.open(segment.path + ".log", writable=False)
        scan = SegmentScan(file, segment.size_bytes, segment.base_offset)
        for batch in scan:
            if offset <= batch.header.base_offset < end_offset:
                replay_batch(batch.header, batch.data, batch.pos, epochs, producers)
        file.close()
        if scan.fault is not None:
            raise CorruptSegment(segment.path + ".log", scan.end_position, scan.fault)
    return producers


def refill_windows(disk: Disk, segments: Sequence[Segment], producers: ProducerStates, cache: IndexCache) -> None:
    """Completes the windows of last batches, of which a snapshot keeps only one, from the end of these segments."""
    seen: dict[int, list[ProducerBatch]] = {}
    room = _REFILL_BYTES
    starts: list[tuple[Segment, int]] = []
    for segment in reversed(segments):
        if room <= 0 or not len(producers):
            break
        starts.append((segment, segment.floor_by_position(segment.size_bytes - room, cache)))
        room -= segment.size_bytes
    for segment, position in reversed(starts):
        _note_windows(disk, segment, position, producers, seen)
    for producer_id, window in seen.items():
        entry = producers.get(producer_id)
        if entry is not None and window[-1].last_offset == entry.last_offset:
            entry.batches = window


def _note_windows(
    disk: Disk, segment: Segment, position: int, producers: ProducerStates, seen: dict[int, list[ProducerBatch]]
) -> None:
    file = disk.open(segment.path + ".log", writable=False)
    for batch in SegmentScan(file, segment.size_bytes, segment.base_offset, position):
        header = batch.header
        entry = producers.get(header.producer_id)
        if entry is None or header.is_control or entry.producer_epoch != header.producer_epoch:
            continue
        window = seen.setdefault(header.producer_id, [])
        window.append(
            ProducerBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )
        del window[:-BATCHES_KEPT]
    file.close()
