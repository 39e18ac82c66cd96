"""`audit`: proves that nothing is lost, doubled or out of order, in topics and between topics and their archive.

Reads every batch of the topics (headers and checksums; records only where an archive is compared), on executors.
Counters of producers are read before the ends of the topics are looked up, so that what they tell of is in range.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.client.audit import AUDIT_TOPIC
from penstock.client.types import EARLIEST, LATEST, TopicPartition
from penstock.pipeline import audit_frames as frames
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_compare import ArchiveAudit, compare_archive, open_archive
from penstock.pipeline.audit_counters import CellKey, Counters, decide_counters, latency_percentiles, replay_counters
from penstock.pipeline.audit_findings import Finding, count_kinds, in_order, passed
from penstock.pipeline.audit_report import AuditResult, make_page
from penstock.pipeline.audit_runs import (
    EpochStep,
    PartitionFacts,
    ProducerRuns,
    Run,
    decide_epochs,
    decide_offsets,
    decide_sequences,
)
from penstock.pipeline.audit_scan import BATCH_DDL, CRC, UNREADABLE, ScanRange, plan_scan, scan_ranges
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.lag_job import OFFSETS_TOPIC, commit_rows
from penstock.pipeline.report import check_writable, write_json, write_page
from penstock.pipeline.tasks import parallelism
from penstock.pipeline.topics import find_topics, read_topics

POINTS = [0.5, 0.9, 0.99, 0.999]
_MOST_SHOWN = 200
_THROUGHPUT_WINDOWS = 200


@dataclass(slots=True)
class AuditSummary(JobSummary):
    findings: list[Finding] = field(default_factory=list)

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.findings}


@job
def audit(
    context: JobContext,
    topics: Sequence[str] = (),
    *,
    pattern: str | None = None,
    archive: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    audit_topic: str = AUDIT_TOPIC,
    start_ms: int | None = None,
    open_transaction_ms: int = 900_000,
    producer_expiration_ms: int = 86_400_000,
    html: str | None = None,
    json: str | None = None,
) -> AuditSummary:
    """Audits topics, with an archive also against it. `start_ms`: only what was written from this time on."""
    check_writable(html, json)
    table = None if archive is None else open_archive(archive, storage_options)
    audit = _Audit(context, audit_topic, open_transaction_ms, producer_expiration_ms)
    audit.look(topics, pattern, start_ms)
    if context.dry_run:
        return audit.plan()
    audit.scan()
    audit.judge()
    if table is not None:
        audit.compare(table)
    result = audit.result()
    if html is not None:
        write_page(html, make_page(result))
    summary = _summary(result, html, json)
    if json is not None:
        write_json(json, {**summary.to_json(), **result.to_json()})
    return summary


class _Audit:
    """One run. `look` asks the broker, `scan` and `judge` run on Spark."""

    def __init__(self, context: JobContext, audit_topic: str, open_ms: int, expiration_ms: int) -> None:
        self._context = context
        self._audit_topic = audit_topic
        self._open_ms = open_ms
        self._expiration_ms = expiration_ms
        self._began = time.time()
        self._facts: dict[tuple[str, int], PartitionFacts] = {}
        self._stable_ends: dict[TopicPartition, int] = {}
        self._counters = Counters([], [], 0)
        self._batches: Any = None
        self._totals: list[Any] = []
        self._findings: list[Finding] = []
        self._latencies: dict[str, dict[str, Any]] = {}
        self._throughput: dict[str, list[tuple[int, int]]] = {}
        self._archive: ArchiveAudit | None = None

    # -- the broker -----------------------------------------------------------------------------------------------

    def look(self, topics: Sequence[str], pattern: str | None, start_ms: int | None) -> None:
        with self._context.admin() as admin:
            names = find_topics(admin, topics, pattern)
            known = {topic.name for topic in admin.list_topics(include_internal=True)}
            self._has_counters, self._has_commits = self._audit_topic in known, OFFSETS_TOPIC in known
            partitions = [TopicPartition(name, n) for name, count in names.items() for n in range(count)]
            if self._has_counters and not self._context.dry_run:
                self._counters = self._read_counters(set(names))
            starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
            ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
            stable = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=1)
            since = admin.list_offsets(dict.fromkeys(partitions, start_ms)) if start_ms is not None else {}
            compacted = {name: _is_compacted(admin, name) for name in names}
        for tp in partitions:
            first, end = starts[tp].offset, ends[tp].offset
            begin = 0
            if start_ms is not None:
                begin = since[tp].offset if since[tp].offset >= 0 else end
            self._facts[tp] = PartitionFacts(*tp, begin, end, first, compacted[tp.topic])
            self._stable_ends[tp] = stable[tp].offset

    def _read_counters(self, topics: set[str]) -> Counters:
        """The last word of each cell of these topics, and of every producer."""
        from pyspark.sql import functions as F

        self._context.progress("read counters", 0)
        rows = read_topics(self._context, [self._audit_topic])
        said = F.get_json_object(F.col("value").cast("string"), "$.topic")
        last = rows.groupBy("partition", "key").agg(F.max_by("value", "offset").alias("value"))
        last = last.where(said.isNull() | said.isin(*topics))
        return replay_counters((row.key, row.value) for row in last.toLocalIterator())

    def plan(self) -> AuditSummary:
        rows = [
            {
                "topic": facts.topic,
                "partition": facts.partition,
                "log_start_offset": facts.log_start_offset,
                "from": max(facts.start_offset, facts.log_start_offset),
                "to": facts.end_offset,
                "compacted": facts.compacted,
            }
            for facts in self._facts.values()
        ]
        columns = ["topic", "partition", "log_start_offset", "from", "to", "compacted"]
        records = sum(f.end_offset - max(f.start_offset, f.log_start_offset) for f in self._facts.values())
        said = {"partitions": len(rows), "offsets": records, "counters": self._has_counters}
        return AuditSummary("audit, dry run: nothing was read", said, rows, columns)

    # -- Spark ----------------------------------------------------------------------------------------------------

    def scan(self) -> None:
        spark, bootstrap = self._context.spark, self._context.bootstrap
        wanted = [
            (f.topic, f.partition, max(f.start_offset, f.log_start_offset), f.end_offset)
            for f in self._facts.values()
        ]
        tasks = plan_scan(wanted, 4 * parallelism(spark))
        total = sum(max(end - start, 0) for _, _, start, end in wanted)
        self._context.progress("scan", 0, total)
        self._batches = _scan_frame(spark, bootstrap, tasks).persist()
        self._totals = frames.totals(frames.with_outcomes(self._batches)).collect()
        self._context.progress("scan", total, total)
        self._look_again()

    def _look_again(self) -> None:
        """Retention goes on while the audit runs: what is gone by now was no loss."""
        with self._context.admin() as admin:
            starts = admin.list_offsets({TopicPartition(*key): EARLIEST for key in self._facts})
        first: dict[tuple[str, int], int] = {}
        for row in self._totals:
            key = (row.topic, row.partition)
            first[key] = min(first.get(key, row.oldestMs), row.oldestMs)
        for key, facts in self._facts.items():
            moved = starts[TopicPartition(*key)].offset
            self._facts[key] = facts._replace(log_start_offset=moved, first_timestamp_ms=first.get(key, -1))

    def judge(self) -> None:
        stages = [
            ("offsets", self._judge_offsets),
            ("sequences", self._judge_sequences),
            ("damage", self._judge_batches),
            ("transactions", self._judge_transactions),
            ("counters", self._judge_counters),
            ("latencies", self._measure),
        ]
        for number, (stage, judge) in enumerate(stages):
            self._context.progress(f"judge {stage}", number, len(stages), "checks")
            judge()

    def _judge_offsets(self) -> None:
        runs: dict[tuple[str, int], list[Run]] = defaultdict(list)
        found = frames.offset_runs(self._batches).orderBy("topic", "partition", "run").limit(frames.MOST_ROWS)
        for row in found.collect():
            runs[row.topic, row.partition].append(Run(row.first, row.end - row.first, row.first, row.end))
        for key, facts in self._facts.items():
            self._findings += decide_offsets(facts, runs[key])

    def _judge_sequences(self) -> None:
        producers: dict[tuple[str, int, int, int], ProducerRuns] = {}
        suspicious = frames.suspicious_producers(frames.sequence_runs(self._batches)).limit(frames.MOST_ROWS)
        for row in suspicious.collect():
            key = (row.topic, row.partition, row.producerId, row.producerEpoch)
            known = producers.get(key) or ProducerRuns(row.producerId, row.producerEpoch, [], row.followsEpoch)
            run = Run(row.first, row.length, row.offset, row.endOffset, row.firstMs, row.lastMs)
            producers[key] = known._replace(runs=[*known.runs, run])
        for key, producer in producers.items():
            self._findings += decide_sequences(self._facts[key[:2]], producer, self._expiration_ms)
        steps = frames.epoch_steps(self._batches).limit(frames.MOST_ROWS).collect()
        self._findings += decide_epochs(EpochStep(*row) for row in steps)

    def _judge_batches(self) -> None:
        for row in frames.broken_batches(self._batches).limit(frames.MOST_ROWS).collect():
            span = row.endOffset - row.baseOffset
            place = (row.topic, row.partition, row.baseOffset, row.endOffset)
            if row.problem in (CRC, UNREADABLE):
                detail = f"{row.sizeBytes} bytes" if row.problem == CRC else ""
                self._findings.append(Finding(row.problem, *place, span, detail))
            elif not self._facts[row.topic, row.partition].compacted:
                detail = f"{row.records} records in {span} offsets"
                self._findings.append(Finding("gap_in_batch", *place, span - row.records, detail))

    def _judge_transactions(self) -> None:
        now_ms = int(time.time() * 1000)
        for row in self._totals:
            if row.outcome == "open" and now_ms - row.oldestMs >= self._open_ms:
                detail = f"since {(now_ms - row.oldestMs) // 1000} s, {row.producers} producers"
                place = (row.topic, row.partition, row.firstOffset, row.endOffset)
                self._findings.append(Finding("open_transaction", *place, row.records, detail))

    def _judge_counters(self) -> None:
        logged: dict[CellKey, int] = {}
        told = {cell.key for cell in self._counters.cells}
        for window_ms in sorted({cell.window_ms for cell in self._counters.cells}):
            for row in frames.cell_counts(self._batches, window_ms).toLocalIterator():
                key = (row.topic, row.partition, row.producerId, row.producerEpoch, row.window)
                if key in told:
                    logged[key] = row.records
        self._findings += decide_counters(self._counters, logged, self._facts)

    def _measure(self) -> None:
        from pyspark.sql import functions as F

        for row in frames.append_latencies(self._batches, POINTS).collect():
            points = {f"p{point * 100:g}": value for point, value in zip(POINTS, row.points, strict=True)}
            self._latencies[f"{row.topic}: create to append"] = {**points, "max": row.most, "records": row.records}
        buckets: dict[str, list[int]] = defaultdict(list)
        for cell in self._counters.cells:
            if cell.key[:2] in self._facts:
                before = buckets[cell.key[0]] or [0] * len(cell.latencies)
                buckets[cell.key[0]] = [a + b for a, b in zip(before, cell.latencies, strict=False)]
        for topic, counts in buckets.items():
            found = latency_percentiles(counts, POINTS)
            if found is not None:
                self._latencies[f"{topic}: send to acknowledgement"] = {**found, "records": sum(counts)}
        if self._has_commits:
            names = sorted({topic for topic, _ in self._facts})
            commits = commit_rows(self._context).where(F.col("topic").isin(*names))
            for row in frames.commit_latencies(self._batches, commits, POINTS).collect():
                points = {f"p{point * 100:g}": value for point, value in zip(POINTS, row.points, strict=True)}
                name = f"{row.topic}: create to commit by {row.group}"
                self._latencies[name] = {**points, "max": row.most, "commits": row.commits}
        for row in frames.throughput(self._batches, self._window_ms()).collect():
            self._throughput.setdefault(row.topic, []).append((row.window, row.records))

    def _window_ms(self) -> int:
        """Such that a plot has a few hundred points at most."""
        oldest = min((row.oldestMs for row in self._totals), default=0)
        span_ms = max(int(time.time() * 1000) - oldest, 1)
        return max(1_000, span_ms // _THROUGHPUT_WINDOWS // 1_000 * 1_000)

    def compare(self, table: ArchiveTable) -> None:
        unreadable = [finding for finding in self._findings if finding.kind in (CRC, UNREADABLE)]
        self._archive = compare_archive(self._context, table, self._facts, self._stable_ends, unreadable)
        self._findings += self._archive.findings

    def result(self) -> AuditResult:
        findings = in_order(self._findings)
        if self._batches is not None:
            self._batches.unpersist()
        return AuditResult(
            bootstrap=self._context.bootstrap,
            seconds=round(time.time() - self._began, 1),
            at_ms=int(self._began * 1000),
            facts=list(self._facts.values()),
            totals=[row.asDict() for row in self._totals],
            findings=findings,
            latencies=self._latencies,
            throughput=self._throughput,
            cells=len(self._counters.cells),
            acknowledged=sum(c.acknowledged for c in self._counters.cells if c.key[:2] in self._facts),
            archive=self._archive,
        )


def _scan_frame(spark: Any, bootstrap: str, tasks: list[list[ScanRange]]) -> Any:
    if not tasks:
        return spark.createDataFrame([], BATCH_DDL)

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scan_ranges(bootstrap, tasks[number])

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(scan, BATCH_DDL)


def _is_compacted(admin: Any, topic: str) -> bool:
    for entry in admin.describe_configs("topic", topic, names=["cleanup.policy"]):
        return "compact" in (entry.value or "")
    raise PipelineError(f"the broker does not tell the cleanup.policy of topic {topic!r}")


def _summary(result: AuditResult, html: str | None, json: str | None) -> AuditSummary:
    good = passed(result.findings)
    facts: dict[str, Any] = {
        "verdict": "pass" if good else "fail",
        "partitions": len(result.facts),
        **result.record_counts(),
        "cells_of_counters": result.cells,
        "findings": count_kinds(result.findings),
        "seconds": result.seconds,
    }
    if result.archive is not None:
        facts["archive"] = {"rows": result.archive.rows, "compared": result.archive.compared}
    facts |= {name: path for name, path in (("html", html), ("json_report", json)) if path is not None}
    shown = [finding.to_json() for finding in result.findings[:_MOST_SHOWN]]
    notes = [] if len(shown) == len(result.findings) else [f"{len(result.findings) - len(shown)} more findings"]
    columns = ["severity", "kind", "topic", "partition", "first_offset", "records", "message"]
    title = f"audit {'passed' if good else 'FAILED'}"
    return AuditSummary(title, facts, shown, columns, good, notes, result.findings)
