"""Loading a log from its directory; after a crash, recovering it.

After a clean shutdown the files are complete: only the end of the last segment is looked at. Otherwise every
segment from the recovery point on is walked batch by batch. The first bad batch there ends the log: it and
everything behind it was never acknowledged as durable, or is damage at the very end. Segments wholly below the
recovery point were synced and are never cut; if one of them is damaged the partition stays offline. A log that ends
below its recovery point, or has no files although it has one, says so: it has lost records.
"""

import contextlib
import logging
from typing import TYPE_CHECKING, ClassVar

from penstock.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    decode_epochs,
    decode_partition_metadata,
    encode_epochs,
    encode_partition_metadata,
    read_whole,
    write_atomically,
)
from penstock.log.compaction.swap import finish_swaps
from penstock.log.deletion import DELETED_SUFFIX, SEGMENT_SUFFIXES
from penstock.log.epochs import LeaderEpochs
from penstock.log.errors import CorruptSegment
from penstock.log.producer_snapshot import encode_snapshot
from penstock.log.producers import ProducerStates
from penstock.log.rebuild import (
    SNAPSHOT_SUFFIX,
    load_snapshot,
    rebuild_producers,
    rebuild_segment,
    refill_windows,
)
from penstock.log.scan import SegmentScan
from penstock.log.segment import Segment
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.log.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from penstock.log.time_index import read_last_entry
from penstock.model.ids import RESERVED_UUIDS, format_uuid
from penstock.model.ports import Disk

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

_LOGGER = logging.getLogger(__name__)
_TEMPORARY_SUFFIXES = (DELETED_SUFFIX, ".tmp", ".cleaned", ".swap")


class LoadedLog:
    """What loading yields; published to the log in one go."""

    __slots__ = (
        "active",
        "end_offset",
        "epochs_are_durable",
        "leader_epochs",
        "local_log_start_offset",
        "log_start_offset",
        "producers",
        "segments",
        "size_bytes",
        "synced_end_offset",
        "unwritten",
        "was_clean",
    )
    FIELDS: ClassVar[frozenset[str]] = frozenset(__slots__) - {"epochs_are_durable", "unwritten", "was_clean"}

    def __init__(
        self,
        segments: tuple[Segment, ...],
        start_offset: int,
        end_offset: int,
        epochs: LeaderEpochs,
        producers: ProducerStates,
    ) -> None:
        self.segments = segments
        self.active = segments[-1] if segments else None
        self.end_offset = end_offset
        self.synced_end_offset = end_offset
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        self.log_start_offset = max(start_offset, segments[0].base_offset if segments else 0)
        self.local_log_start_offset = self.log_start_offset
        self.leader_epochs = epochs
        self.producers = producers
        self.was_clean = False
        self.epochs_are_durable = True
        self.unwritten: list[tuple[str, bytes]] = []
        """Producer snapshots that found no room."""

    @staticmethod
    def empty(offset: int) -> "LoadedLog":
        return LoadedLog((), offset, offset, LeaderEpochs(), ProducerStates())


def load_log(log: "PartitionLog") -> LoadedLog:
    """Blocking. Raises `CorruptSegment` when a closed segment is damaged, OSError when the disk is."""
    directory = log.directory
    found = log.name in directory.on_disk and not _is_stray(log)
    start_offset = directory.log_start_offsets.get(log.name, 0)
    segments = _find_segments(log, start_offset) if found else []
    if not segments:
        return _load_without_segments(log, start_offset, found=found)
    loaded = _load_clean(log, segments, start_offset) if directory.was_clean else None
    if loaded is None:
        loaded = _Recovery(log, segments, start_offset).run()
    if loaded.end_offset < start_offset:
        _LOGGER.warning(
            "%s ends at %d, below its start %d; it starts again there", log.name, loaded.end_offset, start_offset
        )
        for segment in reversed(loaded.segments):
            _remove_files(log, segment.base_offset)
        return LoadedLog.empty(start_offset)
    loaded.leader_epochs.truncate_to(loaded.end_offset)
    loaded.leader_epochs.truncate_from_start(loaded.log_start_offset)
    return loaded


