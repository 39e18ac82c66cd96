"""`archive`: topics into a Delta table, exactly once, until the end of the topics or for ever.

A streaming query whose batches become files on the executors and one commit on the driver. Interrupted at any point
and run again it goes on: files that were not committed are no part of the table, batches that were are skipped.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.pipeline.archive_files import FILE_DDL, ArchiveFile, ArchiveTable, write_files

_CHECKPOINT = "_penstock/checkpoint"


class ArchiveJob(NamedTuple):
    bootstrap: str
    topics: str  # names separated by commas, or a pattern
    is_pattern: bool
    table: str
    checkpoint: str | None = None
    group_id: str = "penstock-archive"
    continuous: bool = False
    starting_offsets: str = "earliest"
    max_offsets_per_trigger: int = 5_000_000
    trigger_seconds: float = 10.0


class ArchiveSummary(NamedTuple):
    batches: int
    files: int
    rows: int
    size_bytes: int


def archive(spark: Any, job: ArchiveJob, progress: Callable[[ArchiveSummary], None] | None = None) -> ArchiveSummary:
    """Runs the job; returns when the topics are read to where they ended at its start (or never, if continuous)."""
    table = ArchiveTable(job.table)
    table.create()
    totals = [0, 0, 0, 0]

    def write_batch(frame: Any, batch_id: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        if table.last_batch(query) >= batch_id:
            return
        root = job.table
        rows = frame.mapInArrow(lambda batches: _write(root, batches), FILE_DDL).collect()
        files = [ArchiveFile(*row) for row in rows]
        if files:
            table.commit(query, batch_id, files)
        totals[0] += 1
        totals[1] += len(files)
        totals[2] += sum(file.rows for file in files)
        totals[3] += sum(file.size for file in files)
        if progress is not None:
            progress(ArchiveSummary(*totals))

    stream = _source(spark, job).writeStream.foreachBatch(write_batch).queryName(job.group_id)
    stream = stream.option("checkpointLocation", job.checkpoint or f"{job.table}/{_CHECKPOINT}")
    if job.continuous:
        stream = stream.trigger(processingTime=f"{job.trigger_seconds} seconds")
    else:
        stream = stream.trigger(availableNow=True)
    query = stream.start()
    query.awaitTermination()
    return ArchiveSummary(*totals)


def _write(root: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return write_files(root, batches)


def _source(spark: Any, job: ArchiveJob) -> Any:
    return (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribePattern" if job.is_pattern else "subscribe", job.topics)
        .option("startingOffsets", job.starting_offsets)
        .option("includeHeaders", "true")
        .option("includeBatchInfo", "true")
        .option("groupId", job.group_id)
        .option("maxOffsetsPerTrigger", str(job.max_offsets_per_trigger))
        .load()
    )
