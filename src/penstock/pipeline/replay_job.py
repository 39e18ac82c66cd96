"""`replay`: records of an archive back into topics, exactly once, as they were.

Keys, values, headers, timestamps, partitions and the order within each are kept; offsets are the target's. Rounds:
executors read the archive's files and write transactions, the driver decides each round together with how far the
replay is, then commits. Run again with the same arguments it goes on behind the last round that was decided: what
came into the archive since is replayed too, and nothing twice.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.pipeline import sink
from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.archive_rows import read_slice
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.decisions import Decision
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext, JobSummary, job
from penstock.pipeline.offsets import Offsets, from_json_dict, to_json_dict
from penstock.pipeline.patience import patiently
from penstock.pipeline.replay_plan import Piece, Selection, find_range, plan_round, replay_id
from penstock.pipeline.replay_targets import Targets, check_targets
from penstock.pipeline.sink import Attempt, SinkOptions, Written
from penstock.pipeline.tasks import TaskAttempt, run_tasks

ROUND_RECORDS = 500_000
_RATE_SECONDS = 2.0  # a limited replay commits about so often
_ROWS_PER_BATCH = 50_000
_COLUMNS = ("key", "value", "headers", "timestamp", "partition")


@dataclass(slots=True)
class ReplaySummary(JobSummary):
    rows_replayed: int = 0
    rounds: int = 0


class Work(NamedTuple):
    """What one task does."""

    storage: Storage
    options: SinkOptions
    query: str
    run: str
    batch_id: int
    pieces: list[Piece]


@job
def replay(
    context: JobContext,
    topics: Sequence[str] = (),
    *,
    table: str,
    mapping: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    start_offsets: Offsets | None = None,
    end_offsets: Offsets | None = None,
    replay_name: str | None = None,
    same_topic: bool = False,
    create_topics: bool = False,
    rate: float | None = None,
    round_records: int = ROUND_RECORDS,
    compression: str = "lz4",
    patience_seconds: float = 300.0,
) -> ReplaySummary:
    """Replays `topics` (all by default) into those that `mapping` names. `rate` is in records per second."""
    selection = Selection(tuple(topics), start_ms, end_ms, start_offsets or {}, end_offsets or {})
    archive = ArchiveTable(Storage.of(table, storage_options))
    archive.load()
    files = archive.files()
    start, end = find_range(archive, files, selection)
    named = dict(mapping or {})
    unused = sorted(named.keys() - {tp.topic for tp in end})
    if unused:
        raise PipelineError(f"topic {unused[0]!r} is mapped to {named[unused[0]]!r}, but is not replayed")
    targets = Targets.of(files, end, named)
    notes = check_targets(context, archive, targets, same_topic=same_topic, create=create_topics)
    options = SinkOptions.parse({**context.kafka_options(), "compression": compression})
    query = f"replay-{replay_name or replay_id(archive.storage, selection, named)}"
    replayer = _Replayer(context, archive.storage, files, selection, named, options, query)
    replayer.patience_seconds = patience_seconds
    replayer.rate = rate
    replayer.round_records = round_records if rate is None else max(1, min(round_records, int(rate * _RATE_SECONDS)))
    if context.dry_run:
        return replayer.plan(start, end, notes)
    replayer.run(start, end)
    return replayer.summary(notes)


class _Replayer:
    """One run of the job. `positions` is what the last decision says; it moves only by decisions."""

    def __init__(
        self,
        context: JobContext,
        storage: Storage,
        files: list[ArchiveFile],
        selection: Selection,
        mapping: Mapping[str, str],
        options: SinkOptions,
        query: str,
    ) -> None:
        self._context = context
        self._storage = storage
        self._files = files
        self._selection = selection
        self._mapping = mapping
        self._options = options
        self._query = query
        self._run_id = uuid.uuid4().hex[:8]
        self.patience_seconds = 0.0
        self.rate: float | None = None
        self.round_records = ROUND_RECORDS
        self._rows = self._rounds = 0
        self._resumed = False
        self._started_at = time.monotonic()

    def plan(self, start: Offsets, end: Offsets, notes: list[str]) -> ReplaySummary:
        decided = sink.read_decision(self._options, self._query)
        positions = _positions(start, end, decided)
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "to": self._mapping.get(tp.topic, tp.topic),
                "from_offset": positions[tp],
                "end_offset": end[tp],
            }
            for tp in sorted(end)
        ]
        offsets = sum(end[tp] - positions[tp] for tp in end)
        facts = {"table": self._storage.root, "replay": self._query, "offsets": offsets}
        columns = ["topic", "partition", "to", "from_offset", "end_offset"]
        return ReplaySummary("replay, dry run: nothing was written", facts, rows, columns, notes=notes)

    def run(self, start: Offsets, end: Offsets) -> None:
        decided = sink.resume(self._options, self._query)
        positions = _positions(start, end, decided)
        self._resumed = decided is not None
        batch_id = decided.batch_id + 1 if decided is not None else 0
        total = sum(end[tp] - positions[tp] for tp in end)
        while left := sum(end[tp] - positions[tp] for tp in end):
            began = time.monotonic()
            self._context.progress("replay", total - left, total, "offsets")
            positions, rows = self._round(batch_id, positions, end)
            batch_id += 1
            self._rows += rows
            self._rounds += 1
            if self.rate:
                time.sleep(max(0.0, began + rows / self.rate - time.monotonic()))
        self._context.progress("replay", total, total, "offsets")

    def _round(self, batch_id: int, positions: Offsets, end: Offsets) -> tuple[Offsets, int]:
        tasks, upto = plan_round(self._files, self._selection, self._mapping, positions, end, self.round_records)
        if not tasks:
            return upto, 0  # nothing of it is in the archive: found again as quickly if this is lost
        work = [Work(self._storage, self._options, self._query, self._run_id, batch_id, pieces) for pieces in tasks]
        spark = self._context.spark
        written = patiently(lambda: run_tasks(spark, write_pieces, work, "replay"), self.patience_seconds)
        state = {"positions": to_json_dict(upto)}
        patiently(lambda: sink.commit(self._options, batch_id, written, state), self.patience_seconds)
        return upto, sum(message.rows for message in written)

    def summary(self, notes: list[str]) -> ReplaySummary:
        facts: dict[str, Any] = {
            "table": self._storage.root,
            "replay": self._query,
            "records": self._rows,
            "rounds": self._rounds,
            "resumed": self._resumed,
            "seconds": round(time.monotonic() - self._started_at, 1),
        }
        title = "replay: done" if self._rounds else "replay: nothing left to do"
        return ReplaySummary(title, facts, notes=notes, rows_replayed=self._rows, rounds=self._rounds)


def _positions(start: Offsets, end: Offsets, decided: Decision | None) -> Offsets:
    known = from_json_dict((decided.state or {}).get("positions", {})) if decided is not None else {}
    return {tp: min(max(known.get(tp, start[tp]), start[tp]), end[tp]) for tp in end}


def write_pieces(work: Work, attempt: TaskAttempt) -> Written:
    """On an executor."""
    who = Attempt(work.query, work.run, work.batch_id, attempt.number, attempt.attempt)
    return sink.write_batches(work.options, who, _rows(work))


def _rows(work: Work) -> Iterator[pa.RecordBatch]:
    for piece in work.pieces:
        for table in read_slice(work.storage, piece.wanted, _COLUMNS):
            topic = pa.repeat(pa.scalar(piece.target, pa.string()), table.num_rows)
            chosen = table.select(_COLUMNS).append_column("topic", topic)
            yield from chosen.to_batches(max_chunksize=_ROWS_PER_BATCH)
