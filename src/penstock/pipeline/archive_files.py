"""The archive on disk: a Delta table of Parquet files, partitioned by topic and day.

Executors write files under a name that no other attempt has; only what the driver commits to the table's log is part
of the archive. A batch is committed under its query and number, and never a second time.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from penstock.pipeline.schema import arrow_schema

PARTITION_COLUMNS = ("topic", "day")
FILE_DDL = "path string, size bigint, rows bigint, topic string, day string, firstOffset bigint, endOffset bigint"
_ROWS_PER_FILE = 1_000_000
_FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("topic", pa.string()),
        ("day", pa.string()),
        ("firstOffset", pa.int64()),
        ("endOffset", pa.int64()),
    ]
)


class ArchiveFile(NamedTuple):
    """One Parquet file: rows of one topic and day."""

    path: str
    size: int
    rows: int
    topic: str
    day: str
    first_offset: int
    end_offset: int


def row_schema() -> pa.Schema:
    """What is archived of each record; `day` is derived from its timestamp, in UTC."""
    return arrow_schema(headers=True, batch_info=True).append(pa.field("day", pa.string()))


def write_files(root: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: rows in, files out; what comes back are the names and sizes of the files."""
    filesystem, base = pafs.FileSystem.from_uri(root) if "://" in root else (pafs.LocalFileSystem(), root)
    open_files: dict[tuple[str, str], _OpenFile] = {}
    done: list[ArchiveFile] = []
    for batch in batches:
        days = pc.strftime(batch.column("timestamp"), format="%Y-%m-%d")
        keys = pa.table({"topic": batch.column("topic"), "day": days})
        for row in keys.group_by(["topic", "day"]).aggregate([]).to_pylist():
            topic, day = row["topic"], row["day"]
            mine = pc.and_(pc.equal(batch.column("topic"), topic), pc.equal(days, day))
            rows = batch if pc.all(mine).as_py() else batch.filter(mine)
            file = open_files.get((topic, day))
            if file is None:
                file = open_files[topic, day] = _OpenFile(filesystem, base, topic, day)
            file.write(rows)
            if file.rows >= _ROWS_PER_FILE:
                done.append(open_files.pop((topic, day)).close())
    done += [file.close() for file in open_files.values()]
    columns: list[Any] = list(zip(*done, strict=True)) if done else [[] for _ in _FILE_SCHEMA]
    yield pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, _FILE_SCHEMA, strict=True)], schema=_FILE_SCHEMA
    )


class _OpenFile:
    """A Parquet file while it is written. Partition columns are in its path, not in it."""

    def __init__(self, filesystem: Any, base: str, topic: str, day: str) -> None:
        self._filesystem = filesystem
        self._topic, self._day = topic, day
        directory = f"topic={topic}/day={day}"
        self._path = f"{directory}/{uuid.uuid4().hex}.zstd.parquet"
        filesystem.create_dir(f"{base}/{directory}", recursive=True)
        self._full_path = f"{base}/{self._path}"
        schema = arrow_schema(headers=True, batch_info=True)
        self._writer = pq.ParquetWriter(
            self._full_path, schema.remove(schema.get_field_index("topic")), filesystem=filesystem, compression="zstd"
        )
        self.rows = 0
        self._first, self._end = 2**63 - 1, 0

    def write(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset")
        self._first = min(self._first, pc.min(offsets).as_py())
        self._end = max(self._end, pc.max(offsets).as_py() + 1)
        self.rows += batch.num_rows
        self._writer.write_batch(batch.select([name for name in batch.schema.names if name != "topic"]))

    def close(self) -> ArchiveFile:
        self._writer.close()
        size = self._filesystem.get_file_info(self._full_path).size
        return ArchiveFile(self._path, size, self.rows, self._topic, self._day, self._first, self._end)


class ArchiveTable:
    """The table's log, on the driver."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.root = root
        self._storage = dict(storage_options or {})

    def exists(self) -> bool:
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(self.root, self._storage))

    def open(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.root, storage_options=self._storage)

    def create(self) -> None:
        """Makes an empty table unless there is one."""
        from deltalake import DeltaTable

        if "://" not in self.root:
            os.makedirs(self.root, exist_ok=True)
        DeltaTable.create(
            self.root,
            schema=row_schema(),
            mode="ignore",
            partition_by=list(PARTITION_COLUMNS),
            storage_options=self._storage,
            name="penstock archive",
        )

    def last_batch(self, query: str) -> int:
        """The last batch of the query that is in the archive; -1 for none."""
        version = self.open().transaction_version(query)
        return -1 if version is None else int(version)

    def commit(self, query: str, batch_id: int, files: list[ArchiveFile]) -> None:
        """Adds the files, unless the batch is there already."""
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        table = self.open()
        done = table.transaction_version(query)
        if done is not None and int(done) >= batch_id:
            return
        now_ms = time.time_ns() // 1_000_000
        actions = [
            AddAction(file.path, file.size, {"topic": file.topic, "day": file.day}, now_ms, True, _stats(file))
            for file in files
        ]
        table.create_write_transaction(
            actions,
            "append",
            row_schema(),
            list(PARTITION_COLUMNS),
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch_id, now_ms)]),
        )


def _stats(file: ArchiveFile) -> str:
    """What readers skip files by."""
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {"offset": file.first_offset},
            "maxValues": {"offset": file.end_offset - 1},
            "nullCount": {"offset": 0},
        }
    )
