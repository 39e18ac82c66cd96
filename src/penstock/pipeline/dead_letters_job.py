"""`dead-letters`: what is in a dead-letter topic and why, and selected records back to where they came from.

Driving back is exactly once: each record goes in one transaction with a receipt that names the dead letter, and what
has a receipt is not driven back again, whatever is selected next time. A run that was interrupted left either all of
its records with their receipts, or none; run again it goes on.
"""

import pickle
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.client.sync import Admin
from penstock.client.types import EARLIEST, TopicPartition
from penstock.pipeline import sink
from penstock.pipeline.dead_letters_frames import (
    RECEIPTS_TOPIC,
    Selection,
    reasons,
    receipt,
    redriven,
    select,
    with_causes,
    with_originals,
)
from penstock.pipeline.errors import JobFailed, PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.planning import OffsetRange, plan_tasks
from penstock.pipeline.sink import Attempt, SinkOptions, Written
from penstock.pipeline.skew_job import said
from penstock.pipeline.tasks import parallelism
from penstock.pipeline.topics import range_rows, read_topics, source_options, topic_ranges

MOST_RETRIES = 5
_MOST_REASONS = 200
_MOST_REFERENCES = 200_000
_NEAR = 100  # references so close to each other are fetched in one go
_LETTER = ["letterPartition", "letterOffset"]


@dataclass(slots=True)
class DeadLettersSummary(JobSummary):
    redriven: int = 0


@job
def dead_letters(
    context: JobContext,
    topic: str,
    *,
    selection: Selection | None = None,
    limit: int = 50,
    group_by_reason: bool = False,
    redrive: bool = False,
    to: str | None = None,
    most_retries: int = MOST_RETRIES,
) -> DeadLettersSummary:
    """Lists what is selected, or counts it by reason, or drives it back to its source (`to`: to another topic)."""
    wanted = selection or Selection()
    wanted.check()
    with context.admin() as admin:
        counts = {found.name: found.partitions for found in admin.list_topics(include_internal=True)}
        if topic not in counts:
            raise PipelineError(f"there is no topic {topic!r}", hint="`penstock topic list` shows them")
        if to is not None and to not in counts:
            raise PipelineError(
                f"there is no topic {to!r} to drive records to", hint="`penstock topic list` shows them"
            )
        if to == topic:
            raise PipelineError("a dead letter cannot be driven back to the dead-letter topic itself")
        if redrive:
            driver = _Redrive(context, admin, topic, counts, to, most_retries)
            return driver.run(select(with_causes(read_topics(context, [topic])), wanted))
    letters = select(with_causes(read_topics(context, [topic])), wanted)
    return _count(letters, topic) if group_by_reason else _list(letters, topic, limit)


def _count(letters: Any, topic: str) -> DeadLettersSummary:
    rows = [
        {
            "records": row.records,
            "reason": row.reasonGroup,
            "source": row.sourceTopic,
            "origin": row.origin,
            "most_retries": row.mostRetries,
            "first": _moment(row.first),
            "last": _moment(row.last),
            "example": row.example,
        }
        for row in reasons(letters).limit(_MOST_REASONS).collect()
    ]
    facts = {"topic": topic, "records": sum(row["records"] for row in rows), "reasons": len(rows)}
    columns = ["records", "reason", "source", "origin", "most_retries", "last"]
    return DeadLettersSummary("dead letters by reason", facts, rows, columns)


def _list(letters: Any, topic: str, limit: int) -> DeadLettersSummary:
    from pyspark.sql import functions as F

    newest = letters.orderBy(F.desc("timestamp"), "partition", F.desc("offset")).limit(limit)
    rows = [
        {
            "partition": row.partition,
            "offset": row.offset,
            "time": _moment(row.timestamp),
            "reason": row.reason,
            "source": _source(row),
            "origin": row.origin,
            "deliveries": row.deliveries,
            "retries": row.retries,
            "key": said(None if row.key is None else bytes(row.key)),
            "value_bytes": None if row.value is None else len(row.value),
        }
        for row in newest.collect()
    ]
    columns = ["partition", "offset", "time", "reason", "source", "retries", "key"]
    return DeadLettersSummary("dead letters, the newest first", {"topic": topic, "shown": len(rows)}, rows, columns)


def _moment(value: Any) -> str:
    return str(value.isoformat())


def _source(row: Any) -> str | None:
    if row.sourceTopic is None:
        return None
    return f"{row.sourceTopic}-{row.sourcePartition}@{row.sourceOffset}"


