"""The sparse time index of a segment: 12-byte entries (timestamp int64, relative offset int32).

An entry says: no record before this offset's end has a larger timestamp. Timestamps strictly increase from entry
to entry, offsets never decrease. The offset is the last offset of the batch that holds the timestamp.
"""

import struct

from penstock.model.ports import Disk
from penstock.records.batch import NO_TIMESTAMP

ENTRY_BYTES = 12
FLUSH_BYTES = 512 * ENTRY_BYTES
_ENTRY = struct.Struct(">qi")


class TimeIndex:
    """The appendable index of the active segment; the newest entries wait in memory."""

    __slots__ = ("_flushed_bytes", "_tail", "last_timestamp", "path")

    def __init__(self, path: str, flushed_bytes: int = 0, last_timestamp: int = NO_TIMESTAMP) -> None:
        self.path = path
        self._flushed_bytes = flushed_bytes
        self._tail = bytearray()
        self.last_timestamp = last_timestamp

    def __len__(self) -> int:
        return (self._flushed_bytes + len(self._tail)) // ENTRY_BYTES

    def append_if_newer(self, timestamp: int, relative_offset: int) -> None:
        if timestamp > self.last_timestamp:
            self._tail += _ENTRY.pack(timestamp, relative_offset)
            self.last_timestamp = timestamp

    def flush(self, disk: Disk) -> None:
        """Writes what is not in the file yet (page cache only). Creates the file even when there is nothing."""
        file = disk.open(self.path, create=True)
        if self._tail:
            file.write_at(self._flushed_bytes, (bytes(self._tail),))
        file.close()
        self._flushed_bytes += len(self._tail)
        self._tail = bytearray()

    def content(self, disk: Disk) -> bytes:
        """Blocking. All entries, from the file and from memory; safe to call from the pool."""
        flushed_bytes = self._flushed_bytes  # first: a flush in between may then only hide entries, never repeat them
        tail = bytes(self._tail)
        return _read_file(disk, self.path, flushed_bytes) + tail


def read_time_index(disk: Disk, path: str) -> bytes:
    """Blocking. The entries of a closed segment."""
    return _read_file(disk, path, None)


def read_last_entry(disk: Disk, path: str) -> tuple[int, int] | None:
    """Blocking (one small read). `(timestamp, relative offset)` of the last entry."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    count = file.size() // ENTRY_BYTES
    raw = file.read_at((count - 1) * ENTRY_BYTES, ENTRY_BYTES) if count else b""
    file.close()
    if len(raw) != ENTRY_BYTES:
        return None
    timestamp, relative_offset = _ENTRY.unpack(raw)
    return timestamp, relative_offset


def floor_offset(content: bytes, timestamp: int) -> int:
    """Relative offset at which a search for the first record at or after `timestamp` may start."""
    low, high = 0, len(content) // ENTRY_BYTES
    while low < high:  # first entry whose timestamp is >= the target
        middle = (low + high) // 2
        if _ENTRY.unpack_from(content, middle * ENTRY_BYTES)[0] < timestamp:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return 0
    relative_offset: int = _ENTRY.unpack_from(content, (low - 1) * ENTRY_BYTES)[1]
    return relative_offset


def decode_all(content: bytes) -> list[tuple[int, int]]:
    whole = len(content) // ENTRY_BYTES * ENTRY_BYTES
    return list(_ENTRY.iter_unpack(content[:whole]))


def encode_entry(timestamp: int, relative_offset: int) -> bytes:
    return _ENTRY.pack(timestamp, relative_offset)


def write_time_index(disk: Disk, path: str, content: bytes) -> None:
    """Blocking. Replaces an index that was rebuilt from its segment, and syncs it."""
    file = disk.open(path, create=True)
    file.truncate(0)
    if content:
        file.write_at(0, (content,))
    file.sync()
    file.close()


def _read_file(disk: Disk, path: str, size: int | None) -> bytes:
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return b""
    content = file.read_at(0, file.size() if size is None else size)
    file.close()
    return content
