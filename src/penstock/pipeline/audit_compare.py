"""The part of an audit that compares topics with their archive: what can be compared, and what came of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.types import TopicPartition
from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_archive import (
    ArchiveRange,
    archive_rows,
    archived_spans,
    check_files,
    decide_files,
    decide_rows,
    differing_buckets,
    differing_rows,
    fingerprints,
    holes_before,
    in_ranges,
)
from penstock.pipeline.audit_findings import Finding
from penstock.pipeline.audit_runs import PartitionFacts
from penstock.pipeline.job import JobContext
from penstock.pipeline.planning import plan_tasks
from penstock.pipeline.tasks import parallelism, run_tasks
from penstock.pipeline.topics import range_rows, source_options

_FILES_PER_CHECK = 64
_MOST_HOLES = 1_000
_MOST_SKIPPED = 100


class ArchiveAudit(NamedTuple):
    root: str
    files: int
    rows: int
    compared: int
    """Offsets that were compared."""
    findings: list[Finding]


def open_archive(root: str, storage_options: Mapping[str, str] | None) -> ArchiveTable:
    """Raises where there is none, before anything costly begins."""
    table = ArchiveTable(Storage.of(root, storage_options))
    table.load()
    return table


def compare_archive(
    context: JobContext,
    table: ArchiveTable,
    facts: Mapping[tuple[str, int], PartitionFacts],
    stable_ends: Mapping[TopicPartition, int],
    unreadable: Sequence[Finding],
) -> ArchiveAudit:
    """`unreadable` are spans of the topics that the scan found damaged: they are not read again."""
    table.load()  # what was archived meanwhile counts
    topics = {topic for topic, _ in facts}
    files = [file for file in table.files() if file.topic in topics]
    context.progress("check files", 0, len(files), "files")
    chunks = [files[at : at + _FILES_PER_CHECK] for at in range(0, len(files), _FILES_PER_CHECK)]
    work = [(table.storage, [file.path for file in chunk]) for chunk in chunks]
    checks = [check for answer in run_tasks(context.spark, check_files, work, "audit: files") for check in answer]
    findings, good = decide_files(files, checks)
    gone = [file for file, check in zip(files, checks, strict=True) if check.rows is None]
    positions = table.positions([TopicPartition(*key) for key in facts])
    rows = archive_rows(context.spark, table.storage, good)
    spans = {(row.topic, row.partition): row for row in archived_spans(rows).collect()}
    ranges: list[ArchiveRange] = []
    for key, partition in facts.items():
        tp = TopicPartition(*key)
        if tp not in positions:
            findings.append(Finding("archive_behind", *key, -1, -1, partition.end_offset, "not archived at all"))
            continue
        first = spans[key].first if key in spans else positions[tp]
        ranges.append(_range(tp, partition, first, positions[tp], gone, unreadable))
        findings += _around(partition, first, positions[tp], stable_ends[tp], spans.get(key))
    context.progress("compare", 0, sum(max(r.end - r.start, 0) for r in ranges))
    findings += _compare(context, rows, ranges)
    findings += _holes(context.spark, rows, facts.values())
    compared = sum(piece.end - piece.start for r in ranges for piece in r.pieces())
    return ArchiveAudit(
        table.storage.root, len(files), sum(row.records for row in spans.values()), compared, findings
    )


def _range(
    tp: TopicPartition,
    facts: PartitionFacts,
    first: int,
    position: int,
    gone: Sequence[ArchiveFile],
    unreadable: Sequence[Finding],
) -> ArchiveRange:
    """From the first archived record on: of files that are gone the log still knows where they began."""
    lost = [
        f.first_offset for f in gone if f.topic == tp.topic and f.first_partition <= tp.partition < f.end_partition
    ]
    start = max(min([first, *lost]), facts.start_offset, facts.log_start_offset)
    mine = [f for f in unreadable if (f.topic, f.partition) == tp]
    skipped = tuple((f.first_offset, f.end_offset) for f in mine)
    if len(skipped) > _MOST_SKIPPED or any(f.kind == "unreadable" for f in mine):
        skipped = ((start, max(position, start)),)  # bytes that are no batch cannot be read around
    return ArchiveRange(tp, start, max(position, start), skipped)


def _around(facts: PartitionFacts, first: int, position: int, stable_end: int, span: Any) -> list[Finding]:
    """What is only in one of the two because they do not cover the same time."""
    place = (facts.topic, facts.partition)
    found = []
    if position < stable_end:
        found.append(Finding("archive_behind", *place, position, stable_end, stable_end - position))
    if span is not None and first < facts.log_start_offset:
        end = min(facts.log_start_offset, position)
        found.append(Finding("archive_older", *place, first, end, end - first))
    return found


def _compare(context: JobContext, rows: Any, ranges: Sequence[ArchiveRange]) -> list[Finding]:
    pieces = [piece for compared in ranges for piece in compared.pieces()]
    if not pieces:
        return []
    names = sorted({piece.topic for piece in pieces})
    options = source_options(context, names)
    tasks = plan_tasks(pieces, options, parallelism(context.spark))
    topic = fingerprints(range_rows(context.spark, options, tasks))
    archive = in_ranges(fingerprints(rows), [r for r in ranges if r.pieces()])
    buckets = differing_buckets(topic, archive)
    return decide_rows(differing_rows(topic, archive, buckets)) if buckets else []


def _holes(spark: Any, rows: Any, facts: Any) -> list[Finding]:
    starts = [(f.topic, f.partition, f.log_start_offset) for f in facts if f.log_start_offset > 0]
    if not starts:
        return []
    log_starts = spark.createDataFrame(starts, "topic string, partition int, logStart bigint")
    found = holes_before(rows, log_starts).orderBy("topic", "partition", "first").limit(_MOST_HOLES).collect()
    return [Finding("archive_hole", h.topic, h.partition, h.first, h.end, h.end - h.first) for h in found]
