"""Writing a compacted segment: the log file and its indexes, all under names that end in `.<tag>.cleaned`.

Everything is synced, and so are the names, before anybody hears of the segment.
"""

from array import array
from collections.abc import Iterator

import msgspec

from penstock.log.offset_index import encode_entries
from penstock.log.segment import MAX_RELATIVE_OFFSET
from penstock.log.time_index import encode_entry
from penstock.log.txn_index import AbortedTransaction, encode_aborted
from penstock.model.ports import Buffer, Disk, DiskFile
from penstock.records.batch import NO_TIMESTAMP

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")

_WRITE_BYTES = 1 << 20


class CleanedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A compacted segment on disk, and the segments it stands for."""

    base_offset: int
    cleaned_suffix: str
    """What the names of its files end in until they are swapped in."""
    old_bases: list[int]
    size_bytes: int
    first_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    has_txn_index: bool


class CleanedFile:
    """Blocking. Batches go in, in order; `finish` makes them a segment."""

    def __init__(self, disk: Disk, path: str, base_offset: int, tag: str, index_interval_bytes: int) -> None:
        self._disk = disk
        self._suffix = f".{tag}{CLEANED_SUFFIX}"
        self._directory = path
        self._path = f"{path}/{base_offset:020d}"
        self._interval = index_interval_bytes
        self._base_offset = base_offset
        self._file: DiskFile | None = None
        self._pending = bytearray()
        self._bytes_since_index = 0
        self._offsets, self._positions = array("i"), array("i")
        self._times = bytearray()
        self._last_time = NO_TIMESTAMP
        self.size_bytes = 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.aborted: list[AbortedTransaction] = []

    @property
    def is_started(self) -> bool:
        return self._file is not None

    def start(self) -> None:
        self._file = self._disk.open(f"{self._path}.log{self._suffix}", create=True)
        self._file.truncate(0)

    def note(self, size: int, last_offset: int, max_timestamp: int) -> None:
        """Index entries for a batch at the present end; the rules are those of `Segment.note_batch`."""
        position = self.size_bytes
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        since, self._bytes_since_index = self._bytes_since_index, self._bytes_since_index + size
        if since > self._interval and position <= MAX_RELATIVE_OFFSET:
            self._offsets.append(last_offset - self._base_offset)
            self._positions.append(position)
            self._note_time()
            self._bytes_since_index = size
        self.size_bytes += size

    def _note_time(self) -> None:
        if self.max_timestamp > self._last_time:
            self._times += encode_entry(self.max_timestamp, self.max_timestamp_offset - self._base_offset)
            self._last_time = self.max_timestamp

    def write(self, data: Buffer) -> None:
        """A batch that `note` was told of just now."""
        self._pending += data
        if len(self._pending) >= _WRITE_BYTES:
            self._flush()

    def copy(self, source: DiskFile, size_bytes: int) -> Iterator[int]:
        """Starts the file with the first bytes of another, which `note` has been told of already."""
        self.start()
        assert self._file is not None
        for position in range(0, size_bytes, _WRITE_BYTES):
            data = source.read_at(position, min(_WRITE_BYTES, size_bytes - position))
            self._file.write_at(position, (data,))
            yield len(data)

    def _flush(self) -> None:
        assert self._file is not None
        if self._pending:
            self._file.write_at(self.size_bytes - len(self._pending), (self._pending,))
            self._pending = bytearray()

    def finish(self, old_bases: list[int], *, with_txn_index: bool) -> CleanedSegment:
        """`with_txn_index`: even an empty index is written, because an old one must be replaced."""
        self._flush()
        assert self._file is not None
        self._file.sync()
        self._file.close()
        if self.max_timestamp >= 0:
            self._note_time()
        self._write_index(".index", encode_entries(self._offsets, self._positions))
        self._write_index(".timeindex", bytes(self._times))
        if with_txn_index or self.aborted:
            self._write_index(".txnindex", encode_aborted(self.aborted))
        self._disk.sync_dir(self._directory)
        return CleanedSegment(
            base_offset=self._base_offset,
            cleaned_suffix=self._suffix,
            old_bases=old_bases,
            size_bytes=self.size_bytes,
            first_timestamp=self.first_timestamp,
            max_timestamp=self.max_timestamp,
            max_timestamp_offset=self.max_timestamp_offset,
            has_txn_index=with_txn_index or bool(self.aborted),
        )

    def _write_index(self, suffix: str, content: bytes) -> None:
        file = self._disk.open(self._path + suffix + self._suffix, create=True)
        file.truncate(0)
        if content:
            file.write_at(0, (content,))
        file.sync()
        file.close()


def remove_cleaned(disk: Disk, path: str) -> None:
    """Blocking. Removes what an interrupted round has left of its unfinished segments."""
    for name in disk.list_dir(path):
        if name.endswith(CLEANED_SUFFIX):
            disk.remove(f"{path}/{name}")
