"""The archive's Parquet files, as executors write them: each holds rows of one topic and day.

A file has a name that no other attempt has, and is no part of the archive until the driver commits it to the table's
log (`archive_table`). Rows of one partition are in the order of their offsets.
"""

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.pipeline.schema import arrow_schema

PARTITION_COLUMNS = ("topic", "day")
_ROWS_PER_FILE = 4_000_000
_BYTES_PER_FILE = 1 << 30  # before compression
_ROWS_PER_GROUP = 128_000
_BYTES_PER_GROUP = 32 << 20
_BUFFERED_BYTES = 128 << 20  # over all open files of a task
_PARQUET: dict[str, Any] = {
    # Values seldom repeat: to look for repetitions costs a third of the time and makes files larger.
    "use_dictionary": [
        "key",
        "partition",
        "timestamp",
        "timestampType",
        "headers.list.element.key",
        "leaderEpoch",
        "producerId",
        "producerEpoch",
    ],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "sequence": "DELTA_BINARY_PACKED"},
    "write_statistics": ["key", "partition", "offset", "timestamp"],
}
_DAY_US = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ArchiveFile(NamedTuple):
    """One file, and between which values its rows are; ends are not included."""

    path: str
    size_bytes: int
    rows: int
    topic: str
    day: str
    first_partition: int
    end_partition: int
    first_offset: int
    end_offset: int
    first_timestamp_us: int
    last_timestamp_us: int

    def stats(self) -> str:
        """What readers skip files by, in Delta's form."""
        return json.dumps(
            {
                "numRecords": self.rows,
                "minValues": {
                    "partition": self.first_partition,
                    "offset": self.first_offset,
                    "timestamp": _instant(self.first_timestamp_us, 0),
                },
                "maxValues": {
                    "partition": self.end_partition - 1,
                    "offset": self.end_offset - 1,
                    # Milliseconds are what the form has; a bound must not be below what it bounds.
                    "timestamp": _instant(self.last_timestamp_us, 999),
                },
                "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
            }
        )


def _instant(timestamp_us: int, up_us: int) -> str:
    moment = _EPOCH + timedelta(microseconds=timestamp_us + up_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def row_schema() -> pa.Schema:
    """What is archived of each record; `day` is that of its timestamp, in UTC."""
    return arrow_schema(headers=True, batch_info=True).append(pa.field("day", pa.string()))


def file_schema() -> pa.Schema:
    """What is in a file: partition columns are in its path."""
    schema = arrow_schema(headers=True, batch_info=True)
    return schema.remove(schema.get_field_index("topic"))


class Storage(NamedTuple):
    """Where a table is: a directory, or a URL with the settings that `deltalake` takes for it."""

    root: str
    options: dict[str, str]

    @staticmethod
    def of(root: str, options: Mapping[str, str] | None = None) -> "Storage":
        """A directory is named from the root: executors need not run where the driver does."""
        return Storage(root.rstrip("/") if "://" in root else os.path.abspath(root), dict(options or {}))

    @property
    def is_local(self) -> bool:
        return "://" not in self.root

    def filesystem(self) -> Any:
        """Paths in it are relative to the table."""
        if self.is_local:
            return pafs.SubTreeFileSystem(self.root, pafs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.root, self.options))


def write_files(storage: Storage, batches: Iterable[pa.RecordBatch]) -> list[ArchiveFile]:
    """Rows in, files out. Every batch holds rows of one topic."""
    writer = _FilesWriter(storage)
    for batch in batches:
        if batch.num_rows:
            topic = batch.column("topic")[0].as_py()
            for day, rows in _by_day(batch):
                writer.write(topic, day, rows)
    return writer.close()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    days = np.asarray(batch.column("timestamp").cast(pa.int64())) // _DAY_US
    first, last = int(days.min()), int(days.max())
    if first == last:
        yield _day(first), batch
        return
    for number in np.unique(days):
        yield _day(int(number)), batch.filter(pa.array(days == number))


def _day(number: int) -> str:
    return (_EPOCH + timedelta(days=number)).strftime("%Y-%m-%d")


class _FilesWriter:
    """One open file per topic and day; a bound on what waits in memory for all of them together."""

    def __init__(self, storage: Storage) -> None:
        self._filesystem = storage.filesystem()
        self._open: dict[tuple[str, str], _OpenFile] = {}
        self._done: list[ArchiveFile] = []
        self._waiting_bytes = 0

    def write(self, topic: str, day: str, rows: pa.RecordBatch) -> None:
        file = self._open.get((topic, day))
        if file is None:
            file = self._open[topic, day] = _OpenFile(self._filesystem, topic, day)
        before = file.waiting_bytes
        file.write(rows)
        self._waiting_bytes += file.waiting_bytes - before
        if self._waiting_bytes > _BUFFERED_BYTES:
            for waiting in self._open.values():
                waiting.flush()
            self._waiting_bytes = 0
        if file.rows >= _ROWS_PER_FILE or file.raw_bytes >= _BYTES_PER_FILE:
            self._waiting_bytes -= file.waiting_bytes
            self._done.append(self._open.pop((topic, day)).close())

    def close(self) -> list[ArchiveFile]:
        done = self._done + [file.close() for file in self._open.values()]
        self._open, self._done = {}, []
        return done


class _OpenFile:
    """A Parquet file while it is written."""

    def __init__(self, filesystem: Any, topic: str, day: str) -> None:
        self._filesystem = filesystem
        self._topic, self._day = topic, day
        directory = f"topic={topic}/day={day}"
        self._path = f"{directory}/{uuid.uuid4().hex}.zstd.parquet"
        filesystem.create_dir(directory, recursive=True)
        self._schema = file_schema()
        self._stream = filesystem.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd", **_PARQUET)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self.waiting_bytes = 0
        self.rows = self.raw_bytes = 0
        self._bounds = dict.fromkeys(("partition", "offset", "timestamp"), (2**63 - 1, -(2**63)))

    def write(self, batch: pa.RecordBatch) -> None:
        for name, (low, high) in self._bounds.items():
            column = batch.column(name)
            found = pc.min_max(column if name != "timestamp" else column.cast(pa.int64())).as_py()
            self._bounds[name] = (min(low, found["min"]), max(high, found["max"]))
        self._waiting.append(batch.select(self._schema.names))
        self.rows += batch.num_rows
        self.raw_bytes += batch.nbytes
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self._waiting_rows >= _ROWS_PER_GROUP or self.waiting_bytes >= _BYTES_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Makes a row group of what waits."""
        if self._waiting:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._writer.write_table(table, row_group_size=max(table.num_rows, 1))
        self._waiting = []
        self._waiting_rows = self.waiting_bytes = 0

    def close(self) -> ArchiveFile:
        self.flush()
        self._writer.close()
        self._stream.close()
        size = self._filesystem.get_file_info(self._path).size
        partitions, offsets, times = (self._bounds[name] for name in ("partition", "offset", "timestamp"))
        return ArchiveFile(
            self._path,
            size,
            self.rows,
            self._topic,
            self._day,
            partitions[0],
            partitions[1] + 1,
            offsets[0],
            offsets[1] + 1,
            *times,
        )
