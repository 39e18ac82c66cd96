"""An audit's outcome as a page for people and as JSON for programs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.pipeline.audit_compare import ArchiveAudit
from penstock.pipeline.audit_findings import FAIL, INFO, KINDS, WARN, Finding, count_kinds, passed
from penstock.pipeline.audit_runs import PartitionFacts
from penstock.pipeline.charts import Bar, Series, Strip, bar_chart, line_chart, strip_chart
from penstock.pipeline.report import Page

_MOST_ROWS = 500
_MOST_STRIPS = 60


class AuditResult(NamedTuple):
    bootstrap: str
    seconds: float
    at_ms: int
    facts: list[PartitionFacts]
    totals: list[dict[str, Any]]
    """Per partition and outcome of transactions."""
    findings: list[Finding]
    latencies: dict[str, dict[str, Any]]
    throughput: dict[str, list[tuple[int, int]]]
    cells: int
    acknowledged: int
    archive: ArchiveAudit | None

    def record_counts(self) -> dict[str, int]:
        counts = dict.fromkeys(("batches", "records", "aborted", "open", "markers"), 0)
        for row in self.totals:
            counts["batches"] += row["batches"]
            name = {"aborted": "aborted", "open": "open", "marker": "markers"}.get(row["outcome"], "records")
            counts[name] += row["records"]
        return counts

    def partitions(self) -> list[dict[str, Any]]:
        """A row for each partition."""
        rows = []
        for facts in self.facts:
            mine = [row for row in self.totals if (row["topic"], row["partition"]) == facts[:2]]
            by_outcome = {row["outcome"]: row["records"] for row in mine}
            bad = [f for f in self.findings if (f.topic, f.partition) == facts[:2] and f.severity == FAIL]
            rows.append(
                {
                    "topic": facts.topic,
                    "partition": facts.partition,
                    "log_start_offset": facts.log_start_offset,
                    "end_offset": facts.end_offset,
                    "compacted": facts.compacted,
                    "batches": sum(row["batches"] for row in mine),
                    "records": by_outcome.get("plain", 0) + by_outcome.get("committed", 0),
                    "aborted": by_outcome.get("aborted", 0),
                    "open": by_outcome.get("open", 0),
                    "bytes": sum(row["bytes"] for row in mine),
                    "failures": len(bad),
                }
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        return {
            "bootstrap": self.bootstrap,
            "at_ms": self.at_ms,
            "partitions_audited": self.partitions(),
            "all_findings": [finding.to_json() for finding in self.findings],
            "latencies_ms": self.latencies,
            "throughput": {topic: [list(point) for point in points] for topic, points in self.throughput.items()},
        }


def make_page(result: AuditResult) -> Page:
    moment = datetime.fromtimestamp(result.at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    page = Page("Penstock audit", f"{result.bootstrap} · {moment} · {result.seconds} s")
    good = passed(result.findings)
    failures = [finding for finding in result.findings if finding.severity == FAIL]
    topics = len({facts.topic for facts in result.facts})
    page.verdict(good, _verdict(good, failures, topics, len(result.facts)))
    facts: dict[str, Any] = {**result.record_counts(), "acknowledged to audited producers": result.acknowledged}
    if result.archive is not None:
        facts["archive"] = f"{result.archive.root}: {result.archive.rows:,} rows in {result.archive.files:,} files"
        facts["offsets compared with the archive"] = result.archive.compared
    page.facts(facts)
    _findings(page, result)
    page.section("Partitions")
    page.figure(strip_chart(_strips(result), "Offsets, and what was found on them"))
    rows = result.partitions()
    page.table(rows[:_MOST_ROWS], list(rows[0]) if rows else [])
    page.section("Latency, milliseconds")
    page.text(
        "From creation to appending where topics have message.timestamp.type=LogAppendTime (of the first record of "
        "each batch); from sending to acknowledgement where producers tell counters (upper ends of powers of two); "
        "and to the commits of groups that the broker still has."
    )
    page.table([{"of": name, **points} for name, points in result.latencies.items()], _latency_columns(result))
    bars = [Bar(name, points["p99"], f"p50 {points['p50']:g}") for name, points in result.latencies.items()]
    page.figure(bar_chart(bars, "99 of 100 within", unit="ms"))
    page.section("Records over time")
    series = [Series(topic, points) for topic, points in sorted(result.throughput.items())]
    page.figure(line_chart(series[:8], "Records per window, by their timestamps", unit="records"))
    return page


def _verdict(good: bool, failures: Sequence[Finding], topics: int, partitions: int) -> str:
    scope = f"{topics} topic{'s' * (topics != 1)}, {partitions} partition{'s' * (partitions != 1)}"
    if good:
        return f"Passed: nothing is lost, doubled or out of order in {scope}."
    kinds = ", ".join(f"{count} × {kind.replace('_', ' ')}" for kind, count in count_kinds(failures).items())
    return f"Failed in {scope}: {kinds}."


def _findings(page: Page, result: AuditResult) -> None:
    page.section("Findings")
    kinds = count_kinds(result.findings)
    rows = [
        {"severity": KINDS[kind][0], "kind": kind, "findings": count, "meaning": KINDS[kind][1]}
        for kind, count in kinds.items()
    ]
    page.table(rows, ["severity", "kind", "findings", "meaning"], marked="severity")
    for severity, heading in ((FAIL, "What failed"), (WARN, "Warnings"), (INFO, "For information")):
        mine = [finding.to_json() for finding in result.findings if finding.severity == severity]
        if mine:
            page.text(f"{heading} ({len(mine)}{f', first {_MOST_ROWS}' if len(mine) > _MOST_ROWS else ''})")
            columns = ["kind", "topic", "partition", "first_offset", "end_offset", "records", "detail"]
            page.table(mine[:_MOST_ROWS], columns, marked="severity")


def _strips(result: AuditResult) -> list[Strip]:
    """Partitions with failures first."""
    strips = []
    for facts in result.facts:
        mine = [f for f in result.findings if (f.topic, f.partition) == facts[:2] and f.first_offset >= 0]
        grave = sum(1 for finding in mine if finding.severity == FAIL)
        marks = [(f.first_offset, f.end_offset, f.severity) for f in reversed(mine)]
        strips.append((-grave, Strip(f"{facts.topic}-{facts.partition}", 0, facts.end_offset, marks)))
    return [strip for _, strip in sorted(strips, key=lambda pair: pair[0])[:_MOST_STRIPS]]


def _latency_columns(result: AuditResult) -> list[str]:
    names = {name for points in result.latencies.values() for name in points}
    order = ["p50", "p90", "p99", "p99.9", "max", "records", "commits"]
    return ["of", *(name for name in order if name in names)]