class _Redrive:
    """Selected dead letters on their way back."""

    def __init__(
        self, context: JobContext, admin: Admin, topic: str, counts: dict[str, int], to: str | None, most_retries: int
    ) -> None:
        self._context = context
        self._topic = topic
        self._counts = counts
        self._to = to
        self._most_retries = most_retries
        # A topic that was made anew has other dead letters under the same offsets.
        self._topic_id = admin.describe_topic(topic).topic_id
        partitions = [TopicPartition(topic, number) for number in range(counts[topic])]
        self._log_starts = {
            tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(partitions, EARLIEST)).items()
        }
        self._options = SinkOptions.parse(context.kafka_options())
        self._query = f"redrive-{self._topic_id}"
        self._run_id = uuid.uuid4().hex[:8]
        if not context.dry_run and RECEIPTS_TOPIC not in counts:
            admin.create_topic(RECEIPTS_TOPIC, 1, configs={"cleanup.policy": "compact"})

    def run(self, letters: Any) -> DeadLettersSummary:
        batch_id = 0
        if not self._context.dry_run:
            decided = sink.resume(self._options, self._query)
            batch_id = 0 if decided is None else decided.batch_id + 1
        self._context.progress("select", 0)
        letters = self._without_receipts(letters).persist()
        try:
            judged = self._judge(letters).persist()
            rows, skipped = self._count_fates(judged)
            total = sum(row["records"] for row in rows)
            if not self._context.dry_run and total:
                self._context.progress("redrive", 0, total)
                self._write(judged.where("fate is null"), batch_id)
                self._context.progress("redrive", total, total)
            judged.unpersist()
            return self._summary(rows, total, skipped)
        finally:
            letters.unpersist()

    # -- what -----------------------------------------------------------------------------------------------------

    def _without_receipts(self, letters: Any) -> Any:
        if RECEIPTS_TOPIC not in self._counts:
            return letters
        return letters.join(self._receipts(), ["partition", "offset"], "anti")

    def _receipts(self) -> Any:
        """Partition and offset of what was driven back before."""
        from pyspark.sql import functions as F

        parts = F.split(F.col("key").cast("string"), "/")
        last = (
            read_topics(self._context, [RECEIPTS_TOPIC])
            .groupBy("key")
            .agg(F.max_by("value", "offset").alias("value"))
        )
        mine = last.where((parts[0] == self._topic_id) & F.col("value").isNotNull())
        return mine.select(parts[1].cast("int").alias("partition"), parts[2].cast("bigint").alias("offset"))

    def _judge(self, letters: Any) -> Any:
        """Adds `target`, and `fate`: why a record does not go back, null for those that do."""
        from pyspark.sql import functions as F

        known = [name for name in self._counts if name != self._topic]
        originals = self._originals(letters)
        whole = letters.withColumn("isGone", F.col("isReference"))
        if originals is not None:
            whole = with_originals(letters, originals)
        fate = (
            F.when(F.col("retries") >= self._most_retries, "retried too often")
            .when(F.col("isGone"), "the original record is gone")
            .when(F.lit(self._to is not None), None)
            .when(F.col("sourceTopic").isNull(), "no source topic in the headers")
            .when(~F.col("sourceTopic").isin(*known), "the source topic does not exist")
        )
        target = F.lit(self._to) if self._to is not None else F.col("sourceTopic")
        return whole.withColumn("fate", fate).withColumn("target", target)

    def _count_fates(self, judged: Any) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """How many go back, by reason and target, and how many do not, by why."""
        from pyspark.sql import functions as F

        counted = judged.groupBy("fate", "reasonGroup", "target").agg(
            F.count("*").alias("records"), F.max("retries").alias("retries")
        )
        rows: list[dict[str, Any]] = []
        skipped: dict[str, int] = {}
        for row in counted.orderBy(F.desc("records"), "reasonGroup").collect():
            if row.fate is not None:
                skipped[row.fate] = skipped.get(row.fate, 0) + row.records
                continue
            rows.append(
                {"records": row.records, "reason": row.reasonGroup, "to": row.target, "most_retries": row.retries + 1}
            )
        return rows, skipped

    def _originals(self, letters: Any) -> Any:
        """The records that share groups noted without copying them (KIP-1191), from their own topics; None if there
        are no such notes."""
        from pyspark.sql import functions as F

        wanted = letters.where(F.col("isReference") & F.col("sourceTopic").isin(*self._counts))
        places = (
            wanted.select("sourceTopic", "sourcePartition", "sourceOffset").distinct().limit(_MOST_REFERENCES + 1)
        )
        found = sorted(tuple(row) for row in places.collect() if None not in tuple(row))
        if len(found) > _MOST_REFERENCES:
            raise PipelineError(
                f"more than {_MOST_REFERENCES} originals are to be fetched at once",
                hint="select fewer, by time or reason",
            )
        pieces: list[OffsetRange] = []
        for topic, partition, offset in found:
            last = pieces[-1] if pieces else None
            if last is not None and last[:2] == (topic, partition) and offset - last.end < _NEAR:
                pieces[-1] = last._replace(end=offset + 1)
            elif partition < self._counts[topic]:
                pieces.append(OffsetRange(topic, partition, offset, offset + 1))
        pieces = self._still_there(pieces)
        if not pieces:
            return None
        options = source_options(self._context, sorted({piece.topic for piece in pieces}))
        tasks = plan_tasks(pieces, options, parallelism(self._context.spark))
        return range_rows(self._context.spark, options, tasks)

    def _still_there(self, pieces: list[OffsetRange]) -> list[OffsetRange]:
        if not pieces:
            return []
        names = sorted({piece.topic for piece in pieces})
        there = {(r.topic, r.partition): r for r in topic_ranges(source_options(self._context, names))}
        cut = []
        for piece in pieces:
            whole = there.get((piece.topic, piece.partition))
            if whole is not None and max(piece.start, whole.start) < min(piece.end, whole.end):
                cut.append(piece._replace(start=max(piece.start, whole.start), end=min(piece.end, whole.end)))
        return cut

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, chosen: Any, batch_id: int) -> None:
        spark = self._context.spark
        counts = spark.createDataFrame(list(self._counts.items()), "countOf string, partitions int")
        back = redriven(chosen, self._topic, self._topic_id, self._to, counts)
        rows = back
        if any(self._log_starts.values()) and RECEIPTS_TOPIC in self._counts:
            rows = rows.unionByName(self._old_receipts())
        placed = rows.repartition(parallelism(spark), "topic", "partition").sortWithinPartitions(*_LETTER)
        options, query, run_id = self._options, self._query, self._run_id

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            task = TaskContext.get()
            attempt = Attempt(query, run_id, batch_id, task.partitionId(), str(task.taskAttemptId()))
            written = sink.write_batches(options, attempt, batches)
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(written)], pa.binary())], ["written"])

        columns = ["topic", "partition", "key", "value", "headers"]
        try:
            answers = placed.select(*columns).mapInArrow(write, "written binary").collect()
        except BaseException:
            sink.resume(options, query)  # undoes what was written
            raise
        messages: list[Written] = [pickle.loads(row.written) for row in answers]
        sink.commit(options, batch_id, messages, {"run": run_id})
        decided = sink.resume(options, query)
        if decided is None or decided.state != {"run": run_id}:
            raise JobFailed(
                f"somebody else drove back dead letters of {self._topic!r} at the same time; this run did nothing",
                hint="run it again: what was driven back is left out",
            )

    def _old_receipts(self) -> Any:
        """Receipts of dead letters that retention took are taken back."""
        from pyspark.sql import functions as F

        starts = [(tp.partition, offset) for tp, offset in self._log_starts.items()]
        bounds = self._context.spark.createDataFrame(starts, "partition int, logStart bigint")
        old = self._receipts().join(F.broadcast(bounds), "partition").where(F.col("offset") < F.col("logStart"))
        gone = receipt(self._topic_id, F.col("partition"), F.col("offset"), F.lit(None))
        letters = (F.col("partition").alias("letterPartition"), F.col("offset").alias("letterOffset"))
        return old.select(gone.alias("row"), *letters).select("row.*", *_LETTER)

    def _summary(self, rows: list[dict[str, Any]], total: int, skipped: dict[str, int]) -> DeadLettersSummary:
        dry = self._context.dry_run
        facts: dict[str, Any] = {"topic": self._topic, "redriven": 0 if dry else total, "skipped": skipped}
        if dry:
            facts["would_be_redriven"] = total
        title = "redrive, dry run: nothing was written" if dry else "redriven"
        columns = ["records", "reason", "to", "most_retries"]
        return DeadLettersSummary(title, facts, rows, columns, redriven=0 if dry else total)
