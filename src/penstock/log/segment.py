"""One segment: a file of batches, its indexes, and what is known of it in memory.

A closed segment keeps a few numbers; the active one also keeps the unwritten ends of its indexes. The file is
open only while it is used (see `open_files`). `marks` remembers where recent batches start, so that readers who
follow the log, or walk through it, need neither index nor scan.
"""

import threading
from collections import OrderedDict
from typing import NamedTuple

from penstock.log.checkpoints import read_whole
from penstock.log.config import LogConfig
from penstock.log.offset_index import IndexCache, OffsetEntries, OffsetIndex, decode_entries
from penstock.log.time_index import TimeIndex, read_last_entry
from penstock.log.txn_index import AbortedTransaction
from penstock.log.write_back import PIECE_BYTES
from penstock.model.ports import Disk, DiskFile
from penstock.records.batch import NO_TIMESTAMP

MAX_RELATIVE_OFFSET = 2**31 - 1
MAX_MARKS = 128
_MAX_ROTATIONS = 64


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class Segment:
    __slots__ = (
        "aborted",
        "base_offset",
        "begun_bytes",
        "bytes_since_index",
        "created_ms",
        "dirty",
        "file",
        "first_timestamp",
        "is_full",
        "marks",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "path",
        "size_bytes",
        "time_index",
        "used",
    )

    def __init__(self, directory: str, base_offset: int, size_bytes: int = 0, *, created_ms: int = 0) -> None:
        self.path = f"{directory}/{base_offset:020d}"
        """Path without suffix; the files are `.log`, `.index`, `.timeindex`, `.txnindex`."""
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.created_ms = created_ms
        self.file: DiskFile | None = None
        self.dirty = False
        """Holds bytes, or is closed and has indexes, that are not on stable storage."""
        self.used = False
        """Used since the open-file clock last passed."""
        self.marks: dict[int, int] | None = None
        """Batch starts: base offset → position. Only a shortcut; any entry may be missing."""
        self.aborted: list[AbortedTransaction] | None = None
        """What its transaction index holds, once somebody has looked."""
        self.bytes_since_index = 0
        self.begun_bytes = size_bytes
        """How far the kernel was asked to write the file, or will be by a sync; see `write_back`."""
        self.first_timestamp = NO_TIMESTAMP
        """Max timestamp of the first batch: rolling by time counts from it."""
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.is_full = False
        """An index has no room for another entry."""
        self.offset_index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None

    def become_active(self, offset_entries: int = 0, time_bytes: int = 0, last_timestamp: int = NO_TIMESTAMP) -> None:
        """Appends go here from now on; the files already hold that many entries."""
        self.offset_index = OffsetIndex(self.path + ".index", offset_entries)
        self.time_index = TimeIndex(self.path + ".timeindex", time_bytes, last_timestamp)

    def become_closed(self) -> None:
        """Lets go of the index ends, which were flushed before."""
        self.offset_index = None
        self.time_index = None

    def flush_indexes(self, disk: Disk, cache: IndexCache, *, complete: bool = False) -> None:
        """Writes index entries to the files (page cache only); on an error they stay in memory.

        `complete` also records the largest timestamp, as Kafka does when a segment is closed. Times come first: on a
        full disk they may reach further than positions, never the other way round.
        """
        if self.offset_index is None or self.time_index is None:
            return
        if complete and self.max_timestamp >= 0:
            self.time_index.append_if_newer(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.time_index.flush(disk)
        self.offset_index.flush(disk, cache)

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int, config: LogConfig) -> bool:
        """Bookkeeping for one batch written at `position`; True when there is enough for `hand_over`."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        since, self.bytes_since_index = self.bytes_since_index, self.bytes_since_index + size
        if since <= config.index_interval_bytes:
            return False
        return self._add_index_entry(position, size, last_offset, config)

    def _add_index_entry(self, position: int, size: int, last_offset: int, config: LogConfig) -> bool:
        assert self.offset_index is not None
        assert self.time_index is not None
        self.offset_index.append(last_offset - self.base_offset, position)
        if self.max_timestamp >= 0:
            self.time_index.append_if_newer(self.max_timestamp, self.max_timestamp_offset - self.base_offset)
        self.bytes_since_index = size
        self.is_full = (
            len(self.offset_index) >= config.max_offset_entries or len(self.time_index) >= config.max_time_entries
        )
        return self.offset_index.wants_flush or position - self.begun_bytes >= PIECE_BYTES

    def read_offset_entries(self, disk: Disk) -> OffsetEntries:
        """Blocking. All entries in the file."""
        return decode_entries(read_whole(disk, self.path + ".index") or b"")

    def read_time_entries(self, disk: Disk) -> bytes:
        """Blocking. All entries in the file."""
        return read_whole(disk, self.path + ".timeindex") or b""

    def floor_by_offset(self, offset: int, cache: IndexCache) -> int:
        """A batch start from which a forward scan finds `offset`."""
        relative_offset = offset - self.base_offset
        index = self.offset_index  # once: the pool looks while the loop may close the segment
        if index is not None:
            return index.floor_by_offset(relative_offset, cache)
        return cache.get(self.path + ".index").floor_by_offset(relative_offset)

    def floor_by_position(self, position: int, cache: IndexCache) -> int:
        """The last indexed batch start at or before `position`."""
        index = self.offset_index
        if index is not None:
            return index.floor_by_position(position, cache)
        return cache.get(self.path + ".index").floor_by_position(position)

    def mark(self, offset: int, position: int) -> None:
        marks = self.marks
        if marks is None:
            self.marks = {offset: position}
            return
        if len(marks) >= MAX_MARKS:
            marks = self.marks = dict(list(marks.items())[MAX_MARKS // 2 :])
        marks[offset] = position

    def largest_timestamp(self, disk: Disk) -> TimestampOffset:
        """Largest timestamp and the last offset of its batch; a closed segment asks its time index once."""
        if self.max_timestamp == NO_TIMESTAMP and self.time_index is None:
            last = read_last_entry(disk, self.path + ".timeindex")
            if last is not None:
                self.max_timestamp = last[0]
                self.max_timestamp_offset = self.base_offset + last[1]
        return TimestampOffset(self.max_timestamp, self.max_timestamp_offset)

    def retention_timestamp(self, disk: Disk) -> int:
        """The time retention counts from; records without timestamps age by the file's time."""
        timestamp = self.largest_timestamp(disk).timestamp
        return timestamp if timestamp >= 0 else disk.modified_ms(self.path + ".log")


