"""`archive`: topics into a Delta table, exactly once, until the end of the topics or for ever.

Rounds: the driver plans ranges of offsets, executors fetch them and write files, the driver commits files and
positions together. Interrupted at any point and run again it goes on behind the last commit; files that were not
committed are no part of the table. While the broker is away a round waits and is repeated.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.client.types import TopicPartition
from penstock.pipeline.archive_files import ArchiveFile, Storage, write_files
from penstock.pipeline.archive_merge import merge_small_files
from penstock.pipeline.archive_source import ArchiveSource, Topics
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.offsets import Offsets, limit_by_share
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.patience import patiently
from penstock.pipeline.planning import OffsetRange, make_ranges, plan_tasks
from penstock.pipeline.tasks import TaskAttempt, parallelism, run_tasks

ROUND_RECORDS = 2_000_000
TARGET_FILE_BYTES = 128 << 20
_MERGE_EVERY_ROUNDS = 50
_KEEP_HOURS = 7 * 24


@dataclass(slots=True)
class ArchiveSummary(JobSummary):
    rows_archived: int = 0
    files_written: int = 0
    bytes_written: int = 0
    rounds: int = 0


class Work(NamedTuple):
    """What one task does."""

    storage: Storage
    options: SourceOptions
    ranges: list[OffsetRange]


@job
def archive(
    context: JobContext,
    topics: Sequence[str] = (),
    *,
    table: str,
    pattern: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    start: str = "earliest",
    continuous: bool = False,
    round_records: int = ROUND_RECORDS,
    round_seconds: float = 10.0,
    group_id: str | None = None,
    target_file_bytes: int = TARGET_FILE_BYTES,
    vacuum: bool = False,
    fail_on_data_loss: bool = True,
    patience_seconds: float = 300.0,
    stopped: threading.Event | None = None,
) -> ArchiveSummary:
    """Archives up to where the topics end at the start, or, `continuous`, until `stopped` is set.

    `start` is `earliest`, `latest` or milliseconds since 1970, for topics that the table does not know yet.
    """
    options = _source_options(context, topics, pattern, start, fail_on_data_loss)
    archiver = _Archiver(context, options, ArchiveTable(Storage.of(table, storage_options)), round_records)
    archiver.group_id = group_id or f"penstock-archive-{table.rstrip('/').rpartition('/')[2]}"
    archiver.patience_seconds = patience_seconds
    archiver.target_file_bytes = target_file_bytes
    with ArchiveSource(options) as source:
        if context.dry_run:
            return archiver.plan(source)
        archiver.begin(source)
        if continuous:
            archiver.run_until(source, stopped or threading.Event(), round_seconds)
        else:
            archiver.run_once(source)
        archiver.finish(vacuum)
        return archiver.summary()


def _source_options(
    context: JobContext, topics: Sequence[str], pattern: str | None, start: str, fail_on_data_loss: bool
) -> SourceOptions:
    if bool(topics) == bool(pattern):
        raise PipelineError("say what to archive: names of topics, or a pattern", hint="give one of the two")
    given = {
        **context.kafka_options(),
        "includeHeaders": "true",
        "includeBatchInfo": "true",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    if pattern:
        given["subscribePattern"] = pattern
    else:
        given["subscribe"] = ",".join(topics)
    if start.isdigit():
        given |= {"startingTimestamp": start, "startingOffsetsByTimestampStrategy": "latest"}
    elif start in ("earliest", "latest"):
        given["startingOffsets"] = start
    else:
        raise PipelineError(f"start is earliest, latest or milliseconds since 1970, not {start!r}")
    return SourceOptions.parse(given)


class _Archiver:
    """One run of the job. `positions` is what the table says; it moves only by commits."""

    def __init__(self, context: JobContext, options: SourceOptions, table: ArchiveTable, round_records: int) -> None:
        self._context = context
        self._options = options
        self._table = table
        self._round_records = round_records
        self.group_id = ""
        self.patience_seconds = 0.0
        self.target_file_bytes = 0
        self._topics = Topics("", {}, [])
        self._positions: Offsets = {}
        self._started_at = time.monotonic()
        self._rounds = self._rows = self._files = self._bytes = 0
        self._merged = (0, 0)
        self._vacuumed: int | None = None

    # -- what there is to do --------------------------------------------------------------------------------------

    def plan(self, source: ArchiveSource) -> ArchiveSummary:
        """What `begin` and `run_once` would do."""
        topics = source.topics()
        known: Offsets = {}
        if self._table.exists():
            self._table.load()
            self._table.check_cluster(topics.cluster_id)
            self._table.check_topic_ids(topics.topic_ids)
            known = self._table.positions(topics.partitions)
        self._topics = topics
        positions = known | self._first_positions(source, known, first_run=True)
        ends = source.end_offsets(positions)
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "archived_to": known.get(tp),
                "end_offset": ends[tp],
                "waiting": ends[tp] - positions[tp],
            }
            for tp in sorted(positions)
        ]
        waiting = sum(ends[tp] - positions[tp] for tp in positions)
        facts = {"table": self._table.storage.root, "topics": len(topics.topic_ids), "waiting": waiting}
        columns = ["topic", "partition", "archived_to", "end_offset", "waiting"]
        return ArchiveSummary("archive, dry run: nothing was written", facts, rows, columns)

    def begin(self, source: ArchiveSource) -> None:
        """Nobody waits for a broker that is not there at the start: most likely the address is wrong."""
        self._topics = source.topics()
        self._table.create(self._topics.cluster_id)
        self._look(source, first_run=True)

    def _look(self, source: ArchiveSource, *, first_run: bool) -> None:
        """Positions of all partitions. Where a new one starts is decided once, and written down with its start."""
        self._table.check_topic_ids(self._topics.topic_ids)
        unknown = [tp for tp in self._topics.partitions if tp not in self._positions]
        known = self._positions | self._table.positions(unknown)
        new = self._first_positions(source, known, first_run=first_run)
        if new:
            self._table.commit([], new, self._topics.topic_ids)
        wanted = set(self._topics.partitions)
        self._positions = {tp: offset for tp, offset in (known | new).items() if tp in wanted}

    def _first_positions(self, source: ArchiveSource, known: Offsets, *, first_run: bool) -> Offsets:
        """`start` is for topics that this table never saw when the job began; what appears later is taken whole."""
        seen = {tp.topic for tp in known}
        new = [tp for tp in self._topics.partitions if tp not in known]
        whole = [tp for tp in new if tp.topic in seen or not first_run]
        by_option = [tp for tp in new if tp not in set(whole)]
        found = source.starts(by_option) if by_option else {}
        return found | (source.first_offsets(whole) if whole else {})

    # -- rounds ---------------------------------------------------------------------------------------------------

    def run_once(self, source: ArchiveSource) -> None:
        ends = source.end_offsets(self._positions)
        total = sum(ends[tp] - self._positions[tp] for tp in ends)
        while self._waiting(ends):
            self._round(source, ends)
            self._context.progress("archive", min(total, total - self._waiting(ends)), total)

    def run_until(self, source: ArchiveSource, stopped: threading.Event, round_seconds: float) -> None:
        while not stopped.is_set():
            began = time.monotonic()
            ends = patiently(lambda: self._renew(source), self.patience_seconds)
            waiting = self._waiting(ends)
            if waiting:
                self._round(source, ends)
                self._context.progress("archive", self._rows)
                if self._rounds % _MERGE_EVERY_ROUNDS == 0:
                    self._merge()
            if waiting <= self._round_records:
                stopped.wait(max(0.0, began + round_seconds - time.monotonic()))

    def _renew(self, source: ArchiveSource) -> Offsets:
        self._topics = source.topics()
        self._look(source, first_run=False)
        return source.end_offsets(self._positions)

    def _waiting(self, ends: Offsets) -> int:
        return sum(max(end - self._positions[tp], 0) for tp, end in ends.items())

    def _round(self, source: ArchiveSource, ends: Offsets) -> None:
        spark = self._context.spark
        upto = limit_by_share(self._positions, ends, self._round_records)
        tasks = plan_tasks(make_ranges(self._positions, upto, self._options), self._options, parallelism(spark))
        work = [Work(self._table.storage, self._options, ranges) for ranges in tasks]
        answers = patiently(lambda: run_tasks(spark, write_ranges, work, "archive"), self.patience_seconds)
        files = [file for answer in answers for file in answer]
        moved: dict[TopicPartition, int] = {tp: end for tp, end in upto.items() if end > self._positions[tp]}
        self._table.commit(files, moved, self._topics.topic_ids)
        self._positions = self._positions | moved
        self._rounds += 1
        self._files += len(files)
        self._rows += sum(file.rows for file in files)
        self._bytes += sum(file.size_bytes for file in files)
        patiently(lambda: source.publish(self.group_id, self._positions), self.patience_seconds)

    # -- the end --------------------------------------------------------------------------------------------------

    def _merge(self) -> None:
        before, after = merge_small_files(self._context.spark, self._table, self.target_file_bytes)
        self._merged = (self._merged[0] + before, self._merged[1] + after)

    def finish(self, vacuum: bool) -> None:
        if self._rounds:
            self._merge()
        if vacuum:
            self._vacuumed = self._table.vacuum(_KEEP_HOURS)

    def summary(self) -> ArchiveSummary:
        facts = {
            "table": self._table.storage.root,
            "topics": len(self._topics.topic_ids),
            "records": self._rows,
            "files": self._files,
            "bytes": self._bytes,
            "rounds": self._rounds,
            "seconds": round(time.monotonic() - self._started_at, 1),
            "group": self.group_id,
        }
        if self._merged[0]:
            facts["merged"] = f"{self._merged[0]} files into {self._merged[1]}"
        if self._vacuumed is not None:
            facts["deleted_files"] = self._vacuumed
        return ArchiveSummary(
            "archive: done",
            facts,
            rows_archived=self._rows,
            files_written=self._files,
            bytes_written=self._bytes,
            rounds=self._rounds,
        )


def write_ranges(work: Work, _: TaskAttempt) -> list[ArchiveFile]:
    """On an executor."""
    return write_files(work.storage, read_ranges(work.options, work.ranges))