def _load_without_segments(log: "PartitionLog", start_offset: int, *, found: bool) -> LoadedLog:
    """The log is new, or was emptied by right; or all that was synced is gone, which its recovery point remembers.

    Where the directory is gone as well, it may be the recovery point of a deleted topic of the same name: it counts
    only if it is known to be this one's.
    """
    directory = log.directory
    recovery_point = directory.recovery_points.get(log.name, 0)
    is_own = found or directory.topic_ids.get(log.name) == log.topic_id
    if is_own and recovery_point > start_offset:
        _note_loss(log, start_offset, recovery_point)
    elif not found:
        log.high_watermark = 0
        directory.forget_durably(log.name)
        return LoadedLog.empty(0)
    if found:
        _forget_producers(log)
    directory.lower_cleaned_offset(log.name, start_offset)
    return LoadedLog.empty(start_offset)


def _note_loss(log: "PartitionLog", end_offset: int, recovery_point: int) -> None:
    log.lost_records = True
    _LOGGER.error("%s ends at offset %d, but was synced up to %d: what lay between is lost here",
                  log.path, end_offset, recovery_point)  # fmt: skip


def _forget_producers(log: "PartitionLog") -> None:
    """Snapshots of what is gone would speak of what comes in its place."""
    disk = log.directory.disk
    for name in disk.list_dir(log.path):
        if name.endswith(SNAPSHOT_SUFFIX):
            disk.remove(f"{log.path}/{name}")


def _is_stray(log: "PartitionLog") -> bool:
    """The directory belongs to another topic of the same name: move it aside, never use it."""
    disk = log.directory.disk
    path = f"{log.path}/{PARTITION_METADATA_FILE}"
    content = read_whole(disk, path)
    try:
        known = log.directory.topic_ids.get(log.name, log.topic_id)
        topic_id = decode_partition_metadata(content) if content else known
        if topic_id != log.topic_id and log.topic_id in RESERVED_UUIDS:
            # The metadata log's: nothing else ever has its place, where votes and snapshots lie, too.
            raise ValueError(f"it names topic id {format_uuid(topic_id)}")
    except ValueError as error:
        _LOGGER.warning("%s is damaged (%s) and is written anew", path, error)
        topic_id, content = log.topic_id, None
    if topic_id == log.topic_id:
        if not content:
            write_atomically(disk, path, encode_partition_metadata(log.topic_id))
        return False
    aside = log.directory.path_aside(log.name, topic_id, "stray")
    _LOGGER.warning("%s belongs to topic id %s, not %s; moved aside to %s", log.path, format_uuid(topic_id),
                    format_uuid(log.topic_id), aside)  # fmt: skip
    disk.rename(log.path, aside)
    disk.sync_dir(log.directory.path)
    return True


def _find_segments(log: "PartitionLog", start_offset: int) -> list[Segment]:
    """The segments on disk, in order, without leftovers of interrupted work and without what lies below the start."""
    disk = log.directory.disk
    path = log.path
    finish_swaps(disk, path)
    names = []
    for name in disk.list_dir(path):
        if name.endswith(_TEMPORARY_SUFFIXES):
            disk.remove(f"{path}/{name}")
        else:
            names.append(name)
    bases = sorted(int(name[:-4]) for name in names if name.endswith(".log"))
    dispensable = _count_dispensable(bases, set(names), start_offset)
    for base in bases[:dispensable]:
        _remove_files(log, base)
    del bases[:dispensable]
    known = set(bases)
    for name in names:
        stem, _, suffix = name.partition(".")
        if suffix in ("index", "timeindex", "txnindex") and int(stem) not in known:
            with contextlib.suppress(FileNotFoundError):
                disk.remove(f"{path}/{name}")
    now_ms = log.directory.clock.now_ms()
    return [Segment(path, base, disk.size(f"{path}/{base:020d}.log"), created_ms=now_ms) for base in bases]


def _count_dispensable(bases: list[int], names: set[str], start_offset: int) -> int:
    """Segments below the start that a producer snapshot replaces. The start may have become durable before it: then
    they alone tell of their producers, and go with the next retention, when recovery has written the snapshot."""
    replaced = 0
    for at, base in enumerate(bases):
        if base <= start_offset and f"{base:020d}{SNAPSHOT_SUFFIX}" in names:
            replaced = at
    return replaced