class OpenFiles:
    """Bounds the segment files that are open at once, by the clock algorithm.

    Evicting drops the reference; the descriptor closes when the last span that uses it is gone. Segments with
    unsynced bytes stay open where possible, because a later descriptor might not report an earlier write error.
    """

    __slots__ = ("_capacity", "_disk", "_lock", "_segments")

    def __init__(self, disk: Disk, capacity: int = 4096) -> None:
        self._disk = disk
        self._capacity = capacity
        self._segments: OrderedDict[Segment, None] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._segments)

    def open(self, segment: Segment, *, create: bool = False) -> DiskFile:
        """The segment's file, opened if need be. Also called from the pool."""
        file = segment.file
        if file is None:
            file = self._disk.open(segment.path + ".log", create=create)
            with self._lock:
                segment.file = file
                self._segments[segment] = None
                if len(self._segments) > self._capacity:
                    self._evict(segment)
        segment.used = True
        return file

    def release(self, segment: Segment) -> None:
        """Lets go of the file; spans that hold it keep it alive."""
        with self._lock:
            self._segments.pop(segment, None)
            segment.file = None
            segment.marks = None

    def _evict(self, keep: Segment) -> None:
        rotations = 0
        while len(self._segments) > self._capacity:
            segment = next(iter(self._segments))
            if segment is keep or (rotations < _MAX_ROTATIONS and (segment.used or segment.dirty)):
                segment.used = False
                self._segments.move_to_end(segment)
                rotations += 1
                continue
            del self._segments[segment]
            segment.file = None
            segment.marks = None
