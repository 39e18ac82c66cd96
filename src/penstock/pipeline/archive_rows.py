"""Rows of an archive read back, on an executor: one partition's, in the order of their offsets, a bounded part at a
time.

Files may overlap: a partition's records lie in one file per day and round, and merged files hold several partitions.
Row groups that cannot hold a wanted row are not read.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.archive_files import ArchiveFile, Storage

ALL_TIMES = (-(2**63), 2**63 - 1)
_CHUNK_BYTES = 64 << 20
_CHUNK_ROWS_MIN, _CHUNK_ROWS_MAX = 1_000, 250_000
_LOOKED_AT = ("partition", "offset", "timestamp")


class Slice(NamedTuple):
    """Rows of one partition with `start` ≤ offset < `end` and a timestamp within `times_us` (end not included)."""

    topic: str
    partition: int
    start: int
    end: int
    files: tuple[ArchiveFile, ...]
    times_us: tuple[int, int] = ALL_TIMES


def may_hold(file: ArchiveFile, wanted: Slice) -> bool:
    return (
        file.topic == wanted.topic
        and file.first_partition <= wanted.partition < file.end_partition
        and file.first_offset < wanted.end
        and file.end_offset > wanted.start
        and file.first_timestamp_us < wanted.times_us[1]
        and file.last_timestamp_us >= wanted.times_us[0]
    )


def read_slice(storage: Storage, wanted: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Tables of the wanted rows, each sorted by offset, one after the other; all columns, or these and those that
    are looked at."""
    filesystem = storage.filesystem()
    names = None if columns is None else list(dict.fromkeys((*columns, *_LOOKED_AT)))
    opened = [_Opened(filesystem, file, names) for file in wanted.files]
    try:
        start = wanted.start
        rows = _chunk_rows(opened)
        while start < wanted.end:
            end = min(start + rows, wanted.end)
            yield from _read_chunk(opened, wanted._replace(start=start, end=end))
            start = end
    finally:
        for file in opened:
            file.close()


def _read_chunk(opened: list["_Opened"], wanted: Slice) -> Iterator[pa.Table]:
    found = [table for file in opened for table in file.read(wanted) if table.num_rows]
    if not found:
        return
    table = pa.concat_tables(found)
    offsets = table.column("offset")
    if len(found) > 1 and not pc.all(pc.less(offsets[:-1], offsets[1:])).as_py():
        table = table.sort_by("offset")
    yield table


def _chunk_rows(opened: list["_Opened"]) -> int:
    """As many rows as fit into memory at once, by what the files say of their size."""
    widest = max((file.row_bytes for file in opened), default=1.0)
    return int(min(max(_CHUNK_BYTES / widest, _CHUNK_ROWS_MIN), _CHUNK_ROWS_MAX))


class _Opened:
    """A file whose row groups are read as they are needed."""

    def __init__(self, filesystem: Any, file: ArchiveFile, columns: list[str] | None) -> None:
        self._columns = columns
        self._source = filesystem.open_input_file(file.path)
        self._parquet = pq.ParquetFile(self._source)
        metadata = self._parquet.metadata
        names = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self._bounds = [tuple(_bounds(group.column(names[name])) for name in _LOOKED_AT[:2]) for group in groups]
        self.row_bytes = sum(group.total_byte_size for group in groups) / max(metadata.num_rows, 1)
        self._kept: tuple[int, pa.Table] | None = None  # the last row group: the next chunk often begins in it

    def close(self) -> None:
        self._parquet.close()
        self._source.close()

    def read(self, wanted: Slice) -> Iterator[pa.Table]:
        for number, (partitions, offsets) in enumerate(self._bounds):
            inside = partitions[0] <= wanted.partition <= partitions[1]
            if inside and offsets[0] < wanted.end and offsets[1] >= wanted.start:
                whole = partitions[0] == partitions[1] and wanted.start <= offsets[0] and offsets[1] < wanted.end
                table = self._group(number)
                yield table if whole and wanted.times_us == ALL_TIMES else _matching(table, wanted)

    def _group(self, number: int) -> pa.Table:
        if self._kept is None or self._kept[0] != number:
            self._kept = (number, self._parquet.read_row_group(number, self._columns))
        return self._kept[1]


def _bounds(column: Any) -> tuple[int, int]:
    found = column.statistics
    return (found.min, found.max) if found is not None and found.has_min_max else ALL_TIMES


def _matching(table: pa.Table, wanted: Slice) -> pa.Table:
    offsets = table.column("offset")
    mask = pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end))
    mask = pc.and_(mask, pc.equal(table.column("partition"), wanted.partition))
    if wanted.times_us != ALL_TIMES:
        times = table.column("timestamp").cast(pa.int64())
        inside = pc.and_(pc.greater_equal(times, wanted.times_us[0]), pc.less(times, wanted.times_us[1]))
        mask = pc.and_(mask, inside)
    return table.filter(mask)
