"""The table of latest values: a Delta log over Parquet files, cut into buckets of keys.

Hard rules:
- What has been read of the archive stands in the same commit as what came of it: an app transaction
  `penstock-compact/<topic>/<partition>` whose version is the next offset to read. So nothing is applied twice or
  skipped, whoever dies.
- A table is made from one archive, and keeps its number of buckets: a key never changes its bucket.
"""

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.ids import TopicPartition
from penstock.pipeline.archive_files import Storage
from penstock.pipeline.delta_commit import commit_to
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.offsets import Offsets
from penstock.pipeline.schema import HEADER_TYPE

PARTITION_COLUMNS = ("topic", "bucket")
ROW_DDL = (
    "topic string, bucket int, key binary, value binary, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)
FILE_DDL = "path string, size bigint, rows bigint, topic string, bucket int, firstOffset bigint, endOffset bigint"
_ARCHIVE_PROPERTY = "penstock.archive.id"
_BUCKETS_PROPERTY = "penstock.buckets"
_ROWS_PER_GROUP = 100_000
_ROWS_PER_READ = 10_000


def row_schema() -> pa.Schema:
    return pa.schema(
        [
            ("topic", pa.string()),
            ("bucket", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(HEADER_TYPE)),
        ]
    )


_FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("topic", pa.string()),
        ("bucket", pa.int32()),
        ("firstOffset", pa.int64()),
        ("endOffset", pa.int64()),
    ]
)


class LatestFile(NamedTuple):
    """One file: keys of one bucket of one topic."""

    path: str
    size_bytes: int
    rows: int
    topic: str
    bucket: int
    first_offset: int = 0
    end_offset: int = 0

    def partition_values(self) -> dict[str, str]:
        return {"topic": self.topic, "bucket": str(self.bucket)}

    def stats(self) -> str:
        least, most = {"offset": self.first_offset}, {"offset": self.end_offset - 1}
        return json.dumps({"numRecords": self.rows, "minValues": least, "maxValues": most})


# -- on executors -------------------------------------------------------------------------------------------------


