"""Topic against archive: every record that is in one must be in the other, once, with the same content.

Both sides are summed up in buckets of offsets (how many rows, and what their hashes come to); only where two buckets
differ single rows are looked at. So a healthy archive costs one pass over both and next to no shuffle.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.ids import TopicPartition
from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.audit_findings import Finding
from penstock.pipeline.errors import JobFailed
from penstock.pipeline.planning import OffsetRange
from penstock.pipeline.schema import arrow_schema, ddl
from penstock.pipeline.tasks import TaskAttempt

_BUCKET = 10_000
_MOST_ROWS = 5_000
_FILES_PER_TASK = 16
_ROWS_PER_BATCH = 10_000
_BROKEN = (OSError, pa.ArrowInvalid)


class FileCheck(NamedTuple):
    """What is in a file's place: rows, and bytes; None where there is no file, or it cannot be opened."""

    size_bytes: int | None
    rows: int | None


class ArchiveRange(NamedTuple):
    """What of a partition can be compared: [start, end) is archived and still in the topic."""

    partition: TopicPartition
    start: int
    end: int
    skipped: tuple[tuple[int, int], ...] = ()
    """Spans of the topic that cannot be read: not compared."""

    def pieces(self) -> list[OffsetRange]:
        pieces, at = [], self.start
        for first, end in sorted(self.skipped):
            if first > at:
                pieces.append(OffsetRange(*self.partition, at, min(first, self.end)))
            at = max(at, end)
        if at < self.end:
            pieces.append(OffsetRange(*self.partition, at, self.end))
        return [piece for piece in pieces if piece.start < piece.end]


# -- files --------------------------------------------------------------------------------------------------------


def check_files(task: tuple[Storage, list[str]], attempt: TaskAttempt) -> list[FileCheck]:
    """On an executor: what the files of a task are like."""
    storage, paths = task
    filesystem = storage.filesystem()
    checks = []
    for info in filesystem.get_file_info(paths):
        if not info.is_file:
            checks.append(FileCheck(None, None))
            continue
        try:
            with filesystem.open_input_file(info.path) as file:
                rows: int | None = pq.ParquetFile(file).metadata.num_rows
        except _BROKEN:
            rows = None
        checks.append(FileCheck(int(info.size), rows))
    return checks


def decide_files(
    files: Sequence[ArchiveFile], checks: Sequence[FileCheck]
) -> tuple[list[Finding], list[ArchiveFile]]:
    """What is wrong with the files of an archive, and those that can be read."""
    findings, good = [], []
    for file, check in zip(files, checks, strict=True):
        detail = ""
        if check.size_bytes is None:
            kind, detail = "archive_file_missing", file.path
        elif check.rows is None:
            kind, detail = "archive_file_damaged", f"{file.path} is no Parquet file"
        elif check.rows != file.rows:
            kind, detail = "archive_file_damaged", f"{file.path} has {check.rows} rows, {file.rows} were written"
            good.append(file)
        elif check.size_bytes != file.size_bytes:
            kind = "archive_file_damaged"
            detail = f"{file.path} has {check.size_bytes} bytes, {file.size_bytes} were written"
            good.append(file)
        else:
            good.append(file)
            continue
        place = (file.topic, file.first_partition, file.first_offset, file.end_offset)
        findings.append(Finding(kind, *place, file.rows, detail))
    return findings, good


# -- rows ---------------------------------------------------------------------------------------------------------


