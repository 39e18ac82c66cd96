"""The sparse offset index of a segment: 8-byte entries (relative offset, position), both int32.

As in Kafka an entry names the *last* offset of a batch and the position at which that batch starts. Only the
active segment has an `OffsetIndex` to append to; its newest entries stay in memory and go to the file in blocks.
Everything in the file is looked up through the bounded `IndexCache`, so an idle segment keeps nothing in memory.
"""

import sys
import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict
from typing import NamedTuple

from penstock.model.ports import Disk

ENTRY_BYTES = 8
FLUSH_ENTRIES = 512
_SWAP = sys.byteorder == "little"


class OffsetEntries(NamedTuple):
    """Decoded entries, as two parallel arrays that `bisect` can search."""

    offsets: "array[int]"
    positions: "array[int]"

    def floor_by_offset(self, relative_offset: int) -> int:
        """Position from which a search for `relative_offset` may start; 0 when no entry precedes it."""
        at = bisect_right(self.offsets, relative_offset)
        return self.positions[at - 1] if at else 0

    def floor_by_position(self, position: int) -> int:
        """The last indexed batch start that is not behind `position`."""
        at = bisect_right(self.positions, position)
        return self.positions[at - 1] if at else 0


def decode_entries(content: bytes) -> OffsetEntries:
    both = array("i")
    both.frombytes(content[: len(content) - len(content) % ENTRY_BYTES])
    if _SWAP:
        both.byteswap()
    return OffsetEntries(both[0::2], both[1::2])


def encode_entries(offsets: "array[int]", positions: "array[int]") -> bytes:
    both = array("i", bytes(ENTRY_BYTES * len(offsets)))
    both[0::2] = offsets
    both[1::2] = positions
    if _SWAP:
        both.byteswap()
    return both.tobytes()


class IndexCache:
    """Decoded index files, least recently used out first. Used from the loop and from the pool."""

    __slots__ = ("_bytes", "_capacity_bytes", "_disk", "_entries", "_forgotten", "_lock")

    def __init__(self, disk: Disk, capacity_bytes: int = 32 << 20) -> None:
        self._disk = disk
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._forgotten = 0
        self._entries: OrderedDict[str, OffsetEntries] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> OffsetEntries:
        """Blocking for a file not seen lately (a read of at most `segment.index.bytes`)."""
        with self._lock:
            entries = self._entries.get(path)
            if entries is not None:
                self._entries.move_to_end(path)
                return entries
            forgotten = self._forgotten
        try:
            file = self._disk.open(path, writable=False)
        except FileNotFoundError:
            return OffsetEntries(array("i"), array("i"))
        entries = decode_entries(file.read_at(0, file.size()))
        file.close()
        with self._lock:
            if forgotten != self._forgotten:  # the file may have been replaced since it was read
                return entries
            self.__forget(path)
            self._entries[path] = entries
            self._bytes += len(entries.offsets) * ENTRY_BYTES
            while self._bytes > self._capacity_bytes and len(self._entries) > 1:
                self.__forget(next(iter(self._entries)))
        return entries

    def extend(self, path: str, offsets: "array[int]", positions: "array[int]") -> None:
        """Entries were appended to the file: keep a cached copy complete."""
        with self._lock:
            entries = self._entries.get(path)
            if entries is not None:
                entries.positions.extend(positions)
                entries.offsets.extend(offsets)
                self._bytes += len(offsets) * ENTRY_BYTES

    def forget(self, path: str) -> None:
        with self._lock:
            self._forgotten += 1
            self.__forget(path)

    def __forget(self, path: str) -> None:
        entries = self._entries.pop(path, None)
        if entries is not None:
            self._bytes -= len(entries.offsets) * ENTRY_BYTES


class OffsetIndex:
    """The appendable index of the active segment."""

    __slots__ = ("_entries", "_flushed", "path")

    def __init__(self, path: str, flushed_entries: int = 0) -> None:
        self.path = path
        self._flushed = flushed_entries
        self._entries = OffsetEntries(array("i"), array("i"))

    def __len__(self) -> int:
        return self._flushed + len(self._entries.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self._entries.offsets.append(relative_offset)
        self._entries.positions.append(position)

    @property
    def wants_flush(self) -> bool:
        return len(self._entries.offsets) >= FLUSH_ENTRIES

    def floor_by_offset(self, relative_offset: int, cache: IndexCache) -> int:
        tail = self._entries
        if not self._flushed or (tail.offsets and relative_offset >= tail.offsets[0]):
            return tail.floor_by_offset(relative_offset)
        return cache.get(self.path).floor_by_offset(relative_offset)

    def floor_by_position(self, position: int, cache: IndexCache) -> int:
        tail = self._entries
        if not self._flushed or (tail.positions and position >= tail.positions[0]):
            return tail.floor_by_position(position)
        return cache.get(self.path).floor_by_position(position)

    def flush(self, disk: Disk, cache: IndexCache) -> None:
        """Writes what is not in the file yet (page cache only). Creates the file even when there is nothing."""
        offsets, positions = self._entries
        file = disk.open(self.path, create=True)
        if offsets:
            file.write_at(self._flushed * ENTRY_BYTES, (encode_entries(offsets, positions),))
        file.close()
        cache.extend(self.path, offsets, positions)
        self._flushed += len(offsets)
        self._entries = OffsetEntries(array("i"), array("i"))


def write_index(disk: Disk, path: str, offsets: "array[int]", positions: "array[int]") -> None:
    """Blocking. Replaces an index that was rebuilt from its segment, and syncs it."""
    file = disk.open(path, create=True)
    file.truncate(0)
    if offsets:
        file.write_at(0, (encode_entries(offsets, positions),))
    file.sync()
    file.close()