def write_buckets(storage: Storage, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows sorted by topic and bucket in, names of files out; one file for each bucket."""
    files: list[LatestFile] = []
    open_file: _OpenFile | None = None
    for batch in batches:
        for topic, bucket, rows in _by_bucket(batch):
            if open_file is None or (open_file.topic, open_file.bucket) != (topic, bucket):
                if open_file is not None:
                    files.append(open_file.close())
                open_file = _OpenFile(storage, topic, bucket)
            open_file.write(rows)
    if open_file is not None:
        files.append(open_file.close())
    columns: list[Any] = list(zip(*files, strict=True)) if files else [[] for _ in _FILE_SCHEMA]
    yield pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _FILE_SCHEMA, strict=True)],
        schema=_FILE_SCHEMA,
    )


def _by_bucket(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Stretches of rows of one topic and bucket."""
    topics, buckets = batch.column("topic").to_pylist(), batch.column("bucket").to_pylist()
    start = 0
    for at in range(1, batch.num_rows + 1):
        if at == batch.num_rows or (topics[at], buckets[at]) != (topics[start], buckets[start]):
            yield topics[start], buckets[start], batch.slice(start, at - start)
            start = at


class _OpenFile:
    def __init__(self, storage: Storage, topic: str, bucket: int) -> None:
        self.topic, self.bucket = topic, bucket
        self._filesystem = storage.filesystem()
        directory = f"topic={topic}/bucket={bucket}"
        self._path = f"{directory}/{uuid.uuid4().hex}.zstd.parquet"
        self._filesystem.create_dir(directory, recursive=True)
        schema = row_schema()
        self._schema = pa.schema([field for field in schema if field.name not in PARTITION_COLUMNS])
        self._stream = self._filesystem.open_output_stream(self._path)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._waiting_rows = 0
        self._first, self._end = 2**63 - 1, 0

    def write(self, rows: pa.RecordBatch) -> None:
        offsets = rows.column("offset").to_pylist()
        self._first, self._end = min(self._first, *offsets), max(self._end, *(offset + 1 for offset in offsets))
        self._waiting.append(rows.select(self._schema.names).cast(self._schema))
        self._rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= _ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._waiting_rows = [], 0

    def close(self) -> LatestFile:
        self._flush()
        self._writer.close()
        self._stream.close()
        size = int(self._filesystem.get_file_info(self._path).size)
        return LatestFile(self._path, size, self._rows, self.topic, self.bucket, self._first, self._end)


def read_latest(storage: Storage, files: Iterable[LatestFile]) -> Iterator[pa.RecordBatch]:
    schema = row_schema()
    for file in files:
        with storage.filesystem().open_input_file(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(_ROWS_PER_READ):
                given = {
                    "topic": pa.repeat(pa.scalar(file.topic, pa.string()), batch.num_rows),
                    "bucket": pa.repeat(pa.scalar(file.bucket, pa.int32()), batch.num_rows),
                }
                columns = [given[n] if n in given else batch.column(n) for n in schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


# -- on the driver ------------------------------------------------------------------------------------------------


def _position_id(partition: TopicPartition) -> str:
    return f"penstock-compact/{partition.topic}/{partition.partition}"


class LatestTable:
    """`open` first."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._table: Any = None
        self.buckets = 0

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self.storage.root, self.storage.options))

    def create(self, archive_id: str, buckets: int) -> None:
        """Makes an empty table unless there is one."""
        from deltalake import DeltaTable

        if self.storage.is_local:
            os.makedirs(self.storage.root, exist_ok=True)
        if not self.exists():
            DeltaTable.create(
                self.storage.root,
                schema=row_schema(),
                mode="ignore",
                partition_by=list(PARTITION_COLUMNS),
                storage_options=self.storage.options,
                name="penstock latest values",
                configuration={_ARCHIVE_PROPERTY: archive_id, _BUCKETS_PROPERTY: str(buckets)},
                raise_if_key_not_exists=False,
            )
        self.open(archive_id)

    def open(self, archive_id: str) -> None:
        from deltalake import DeltaTable

        self._table = DeltaTable(self.storage.root, storage_options=self.storage.options)
        known = self._table.metadata().configuration
        if _ARCHIVE_PROPERTY not in known:
            raise PipelineError(
                f"the table at {self.storage.root} was not made by this job", hint="give another --table"
            )
        if known[_ARCHIVE_PROPERTY] != archive_id:
            raise PipelineError(
                f"the table at {self.storage.root} was made from another archive",
                hint="its positions mean nothing here: compact into another --table",
            )
        self.buckets = int(known[_BUCKETS_PROPERTY])

    def positions(self, partitions: Iterable[TopicPartition]) -> Offsets:
        found = {tp: self._table.transaction_version(_position_id(tp)) for tp in partitions}
        return {tp: int(offset) for tp, offset in found.items() if offset is not None}

    def files(self) -> list[LatestFile]:
        rows = self._table.get_add_actions(flatten=True)
        columns = {name: rows.column(name).to_pylist() for name in rows.schema.names}
        names = ("path", "size_bytes", "num_records", "partition.topic", "partition.bucket")
        return [LatestFile(*row) for row in zip(*(columns[name] for name in names), strict=True)]

    def commit(self, added: Iterable[LatestFile], removed: Iterable[LatestFile], positions: Offsets) -> None:
        """New files for old ones, and how far the archive is read: all or nothing."""
        from deltalake.transaction import AddAction, RemoveAction, Transaction

        now_ms = time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(file.path, file.size_bytes, file.partition_values(), now_ms, True, file.stats())
            for file in added
        ]
        actions += [
            RemoveAction(file.path, True, now_ms, file.size_bytes, file.partition_values()) for file in removed
        ]
        moved = [Transaction(_position_id(tp), offset, now_ms) for tp, offset in positions.items()]
        commit_to(self._table, row_schema(), PARTITION_COLUMNS, actions, moved, f"the table at {self.storage.root}")