def archive_rows(spark: Any, storage: Storage, files: Sequence[ArchiveFile], *, strict: bool = False) -> Any:
    """Rows of the files. Unless `strict`, one that breaks while it is read gives no more rows: an audit says which
    are missing."""
    tasks = [list(files[at : at + _FILES_PER_TASK]) for at in range(0, len(files), _FILES_PER_TASK)]
    schema = ddl(headers=True, batch_info=False)
    if not tasks:
        return spark.createDataFrame([], schema)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in tasks[number]:
                    yield from _read_file(storage, file, strict=strict)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def _read_file(storage: Storage, file: ArchiveFile, *, strict: bool) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(headers=True, batch_info=False)
    names = [name for name in schema.names if name != "topic"]
    try:
        with storage.filesystem().open_input_file(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches(_ROWS_PER_BATCH, columns=names):
                topic = pa.repeat(pa.scalar(file.topic, pa.string()), batch.num_rows)
                columns = [topic if name == "topic" else batch.column(name) for name in schema.names]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except _BROKEN as error:
        if strict:
            raise JobFailed(
                f"the file {file.path} of the archive cannot be read: {error}",
                hint="`penstock pipeline audit --archive` shows what is damaged",
            ) from error


def fingerprints(rows: Any) -> Any:
    """Topic, partition, offset, and a hash of all that a record says. Nulls count: an empty key is another key."""
    from pyspark.sql import functions as F

    null_headers = F.transform(F.col("headers"), lambda header: header["value"].isNull())
    content = ["key", "value", F.col("key").isNull(), F.col("value").isNull(), "headers", null_headers]
    return rows.select("topic", "partition", "offset", F.xxhash64("timestamp", *content).alias("hash"))


def in_ranges(prints: Any, ranges: Iterable[ArchiveRange]) -> Any:
    """Only rows that are compared."""
    from pyspark.sql import functions as F

    wanted = F.lit(False)
    for compared in ranges:
        of = (F.col("topic") == compared.partition.topic) & (F.col("partition") == compared.partition.partition)
        within = (F.col("offset") >= compared.start) & (F.col("offset") < compared.end)
        for first, end in compared.skipped:
            within = within & ((F.col("offset") < first) | (F.col("offset") >= end))
        wanted = wanted | (of & within)
    return prints.where(wanted)


def differing_buckets(topic: Any, archive: Any) -> list[tuple[str, int, int]]:
    """Topic, partition and number of buckets whose rows differ. Takes fingerprints."""
    from pyspark.sql import functions as F

    keys = ["topic", "partition", F.floor(F.col("offset") / F.lit(_BUCKET)).cast("bigint").alias("bucket")]
    low = F.col("hash").bitwiseAND(0xFFFFFFFF)

    def summed(prints: Any, side: str) -> Any:
        return prints.groupBy(*keys).agg(
            F.struct(F.count("*"), F.bit_xor("hash"), F.sum(low)).alias(side)  # xor alone would miss pairs
        )

    both = summed(topic, "here").join(summed(archive, "there"), ["topic", "partition", "bucket"], "full")
    differ = both.where(~F.col("here").eqNullSafe(F.col("there"))).orderBy("topic", "partition", "bucket")
    return [(row.topic, row.partition, row.bucket) for row in differ.limit(_MOST_ROWS).collect()]


class Compared(NamedTuple):
    """An offset whose rows differ: how often it is on each side."""

    topic: str
    partition: int
    offset: int
    in_topic: int
    in_archive: int


def differing_rows(topic: Any, archive: Any, buckets: Sequence[tuple[str, int, int]]) -> list[Compared]:
    from pyspark.sql import functions as F

    wanted = F.broadcast(topic.sparkSession.createDataFrame(buckets, "topic string, partition int, bucket bigint"))
    keys = ["topic", "partition", "bucket"]

    def of(prints: Any, side: int) -> Any:
        bucket = F.floor(F.col("offset") / F.lit(_BUCKET)).cast("bigint")
        return prints.withColumn("bucket", bucket).join(wanted, keys, "semi").withColumn("side", F.lit(side))

    rows = of(topic, 0).unionByName(of(archive, 1)).groupBy("topic", "partition", "offset")
    counted = rows.agg(
        F.count_if(F.col("side") == 0).alias("here"),
        F.count_if(F.col("side") == 1).alias("there"),
        F.countDistinct("hash").alias("hashes"),
    )
    wrong = (F.col("here") != 1) | (F.col("there") != 1) | (F.col("hashes") != 1)
    found = counted.where(wrong).orderBy("topic", "partition", "offset").limit(_MOST_ROWS).collect()
    return [Compared(row.topic, row.partition, row.offset, row.here, row.there) for row in found]


def decide_rows(rows: Iterable[Compared]) -> list[Finding]:
    """Rows that differ, as findings: neighbours with the same fault are one."""
    findings: list[Finding] = []
    for row in rows:
        if not row.in_archive:
            kind = "archive_missing"
        elif not row.in_topic:
            kind = "archive_extra"
        elif row.in_archive > 1:
            kind = "archive_duplicate"
        else:
            kind = "archive_differs"
        last = findings[-1] if findings else None
        place = (kind, row.topic, row.partition)
        if last is not None and (last.kind, last.topic, last.partition, last.end_offset) == (*place, row.offset):
            findings[-1] = last._replace(end_offset=row.offset + 1, records=last.records + 1)
        else:
            findings.append(Finding(*place, row.offset, row.offset + 1, 1))
    return findings


def archived_spans(rows: Any) -> Any:
    """First and last archived offset of each partition, and how many rows."""
    from pyspark.sql import functions as F

    return rows.groupBy("topic", "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("records")
    )


def holes_before(rows: Any, log_starts: Any) -> Any:
    """Offsets below the log start that are not in the archive: topic, partition, first, end."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    old = rows.select("topic", "partition", "offset").join(F.broadcast(log_starts), ["topic", "partition"])
    old = old.where(F.col("offset") <= F.col("logStart"))
    before = F.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    gaps = old.withColumn("first", before + 1).where(F.col("offset") > F.col("first"))
    return gaps.select("topic", "partition", "first", F.col("offset").alias("end"))
