"""`lag`: how far groups are behind, now and over the time that the broker remembers.

Commits over time are in `__consumer_offsets`, decoded on executors; where partitions ended at a time the broker tells
(ListOffsets by timestamp). The topic of commits is compacted: what the cleaner took is not shown, and a plot that has
few points says so by having few points.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client.errors import ClientError
from penstock.client.sync import Admin
from penstock.client.types import LATEST, TopicPartition
from penstock.pipeline.charts import Series, line_chart
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.lag_history import Commit, EndPoint, LagPoint, Trend, lag_history, sum_points, trend
from penstock.pipeline.planning import plan_tasks
from penstock.pipeline.report import Page, check_writable, write_json, write_page
from penstock.pipeline.tasks import parallelism
from penstock.pipeline.topics import range_rows, source_options, topic_ranges
from penstock.wire.errors import WireError
from penstock.wire.records import decode_group_record

OFFSETS_TOPIC = "__consumer_offsets"
_DDL = "group string, topic string, partition int, committed bigint, atMs bigint, place bigint"
_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed", pa.int64()),
        ("atMs", pa.int64()),
        ("place", pa.int64()),
    ]
)
_OFFSET_KEYS = ("OffsetCommitKey", "LegacyOffsetCommitKey")
_MOST_LINES = 8
_DAY_MS = 86_400_000

Key = tuple[str, TopicPartition]


class PartitionLag(NamedTuple):
    """A group's lag in one partition: now, and before."""

    group: str
    partition: TopicPartition
    committed: int
    end_offset: int | None
    history: list[LagPoint]
    trend: Trend

    @property
    def lag(self) -> int | None:
        return None if self.end_offset is None else max(self.end_offset - self.committed, 0)

    def to_json(self) -> dict[str, Any]:
        last = self.history[-1] if self.history else None
        return {
            "group": self.group,
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed,
            "end_offset": self.end_offset,
            "lag": self.lag,
            "lag_seconds": None if last is None or last.lag_ms is None else round(last.lag_ms / 1000, 1),
            "highest_lag": max((point.lag for point in self.history), default=self.lag),
            "state": self.trend.state,
            "produced_per_s": round(self.trend.produced_per_s, 2),
            "consumed_per_s": round(self.trend.consumed_per_s, 2),
            "seconds_to_end": None if self.trend.seconds_to_end is None else round(self.trend.seconds_to_end, 1),
            "history": [list(point) for point in self.history],
        }


@dataclass(slots=True)
class LagSummary(JobSummary):
    partitions: list[PartitionLag] = field(default_factory=list)


@job
def lag(
    context: JobContext,
    groups: Sequence[str] = (),
    *,
    start_ms: int | None = None,
    points: int = 60,
    most_lag: int | None = None,
    html: str | None = None,
    json: str | None = None,
) -> LagSummary:
    """Lag of `groups` (all by default) since `start_ms` (24 hours ago by default), at so many points in time.
    With `most_lag` the summary passes only if no group is further behind."""
    check_writable(html, json)
    if points < 2:
        raise PipelineError(f"a history has at least two points, not {points}")
    now_ms = time.time_ns() // 1_000_000
    with context.admin() as admin:
        names = _find_groups(admin, groups)
        committed = {(name, tp): at.offset for name in names for tp, at in admin.group_offsets(name).items()}
        there = _existing(admin, {tp for _, tp in committed})
        ends = {tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(there, LATEST)).items()}
        if context.dry_run:
            facts = {"groups": len(names), "partitions": len(committed), "points": points}
            return LagSummary("lag, dry run: nothing was read", facts)
        commits: dict[Key, list[Commit]] = {}
        if committed:
            commits = _read_commits(context, set(names), now_ms - _DAY_MS if start_ms is None else start_ms, points)
            ended = _ends_over_time(context, admin, there, commits, now_ms, points)
        else:
            ended = {}
    found = [
        _of_partition(key, offset, commits.get(key, []), ended.get(key[1], []), ends.get(key[1]))
        for key, offset in sorted(committed.items())
    ]
    summary = _summary(found, len(names), most_lag)
    if html is not None:
        write_page(html, _page(context.bootstrap, found, now_ms))
    if json is not None:
        write_json(json, {**summary.to_json(), "partitions": [one.to_json() for one in found]})
    return summary


