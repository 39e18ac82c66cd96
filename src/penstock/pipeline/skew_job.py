"""`skew`: which keys and partitions of a topic bear more than their share, and what would even it out.

Executors cut records down to what is counted (key, size, second) before they reach Spark.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.charts import Bar, Series, bar_chart, share_chart
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.planning import plan_tasks
from penstock.pipeline.report import Page, check_writable, write_json, write_page
from penstock.pipeline.skew_advice import Advice, HotKey, advise, gini, lorenz
from penstock.pipeline.tasks import parallelism
from penstock.pipeline.topics import find_topics, range_rows, source_options, topic_ranges

_DDL = "topic string, partition int, key binary, bytes bigint, second bigint"
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("bytes", pa.int64()),
        ("second", pa.int64()),
    ]
)
_FINE = 1_000  # loads above it are told apart by three digits: a curve needs no more
_MOST_POINTS = 20_000


@dataclass(slots=True)
class SkewSummary(JobSummary):
    topics: list["TopicSkew"] = field(default_factory=list)


class TopicSkew(NamedTuple):
    """Loads are records or bytes, as asked for."""

    topic: str
    records: int
    size_bytes: int
    partition_loads: list[int]
    keys: int
    hot_keys: list[HotKey]
    key_histogram: list[tuple[float, int]]
    peak_per_second: float
    advice: Advice

    @property
    def partition_gini(self) -> float:
        return gini((load, 1) for load in self.partition_loads)

    @property
    def key_gini(self) -> float:
        return gini(self.key_histogram)

    def top_share(self) -> float:
        return sum(hot.share for hot in self.hot_keys if hot.key is not None)

    def to_json(self) -> dict[str, Any]:
        total = max(sum(self.partition_loads), 1)
        return {
            "topic": self.topic,
            "partitions": len(self.partition_loads),
            "records": self.records,
            "bytes": self.size_bytes,
            "keys": self.keys,
            "busiest_partition_share": round(max(self.partition_loads, default=0) / total, 4),
            "imbalance": round(self.advice.imbalance, 3),
            "partition_gini": round(self.partition_gini, 4),
            "key_gini": round(self.key_gini, 4),
            "top_keys_share": round(self.top_share(), 4),
            "peak_per_second": round(self.peak_per_second, 1),
            "suggested_partitions": self.advice.suggested_partitions,
            "expected_imbalance": round(self.advice.expected_imbalance, 3),
            "salting": [
                {"key": said(s.key), "share": round(s.share, 4), "salts": s.salts} for s in self.advice.salting
            ],
            "reasons": self.advice.reasons,
            "partition_loads": self.partition_loads,
            "hot_keys": [{"key": said(h.key), "load": h.load, "share": round(h.share, 4)} for h in self.hot_keys],
        }


def said(key: bytes | None) -> str | None:
    """A key for people."""
    if key is None:
        return None
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return text if text.isprintable() else f"0x{key.hex()}"


@job
def skew(
    context: JobContext,
    topics: Sequence[str] = (),
    *,
    pattern: str | None = None,
    by: str = "records",
    top: int = 20,
    start_ms: int | None = None,
    capacity_per_second: float = 0.0,
    html: str | None = None,
    json: str | None = None,
) -> SkewSummary:
    """`by` is records or bytes. `capacity_per_second`: what one partition should bear, in the same unit."""
    if by not in ("records", "bytes"):
        raise PipelineError(f"load is counted by records or by bytes, not by {by!r}")
    if top < 1:
        raise PipelineError(f"ask for at least one key, not {top}")
    check_writable(html, json)
    with context.admin() as admin:
        names = find_topics(admin, topics, pattern)
    options = source_options(context, list(names), start_ms=start_ms)
    ranges = topic_ranges(options)
    total = sum(r.end - r.start for r in ranges)
    if context.dry_run:
        return SkewSummary("skew, dry run: nothing was read", {"topics": list(names), "offsets": total})
    context.progress("read", 0, total)
    tasks = plan_tasks(ranges, options, parallelism(context.spark))
    began = time.monotonic()
    rows = range_rows(context.spark, options, tasks, _cut, _DDL)
    found = _measure(rows, names, by, top, capacity_per_second)
    context.progress("read", total, total)
    summary = _summary(found, by, time.monotonic() - began)
    if html is not None:
        write_page(html, _page(context.bootstrap, found, by))
    if json is not None:
        write_json(json, summary.to_json())
    return summary


def _cut(batch: pa.RecordBatch) -> pa.RecordBatch:
    """On executors: what is counted of records."""
    sizes = pc.add(_length(batch.column("key")), _length(batch.column("value")))
    seconds = np.asarray(batch.column("timestamp").cast(pa.int64())) // 1_000_000
    columns = [batch.column("topic"), batch.column("partition"), batch.column("key"), sizes, pa.array(seconds)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _length(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _measure(rows: Any, names: dict[str, int], by: str, top: int, capacity: float) -> list[TopicSkew]:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    kept = rows.groupBy("topic", "partition", "key", "second").agg(
        F.count("*").alias("records"), F.sum("bytes").alias("bytes")
    )
    kept = kept.withColumn("load", F.col(by)).persist()
    try:
        partitions = kept.groupBy("topic", "partition").agg(*_sums()).collect()
        keys = kept.groupBy("topic", "key").agg(F.sum("load").alias("load"))
        rank = F.row_number().over(Window.partitionBy("topic").orderBy(F.desc("load"), "key"))
        hottest = keys.withColumn("rank", rank).where(F.col("rank") <= top).orderBy("topic", "rank").collect()
        coarse = F.pow(F.lit(10.0), F.greatest(F.floor(F.log10(F.col("load"))) - 2, F.lit(0)))
        value = F.when(F.col("load") < _FINE, F.col("load")).otherwise(F.floor(F.col("load") / coarse) * coarse)
        spread = keys.where(F.col("key").isNotNull()).groupBy("topic", value.cast("double").alias("value"))
        histogram = spread.agg(F.count("*").alias("keys")).limit(_MOST_POINTS).collect()
        seconds = kept.groupBy("topic", "second").agg(F.sum("load").alias("load"))
        peaks = {r.topic: r.peak for r in seconds.groupBy("topic").agg(F.max("load").alias("peak")).collect()}
    finally:
        kept.unpersist()
    return [_of_topic(name, count, partitions, hottest, histogram, peaks, capacity) for name, count in names.items()]


def _sums() -> list[Any]:
    from pyspark.sql import functions as F

    return [F.sum(name).alias(name) for name in ("records", "bytes", "load")]


def _of_topic(
    topic: str,
    count: int,
    partitions: list[Any],
    hottest: list[Any],
    histogram: list[Any],
    peaks: Any,
    capacity: float,
) -> TopicSkew:
    mine = [row for row in partitions if row.topic == topic]
    loads = [0] * count
    for row in mine:
        loads[row.partition] = row.load
    total = sum(loads)
    hot = [HotKey(_bytes(r.key), r.load, r.load / total if total else 0.0) for r in hottest if r.topic == topic]
    spread = [(row.value, row["keys"]) for row in histogram if row.topic == topic]
    peak = float(peaks.get(topic, 0))
    advice = advise(loads, hot, peak_per_second=peak, capacity_per_second=capacity)
    records, size = sum(row.records for row in mine), sum(row.bytes for row in mine)
    return TopicSkew(topic, records, size, loads, sum(n for _, n in spread), hot, spread, peak, advice)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def _summary(found: list[TopicSkew], by: str, seconds: float) -> SkewSummary:
    rows = [topic.to_json() for topic in found]
    facts = {
        "load": by,
        "topics": len(found),
        "records": sum(topic.records for topic in found),
        "seconds": round(seconds, 1),
    }
    columns = [
        "topic", "partitions", "records", "keys", "imbalance", "partition_gini", "key_gini", "top_keys_share",
        "suggested_partitions",
    ]  # fmt: skip
    notes = [f"{topic.topic}: {reason}" for topic in found for reason in topic.advice.reasons]
    for topic in found:
        for salt in topic.advice.salting:
            notes.append(
                f"{topic.topic}: write key {said(salt.key)!r} as {said(salt.key)}#0 … #{salt.salts - 1}; the "
                f"imbalance goes from {topic.advice.imbalance:.2f} to about {topic.advice.expected_imbalance:.2f}"
            )
    return SkewSummary("skew", facts, rows, columns, notes=notes, topics=found)


def _page(bootstrap: str, found: list[TopicSkew], by: str) -> Page:
    page = Page("Penstock skew", f"{bootstrap} · load in {by}")
    even = all(not topic.advice.reasons for topic in found)
    page.verdict(even, "Even enough." if even else "Some partitions bear more than their share.")
    for topic in found:
        page.section(topic.topic)
        said_of = topic.to_json()
        names = (
            "partitions",
            "records",
            "bytes",
            "keys",
            "imbalance",
            "partition_gini",
            "key_gini",
            "peak_per_second",
        )
        page.facts({name: said_of[name] for name in names})
        for reason in topic.advice.reasons:
            page.text(f"{reason[0].upper()}{reason[1:]}.")
        advice = topic.advice
        if advice.suggested_partitions != advice.partitions or advice.salting:
            page.text(
                f"Suggested: {advice.suggested_partitions} partitions, {len(advice.salting)} salted keys; "
                f"expected imbalance {advice.expected_imbalance:.2f}."
            )
        page.table(said_of["salting"], ["key", "share", "salts"])
        total = max(sum(topic.partition_loads), 1)
        page.figure(
            bar_chart(
                [Bar(f"partition {n}", load, f"{load / total:.1%}") for n, load in _busiest(topic.partition_loads)],
                "Busiest partitions",
            )
        )
        bars = [Bar(said(hot.key) or "(no key)", hot.load, f"{hot.share:.1%}") for hot in topic.hot_keys]
        page.figure(bar_chart(bars, "Busiest keys"))
        curves = [
            Series(f"partitions (Gini {topic.partition_gini:.2f})", lorenz((n, 1) for n in topic.partition_loads)),
            Series(f"keys (Gini {topic.key_gini:.2f})", lorenz(topic.key_histogram)),
        ]
        page.figure(share_chart(curves, "How the load is shared: the smallest so many bear so much"))
    return page


def _busiest(loads: Sequence[int], most: int = 40) -> list[tuple[int, int]]:
    return sorted(enumerate(loads), key=lambda pair: -pair[1])[:most]