def _remove_files(log: "PartitionLog", base_offset: int) -> None:
    log.directory.cache.forget(f"{log.path}/{base_offset:020d}.index")
    for suffix in SEGMENT_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            log.directory.disk.remove(f"{log.path}/{base_offset:020d}{suffix}")


def _read_epochs(log: "PartitionLog") -> LeaderEpochs | None:
    """None when the checkpoint is missing or damaged: then the batches must tell."""
    path = f"{log.path}/{LEADER_EPOCH_FILE}"
    content = read_whole(log.directory.disk, path)
    if content is None:
        return None
    try:
        return LeaderEpochs(decode_epochs(content))
    except ValueError as error:
        _LOGGER.warning("%s is damaged (%s) and is rebuilt from the segments", path, error)
        return None


def _load_clean(log: "PartitionLog", segments: list[Segment], start_offset: int) -> LoadedLog | None:
    """None when the files are not what a clean shutdown leaves; then recovery looks closer."""
    disk, cache = log.directory.disk, log.directory.cache
    epochs = _read_epochs(log)
    active = segments[-1]
    index_path, time_path = active.path + ".index", active.path + ".timeindex"
    if epochs is None or not disk.exists(index_path) or not disk.exists(time_path):
        return None
    cache.forget(index_path)
    entries = cache.get(index_path)
    last_time = read_last_entry(disk, time_path)
    if last_time is not None:
        active.max_timestamp = last_time[0]
        active.max_timestamp_offset = active.base_offset + last_time[1]
    position = entries.positions[-1] if entries.positions else 0
    if position > active.size_bytes:
        return None
    file = disk.open(active.path + ".log", writable=False)
    first = next(iter(SegmentScan(file, active.size_bytes, active.base_offset)), None)
    active.first_timestamp = first.header.max_timestamp if first else -1
    scan = SegmentScan(file, active.size_bytes, active.base_offset, position)
    for batch in scan:
        if batch.header.max_timestamp > active.max_timestamp:
            active.max_timestamp = batch.header.max_timestamp
            active.max_timestamp_offset = batch.header.last_offset
    if scan.fault is not None:
        _LOGGER.warning("%s.log: %s at byte %d after a clean shutdown", active.path, scan.fault, scan.end_position)
        return None
    active.become_active(
        len(entries.offsets), disk.size(time_path) // TIME_ENTRY_BYTES * TIME_ENTRY_BYTES, active.max_timestamp
    )
    active.bytes_since_index = active.size_bytes - position
    end_offset = scan.next_offset
    if log.directory.recovery_points.get(log.name) != end_offset:
        return None  # not closed by the shutdown that was clean
    producers = _clean_producers(log, segments, end_offset)
    loaded = LoadedLog(tuple(segments), start_offset, end_offset, epochs, producers)
    loaded.was_clean = True
    return loaded


def _clean_producers(log: "PartitionLog", segments: list[Segment], end_offset: int) -> ProducerStates:
    disk = log.directory.disk
    snapshot = load_snapshot(disk, log.path, end_offset)
    if snapshot is None or snapshot[0] != end_offset:
        return rebuild_producers(disk, log.path, segments, end_offset)
    refill_windows(disk, segments, snapshot[1], log.directory.cache)
    return snapshot[1]


def _write_if_room(disk: Disk, path: str, content: bytes) -> bool:
    try:
        write_atomically(disk, path, content)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:
            raise
        return False
    return True