def _find_groups(admin: Admin, wanted: Sequence[str]) -> list[str]:
    known = sorted(found.group_id for found in admin.list_groups())
    missing = [name for name in wanted if name not in known]
    if missing:
        raise PipelineError(f"there is no group {missing[0]!r}", hint="`penstock group list` shows them")
    return list(wanted) or known


def _existing(admin: Admin, partitions: set[TopicPartition]) -> list[TopicPartition]:
    """A topic may be gone while what was committed of it is not."""
    counts = {topic.name: topic.partitions for topic in admin.list_topics(include_internal=True)}
    return sorted(tp for tp in partitions if tp.partition < counts.get(tp.topic, 0))


def _read_commits(context: JobContext, groups: set[str], start_ms: int, points: int) -> dict[Key, list[Commit]]:
    """The first and last commit of each group and partition in each of so many windows of time, and the last one
    before them."""
    from pyspark.sql import functions as F

    rows = commit_rows(context).where(F.col("group").isin(*groups)).persist()
    commits: dict[Key, list[Commit]] = defaultdict(list)
    try:
        known = rows.where(F.col("atMs") >= start_ms).agg(F.min("atMs").alias("first"), F.max("atMs").alias("last"))
        [bounds] = known.collect()
        first_ms, last_ms = bounds.first or start_ms, bounds.last or start_ms
        since = (F.col("atMs") - F.lit(first_ms)) / F.lit(max((last_ms - first_ms) // points, 1))
        window = F.greatest(F.floor(since), F.lit(-1)).alias("window")
        commit = F.struct("atMs", "committed")
        found = rows.groupBy("group", "topic", "partition", window).agg(
            F.min_by(commit, F.col("place")).alias("first"), F.max_by(commit, F.col("place")).alias("last")
        )
        for row in found.orderBy("group", "topic", "partition", "window").toLocalIterator():
            kept = [row.last] if row.window < 0 or row.first == row.last else [row.first, row.last]
            key = (row.group, TopicPartition(row.topic, row.partition))
            commits[key] += [Commit(max(one.atMs, start_ms), one.committed) for one in kept]
    finally:
        rows.unpersist()
    return commits


def commit_rows(context: JobContext) -> Any:
    """Commits as they are in the broker's own topic: group, topic, partition, committed, atMs, place."""
    options = source_options(context, [OFFSETS_TOPIC])
    ranges = topic_ranges(options)
    context.progress("read commits", 0, sum(r.end - r.start for r in ranges))
    tasks = plan_tasks(ranges, options, parallelism(context.spark))
    return range_rows(context.spark, options, tasks, _decode, _DDL)


def _decode(batch: pa.RecordBatch) -> pa.RecordBatch:
    """On executors: commits out of the records of coordinators. Records of a kind that is not known are left out."""
    rows = []
    keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
    offsets = batch.column("offset").to_pylist()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    for key, value, place, timestamp_us in zip(keys, values, offsets, times, strict=True):
        try:
            known, said = decode_group_record(key or b"", value)
        except WireError:
            continue
        if type(known).__name__ not in _OFFSET_KEYS:
            continue
        name: Any = known
        commit: Any = said
        at_ms = timestamp_us // 1000 if commit is None else commit.commit_timestamp
        offset = -1 if commit is None else commit.offset
        rows.append((name.group, name.topic, name.partition, offset, at_ms, place))
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in _SCHEMA]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _ends_over_time(
    context: JobContext,
    admin: Admin,
    partitions: Sequence[TopicPartition],
    commits: dict[Key, list[Commit]],
    now_ms: int,
    points: int,
) -> dict[TopicPartition, list[EndPoint]]:
    """Where partitions ended at points in time from the first commit on, and now."""
    first_ms = min((one.at_ms for found in commits.values() for one in found), default=now_ms)
    step = max((now_ms - first_ms) / (points - 1), 1)
    times = sorted({min(int(first_ms + step * number), now_ms) for number in range(points)})
    latest = {tp: at.offset for tp, at in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()}
    ended: dict[TopicPartition, list[EndPoint]] = {tp: [] for tp in partitions}
    for number, at_ms in enumerate(times[:-1]):
        context.progress("look up ends", number, len(times), "points")
        try:
            found = admin.list_offsets(dict.fromkeys(partitions, at_ms))
        except ClientError:
            break  # a topic was deleted meanwhile; the present is known
        for tp, at in found.items():
            end = latest[tp] if at.offset < 0 else at.offset
            before = ended[tp][-1].end_offset if ended[tp] else 0
            ended[tp].append(EndPoint(at_ms, max(end, before)))
    for tp, end in latest.items():
        ended[tp].append(EndPoint(now_ms, end))
    return ended


def _of_partition(
    key: Key, committed: int, commits: Sequence[Commit], ends: Sequence[EndPoint], end_offset: int | None
) -> PartitionLag:
    history = lag_history(commits, ends)
    return PartitionLag(*key, committed, end_offset, history, trend(history))


def _summary(found: Sequence[PartitionLag], groups: int, most_lag: int | None) -> LagSummary:
    rows = [{name: value for name, value in one.to_json().items() if name != "history"} for one in found]
    lags: dict[str, int] = defaultdict(int)
    for one in found:
        lags[one.group] += one.lag or 0
    facts: dict[str, Any] = {"groups": groups, "lag": dict(sorted(lags.items()))}
    behind = {} if most_lag is None else {name: count for name, count in lags.items() if count > most_lag}
    notes = [f"group {name} is {count} behind, over {most_lag}" for name, count in behind.items()]
    columns = ["group", "topic", "partition", "committed", "end_offset", "lag", "lag_seconds", "highest_lag", "state"]
    return LagSummary("lag", facts, rows, columns, not behind, notes, list(found))


def _page(bootstrap: str, found: Sequence[PartitionLag], now_ms: int) -> Page:
    page = Page("Penstock lag", bootstrap)
    groups: dict[str, list[PartitionLag]] = defaultdict(list)
    for one in found:
        groups[one.group].append(one)
    series = [Series(name, sum_points([one.history for one in mine])) for name, mine in groups.items()]
    series.sort(key=lambda line: -max((lag for _, lag in line.points), default=0))
    page.section("Groups")
    page.figure(line_chart(series[:_MOST_LINES], "Lag over time, all partitions together", unit="records"))
    for name, mine in sorted(groups.items()):
        page.section(name)
        worst = sorted(mine, key=lambda one: -(one.lag or 0))[:_MOST_LINES]
        lines = [_line(one, [(point.at_ms, point.lag) for point in one.history]) for one in worst]
        page.figure(line_chart(lines, "Lag of the partitions furthest behind", unit="records"))
        late = [
            _line(one, [(point.at_ms, point.lag_ms / 1000) for point in one.history if point.lag_ms is not None])
            for one in worst
        ]
        page.figure(line_chart(late, "How old the next record is", unit="seconds"))
        rows = [one.to_json() for one in mine]
        columns = ["topic", "partition", "committed", "end_offset", "lag", "lag_seconds", "state", "consumed_per_s"]
        page.table(rows, columns)
    return page


def _line(one: PartitionLag, points: Sequence[tuple[float, float]]) -> Series:
    return Series(f"{one.partition.topic}-{one.partition.partition}", points)
