"""`compact`: the latest value of each key over an archive, as a Delta table that is brought up to date.

Kafka's own rule: of the records of a partition with equal keys the one with the highest offset counts, and one
without a value deletes its key. Only what came into the archive since the last run is read, and only buckets with new
keys are written anew. Needs no broker.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.client.types import TopicPartition
from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_archive import archive_rows
from penstock.pipeline.compact_table import FILE_DDL, ROW_DDL, LatestFile, LatestTable, read_latest, write_buckets
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.offsets import Offsets
from penstock.pipeline.tasks import parallelism

BUCKETS = 16


@dataclass(slots=True)
class CompactSummary(JobSummary):
    records_read: int = 0
    files_read: int = 0
    keys: int = 0


@job
def compact(
    context: JobContext,
    archive: str,
    *,
    table: str,
    topics: Sequence[str] = (),
    buckets: int = BUCKETS,
    storage_options: Mapping[str, str] | None = None,
) -> CompactSummary:
    """Brings `table` up to date with `archive`, for `topics` (all by default)."""
    if buckets < 1:
        raise PipelineError(f"a table has at least one bucket, not {buckets}")
    source = ArchiveTable(Storage.of(archive, storage_options))
    archive_id = str(source.load().metadata().id)
    target = LatestTable(Storage.of(table, storage_options))
    files = [file for file in source.files() if not topics or file.topic in topics]
    unknown = sorted(set(topics) - {file.topic for file in files})
    if unknown:
        raise PipelineError(f"topic {unknown[0]!r} is not in the archive at {archive}")
    done: Offsets = {}
    ends = source.positions(_partitions(files))
    if not context.dry_run:
        target.create(archive_id, buckets)
    if target.exists():
        target.open(archive_id)
        done = target.positions(ends)
    news = {tp: (done.get(tp, 0), end) for tp, end in ends.items() if end > done.get(tp, 0)}
    new_files = [file for file in files if _is_new(file, news)]
    if context.dry_run:
        return _plan(table, news, new_files)
    return _Compaction(context, target, source.storage).run(new_files, news)


def _partitions(files: Sequence[ArchiveFile]) -> list[TopicPartition]:
    most: dict[str, int] = {}
    for file in files:
        most[file.topic] = max(most.get(file.topic, 0), file.end_partition)
    return [TopicPartition(topic, number) for topic, count in most.items() for number in range(count)]


def _is_new(file: ArchiveFile, news: Mapping[TopicPartition, tuple[int, int]]) -> bool:
    """Whether a file may hold records that are not yet in the table."""
    for number in range(file.first_partition, file.end_partition):
        start, end = news.get(TopicPartition(file.topic, number), (0, 0))
        if file.first_offset < end and file.end_offset > start:
            return True
    return False


def _plan(table: str, news: Mapping[TopicPartition, tuple[int, int]], files: Sequence[ArchiveFile]) -> CompactSummary:
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "from_offset": start, "end_offset": end}
        for tp, (start, end) in sorted(news.items())
    ]
    facts = {"table": table, "files": len(files), "offsets": sum(end - start for start, end in news.values())}
    columns = ["topic", "partition", "from_offset", "end_offset"]
    return CompactSummary("compact, dry run: nothing was written", facts, rows, columns)


class _Compaction:
    """One run. Nothing is seen of it until its one commit."""

    def __init__(self, context: JobContext, target: LatestTable, archive: Storage) -> None:
        self._context = context
        self._target = target
        self._archive = archive
        self._began = time.monotonic()

    def run(self, files: Sequence[ArchiveFile], news: Mapping[TopicPartition, tuple[int, int]]) -> CompactSummary:
        if not news:
            return self._summary({}, [], [], 0)
        total = sum(file.rows for file in files)
        self._context.progress("read", 0, total)
        latest = self._latest(files, news).persist()
        try:
            counts, touched = self._counts(latest)
            self._context.progress("write", 0, len(touched), "buckets")
            old = [file for file in self._target.files() if (file.topic, file.bucket) in touched]
            added = self._merge(latest, old) if touched else []
        finally:
            latest.unpersist()
        self._target.commit(added, old, {tp: end for tp, (_, end) in news.items()})
        return self._summary(counts, added, old, len(files))

    def _latest(self, files: Sequence[ArchiveFile], news: Mapping[TopicPartition, tuple[int, int]]) -> Any:
        """The last record of each key among the new ones; one without a value where it was deleted."""
        from pyspark.sql import functions as F

        spark = self._context.spark
        spans = [(*tp, start, end) for tp, (start, end) in news.items()]
        wanted = spark.createDataFrame(spans, "topic string, partition int, start bigint, end bigint")
        rows = archive_rows(spark, self._archive, files, strict=True).join(
            F.broadcast(wanted), ["topic", "partition"]
        )
        rows = rows.where((F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end")))
        bucket = F.pmod(F.xxhash64("key"), F.lit(self._target.buckets)).cast("int")
        return _last_of_each(rows.withColumn("bucket", bucket), counted=True)

    def _counts(self, latest: Any) -> tuple[dict[str, int], set[tuple[str, int]]]:
        from pyspark.sql import functions as F

        rows = latest.groupBy("topic", "bucket", F.col("key").isNull().alias("keyless")).agg(
            F.sum("records").alias("records"),
            F.count("*").alias("keys"),
            F.count_if(F.col("value").isNull()).alias("deleted"),
        )
        counts = {"records": 0, "keys": 0, "deleted": 0, "keyless": 0}
        touched = set()
        for row in rows.collect():
            counts["records"] += row.records
            if row.keyless:
                counts["keyless"] += row.records
                continue
            touched.add((row.topic, row.bucket))
            counts["keys"] += row.keys
            counts["deleted"] += row.deleted
        return counts, touched

    def _merge(self, latest: Any, old: Sequence[LatestFile]) -> list[LatestFile]:
        """New rows over old ones, bucket by bucket, into new files."""
        from pyspark.sql import functions as F

        spark, storage = self._context.spark, self._target.storage
        fresh = latest.where(F.col("key").isNotNull()).drop("records")
        merged = _last_of_each(fresh.unionByName(_stored(spark, storage, old)))
        alive = merged.where(F.col("value").isNotNull())
        tasks = max(parallelism(spark), 1)
        placed = alive.repartition(tasks, "topic", "bucket").sortWithinPartitions("topic", "bucket", "key")
        columns = [name.split()[0] for name in ROW_DDL.split(", ")]

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_buckets(storage, batches)

        return [LatestFile(*row) for row in placed.select(*columns).mapInArrow(write, FILE_DDL).collect()]

    def _summary(
        self, counts: Mapping[str, int], added: Sequence[LatestFile], removed: Sequence[LatestFile], read: int
    ) -> CompactSummary:
        keys = sum(file.rows for file in self._target.files())
        facts: dict[str, Any] = {
            "table": self._target.storage.root,
            "records": counts.get("records", 0),
            "changed_keys": counts.get("keys", 0) - counts.get("deleted", 0),
            "deleted_keys": counts.get("deleted", 0),
            "without_a_key": counts.get("keyless", 0),
            "keys_in_the_table": keys,
            "files_read": read,
            "files_written": len(added),
            "files_replaced": len(removed),
            "seconds": round(time.monotonic() - self._began, 1),
        }
        title = "compacted" if read else "nothing new in the archive"
        return CompactSummary(title, facts, records_read=facts["records"], files_read=read, keys=keys)


def _last_of_each(rows: Any, *, counted: bool = False) -> Any:
    """Of each key of a partition the row with the highest offset; `counted`: with how many there were."""
    from pyspark.sql import functions as F

    content = F.struct("value", "offset", "timestamp", "timestampType", "headers")
    keys = ["topic", "bucket", "key", "partition"]
    measures = [F.max_by(content, F.col("offset")).alias("last")]
    if counted:
        measures.append(F.count("*").alias("records"))
    last = rows.groupBy(*keys).agg(*measures)
    return last.select(*keys, "last.*", *(["records"] if counted else []))


def _stored(spark: Any, storage: Storage, files: Sequence[LatestFile]) -> Any:
    """Rows of the table as it is."""
    if not files:
        return spark.createDataFrame([], ROW_DDL)
    kept = list(files)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from read_latest(storage, (kept[number] for number in batch.column(0).to_pylist()))

    return spark.range(0, len(kept), 1, len(kept)).mapInArrow(read, ROW_DDL)