class _Recovery:
    """One recovery of one log after a crash."""

    def __init__(self, log: "PartitionLog", segments: list[Segment], start_offset: int) -> None:
        self.log = log
        self.disk = log.directory.disk
        self.segments = segments
        self.start_offset = start_offset
        self.recovery_point = log.directory.recovery_points.get(log.name, 0)
        epochs = _read_epochs(log)
        if epochs is not None and epochs.entries() and epochs.entries()[0][1] > self._first_offset():
            epochs = None  # records were deleted, and only the epochs remember it: the log start was not durable
        self.walk_from = self.recovery_point if epochs is not None else 0  # everything, to learn the epochs again
        self.epochs = epochs or LeaderEpochs()
        self.epochs_are_durable = True
        self.unwritten: dict[int, bytes] = {}
        self.dense = not log.config.is_compacted and log.name not in log.directory.cleaned_offsets

    def _first_offset(self) -> int:
        """Where the log's records begin; compaction may have left less than the log start promises."""
        file = self.disk.open(self.segments[0].path + ".log", writable=False)
        head = file.read_at(0, 8)
        file.close()
        return max(self.start_offset, int.from_bytes(head, "big", signed=True) if len(head) == 8 else 0)

    def run(self) -> LoadedLog:
        first = self._first_to_walk()
        for index in range(first):
            self._check_closed(index)
        producers = self._producers_before(first)
        end_offset = self._walk(first, producers)
        self._remove_snapshots(self.segments[first].base_offset, end_offset)
        self._make_durable(self.segments[first:], end_offset)
        if max(end_offset, self.start_offset) < self.recovery_point:  # what lies below the start went by right
            _note_loss(self.log, end_offset, self.recovery_point)
        loaded = LoadedLog(tuple(self.segments), self.start_offset, end_offset, self.epochs, producers)
        loaded.epochs_are_durable = self.epochs_are_durable
        bases = {segment.base_offset for segment in self.segments}
        loaded.unwritten = [
            (f"{base:020d}{SNAPSHOT_SUFFIX}", content) for base, content in self.unwritten.items() if base in bases
        ]
        return loaded

    def _first_to_walk(self) -> int:
        """The segment that holds the recovery point, or ends just there: then its indexes may not be synced yet."""
        at = 0
        while at + 1 < len(self.segments) and self.segments[at + 1].base_offset < self.walk_from:
            at += 1
        return at

    def _check_closed(self, index: int) -> None:
        """A synced segment must still end with a whole batch, just before its successor: a compacted one, too, keeps
        its last offset. Below the start a crash may have brought back some of what retention had removed."""
        segment = self.segments[index]
        next_base = self.segments[index + 1].base_offset
        cache = self.log.directory.cache
        file = self.disk.open(segment.path + ".log", writable=False)
        position = max(0, min(segment.floor_by_position(segment.size_bytes, cache), segment.size_bytes))
        scan = SegmentScan(file, segment.size_bytes, segment.base_offset, position)
        for _ in scan:
            pass
        file.close()
        if scan.fault is not None and position != 0:
            _LOGGER.warning("%s.index may be damaged; it is rebuilt", segment.path)
            scan = self._rebuild_indexes(segment)
        if scan.fault is not None:
            raise CorruptSegment(segment.path + ".log", scan.end_position, scan.fault)
        if scan.next_offset > next_base or scan.next_offset < next_base > self.start_offset:
            reason = f"it ends at offset {scan.next_offset}, but the next segment starts at {next_base}"
            raise CorruptSegment(segment.path + ".log", scan.end_position, reason)

    def _rebuild_indexes(self, segment: Segment) -> SegmentScan:
        cache = self.log.directory.cache
        scan = rebuild_segment(
            segment, segment.base_offset, LeaderEpochs(), ProducerStates(), self.disk, cache, self.log.config,
            dense=self.dense,
        )  # fmt: skip
        segment.flush_indexes(self.disk, cache, complete=True)
        segment.become_closed()
        self._sync_files(segment)
        return scan

    def _producers_before(self, first: int) -> ProducerStates:
        base_offset = self.segments[first].base_offset
        if first == 0:
            snapshot = load_snapshot(self.disk, self.log.path, base_offset)
            return snapshot[1] if snapshot is not None and snapshot[0] == base_offset else ProducerStates()
        producers = rebuild_producers(self.disk, self.log.path, self.segments[:first], base_offset)
        refill_windows(self.disk, self.segments[:first], producers, self.log.directory.cache)
        return producers

    def _walk(self, first: int, producers: ProducerStates) -> int:
        """Rebuilds the segments from `first` on; the first bad batch ends the log. Returns its end offset."""
        directory = self.log.directory
        next_offset = self.segments[first].base_offset
        self.epochs.truncate_to(next_offset)
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            if segment.base_offset != next_offset:
                fault = f"the log ends at {next_offset}, but the next segment starts at {segment.base_offset}"
                self._drop_behind(index - 1, fault)
                break
            self._write_snapshot(segment, producers)
            scan = rebuild_segment(
                segment, next_offset, self.epochs, producers, self.disk, directory.cache, self.log.config,
                dense=self.dense,
            )  # fmt: skip
            next_offset = scan.next_offset
            if scan.has_gaps:  # perhaps nobody came to sync, and so to tell: all that is left counts as synced now
                directory.note_gaps(self.log.name)
            if scan.fault is not None:
                if index + 1 < len(self.segments) and self.segments[index + 1].base_offset <= self.recovery_point:
                    raise CorruptSegment(segment.path + ".log", scan.end_position, scan.fault)
                self._cut(segment, scan)
                self._drop_behind(index, scan.fault)
                break
            if index + 1 < len(self.segments):
                segment.flush_indexes(self.disk, directory.cache, complete=True)
                segment.become_closed()
        active = self.segments[-1]
        if active.offset_index is None:
            self._reopen(active)
        return next_offset

    def _write_snapshot(self, segment: Segment, producers: ProducerStates) -> None:
        """On a full disk there is none before the next sync, but never an old one. What says the same stays: where
        retention has been, it may be the only file that knows these producers."""
        path = segment.path + SNAPSHOT_SUFFIX
        content = encode_snapshot(producers)
        if read_whole(self.disk, path) == content:  # it was synced before it got its name
            return
        if not _write_if_room(self.disk, path, content):
            self.unwritten[segment.base_offset] = content
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove(path)

    def _reopen(self, segment: Segment) -> None:
        """A segment that was closed is the last one now, because what followed was dropped."""
        offset_bytes = self.disk.size(segment.path + ".index")
        time_bytes = self.disk.size(segment.path + ".timeindex")
        segment.become_active(offset_bytes // 8, time_bytes, segment.max_timestamp)

    def _cut(self, segment: Segment, scan: SegmentScan) -> None:
        lost = segment.size_bytes - scan.end_position
        below = (
            " (below the recovery point: synced data is damaged)" if scan.next_offset < self.recovery_point else ""
        )
        _LOGGER.warning(
            "%s.log: %s at byte %d; the last %d bytes are cut off and the log ends at offset %d%s",
            segment.path, scan.fault, scan.end_position, lost, scan.next_offset, below,
        )  # fmt: skip
        file = self.disk.open(segment.path + ".log")
        file.truncate(scan.end_position)
        file.close()
        segment.size_bytes = scan.end_position

    def _drop_behind(self, index: int, fault: str) -> None:
        """Segments behind the end of the log were never acknowledged as durable."""
        for segment in self.segments[index + 1 :]:
            _LOGGER.warning("%s.log (%d bytes) is dropped: %s", segment.path, segment.size_bytes, fault)
            _remove_files(self.log, segment.base_offset)
        del self.segments[index + 1 :]

    def _remove_snapshots(self, first_base: int, end_offset: int) -> None:
        """Snapshots inside what was walked may describe what is no longer there."""
        bases = {segment.base_offset for segment in self.segments}
        for name in self.disk.list_dir(self.log.path):
            if name.endswith(SNAPSHOT_SUFFIX):
                offset = int(name[: -len(SNAPSHOT_SUFFIX)])
                if offset > first_base and (offset > end_offset or offset not in bases):
                    self.disk.remove(f"{self.log.path}/{name}")

    def _make_durable(self, walked: list[Segment], end_offset: int) -> None:
        """What survived in the page cache only must be on the disk before anybody relies on it."""
        try:
            self.log.directory.write_gaps(self.log.name)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:  # without room the next checkpoints, or the next sync, must do
                raise
        for segment in walked:
            self._sync_files(segment)
        self.epochs.truncate_to(end_offset)
        path = f"{self.log.path}/{LEADER_EPOCH_FILE}"
        # Without room the next sync writes them; after a crash before that, the batches tell them once more.
        self.epochs_are_durable = _write_if_room(self.disk, path, encode_epochs(self.epochs.entries()))
        self.disk.sync_dir(self.log.path)
        self.disk.sync_dir(self.log.directory.path)

    def _sync_files(self, segment: Segment) -> None:
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            with contextlib.suppress(FileNotFoundError):
                file = self.disk.open(segment.path + suffix)
                file.sync()
                file.close()
