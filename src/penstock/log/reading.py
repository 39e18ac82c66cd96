"""The read plan: which bytes of which file answer a fetch. Nothing is read here but, at times, batch headers.

A span lies in one segment and holds whole batches. Readers at the end of the log, and readers who go on where
they stopped, are answered from the segment's marks without touching index or file.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.log.errors import CorruptSegment
from penstock.log.offset_index import IndexCache
from penstock.log.segment import OpenFiles, Segment
from penstock.model.ports import Buffer, DiskFile
from penstock.records.batch import HEADER_BYTES, LENGTH_BYTES

_PREFIX = struct.Struct(">qi11xi")  # base offset, length, …, last offset delta
_PREFIX_BYTES = 27
_SCAN_BYTES = 8192


class FileSpan(NamedTuple):
    """Bytes of one file. Holding the span keeps the file readable, also after the segment was deleted."""

    file: DiskFile
    position: int
    length: int
    start_offset: int

    def read(self) -> bytes:
        """Blocking when the bytes are not in the page cache."""
        return self.file.read_at(self.position, self.length)


class _NoFile:
    """Stands in for a file where there is nothing to read."""

    __slots__ = ()

    def read_at(self, position: int, size: int) -> bytes:
        return b""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        raise OSError("an empty span cannot be written")

    def truncate(self, size: int) -> None: ...

    def size(self) -> int:
        return 0

    def sync(self) -> None: ...

    def close(self) -> None: ...

    def fileno(self) -> int:
        return -1


NO_FILE = _NoFile()


def empty_span(offset: int) -> FileSpan:
    return FileSpan(NO_FILE, 0, 0, offset)


class BatchPlace(NamedTuple):
    position: int
    base_offset: int
    last_offset: int
    size_bytes: int


def segment_holding(segments: Sequence[Segment], offset: int) -> int:
    """Index of the segment in which `offset` lies or would lie; −1 when it precedes all."""
    return bisect_right(segments, offset, key=_base_offset) - 1


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def find_batch(segment: Segment, offset: int, files: OpenFiles, cache: IndexCache) -> BatchPlace | None:
    """The first batch whose last offset is not below `offset`. May read the file."""
    file = files.open(segment)
    return _scan_to_offset(segment, file, segment.floor_by_offset(offset, cache), offset)


def locate(segment: Segment, offset: int, files: OpenFiles, cache: IndexCache) -> int:
    """Position of the first batch that holds or follows `offset`; the segment's size when there is none."""
    if offset <= segment.base_offset:
        return 0
    marks = segment.marks
    if marks is not None:
        position = marks.get(offset)
        if position is not None:
            return position
    place = find_batch(segment, offset, files, cache)
    if place is None:
        return segment.size_bytes
    if place.base_offset == offset:
        segment.mark(offset, place.position)
    return place.position


def end_offset_before(segment: Segment, position: int, files: OpenFiles, cache: IndexCache) -> int:
    """Where the batch in front of `position` ends; where the segment begins when there is none."""
    file = files.open(segment)
    end_offset = segment.base_offset
    at = segment.floor_by_position(position - 1, cache) if position else 0
    while at < position:
        base_offset, size, last_offset_delta = _prefix(segment, file.read_at(at, _PREFIX_BYTES), 0, at)
        end_offset = base_offset + last_offset_delta + 1
        at += size
    return end_offset


def plan_span(
    segment: Segment,
    offset: int,
    position: int,
    end_position: int,
    max_bytes: int,
    min_one_batch: bool,
    files: OpenFiles,
    cache: IndexCache,
) -> FileSpan:
    """Whole batches from `position` on, at most `max_bytes` (but one batch if asked) and not past `end_position`."""
    file = segment.file
    if file is None:
        file = files.open(segment)
    else:
        segment.used = True
    length = end_position - position
    if length > max_bytes:
        length = _cut(segment, file, position, max_bytes, min_one_batch, cache)
    return FileSpan(file, position, length, offset)


def _cut(
    segment: Segment, file: DiskFile, position: int, max_bytes: int, min_one_batch: bool, cache: IndexCache
) -> int:
    """The longest run of whole batches from `position` that fits into `max_bytes`, or nearly so."""
    limit = position + max_bytes
    at = max(position, segment.floor_by_position(limit, cache))
    if limit - at <= max_bytes >> 4 and at > position:
        segment.mark(int.from_bytes(file.read_at(at, 8), "big"), at)
        return at - position
    window = b""
    start = at
    while True:
        if at + _PREFIX_BYTES > start + len(window):
            start, window = at, file.read_at(at, _SCAN_BYTES)
        base_offset, size = _prefix(segment, window, at - start, at)[:2]
        if at + size > limit:
            break
        at += size
    if at == position:
        return size if min_one_batch else 0
    segment.mark(base_offset, at)
    return at - position


def _scan_to_offset(segment: Segment, file: DiskFile, at: int, offset: int) -> BatchPlace | None:
    window = b""
    start = at
    end = segment.size_bytes
    while at + HEADER_BYTES <= end:
        if at + _PREFIX_BYTES > start + len(window):
            start, window = at, file.read_at(at, min(_SCAN_BYTES, end - at))
        base_offset, size, last_offset_delta = _prefix(segment, window, at - start, at)
        if base_offset + last_offset_delta >= offset:
            return BatchPlace(at, base_offset, base_offset + last_offset_delta, size)
        at += size
    return None


def _prefix(segment: Segment, window: bytes, pos: int, position: int) -> tuple[int, int, int]:
    """Base offset, size and last offset delta; what was validated when written must still look like a batch."""
    if pos + _PREFIX_BYTES > len(window):
        raise CorruptSegment(segment.path + ".log", position, "the file is shorter than expected")
    base_offset, length, last_offset_delta = _PREFIX.unpack_from(window, pos)
    size = length + LENGTH_BYTES
    if size < HEADER_BYTES or window[pos + 16] != 2 or last_offset_delta < 0 or base_offset < segment.base_offset:
        raise CorruptSegment(segment.path + ".log", position, "there is no record batch where one must be")
    return base_offset, size, last_offset_delta
