"""What a replay writes where: which records of the archive, into which topics, in rounds of a bounded size.

One task writes a partition's records of a round, because two would write them in no order. A replay is known by its
id; how far it is stands with the decision of its last round, see `penstock.pipeline.decisions`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.model.ids import TopicPartition
from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.archive_rows import ALL_TIMES, Slice, may_hold
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.offsets import Offsets, limit_by_share, to_json_dict

_TASK_RECORDS_MIN = 20_000  # smaller partitions share a task


class Selection(NamedTuple):
    """Which records: none of the bounds given means all. Ends are not included."""

    topics: tuple[str, ...] = ()
    start_ms: int | None = None
    end_ms: int | None = None
    start_offsets: Mapping[TopicPartition, int] = MappingProxyType({})
    end_offsets: Mapping[TopicPartition, int] = MappingProxyType({})

    @property
    def times_us(self) -> tuple[int, int]:
        start = ALL_TIMES[0] if self.start_ms is None else self.start_ms * 1000
        end = ALL_TIMES[1] if self.end_ms is None else self.end_ms * 1000
        return start, end


class Piece(NamedTuple):
    """A part of a task: where the rows of a slice go."""

    wanted: Slice
    target: str


def replay_id(storage: Storage, selection: Selection, mapping: Mapping[str, str]) -> str:
    """The same words give the same id, so that the same command goes on with what it began."""
    said = [
        storage.root,
        sorted(selection.topics),
        selection.start_ms,
        selection.end_ms,
        to_json_dict(selection.start_offsets),
        to_json_dict(selection.end_offsets),
        sorted(mapping.items()),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def find_range(table: ArchiveTable, files: Iterable[ArchiveFile], selection: Selection) -> tuple[Offsets, Offsets]:
    """Where each selected partition begins and ends in the archive."""
    from_us, until_us = selection.times_us
    bounds: dict[str, tuple[int, int]] = {}
    archived = set()
    for file in files:
        archived.add(file.topic)
        if file.first_timestamp_us < until_us and file.last_timestamp_us >= from_us:
            low, high = bounds.get(file.topic, (file.first_offset, file.end_offset))
            bounds[file.topic] = (min(low, file.first_offset), max(high, file.end_offset))
    missing = sorted(set(selection.topics) - archived)
    if missing:
        there = ", ".join(sorted(archived)[:10]) or "nothing yet"
        raise PipelineError(f"topic {missing[0]!r} is not in the archive at {table.storage.root}; it holds {there}")
    start: Offsets = {}
    end: Offsets = {}
    for topic in selection.topics or sorted(archived):
        low, high = bounds.get(topic, (0, 0))
        for tp, position in table.topic_positions(topic).items():
            start[tp] = max(selection.start_offsets.get(tp, 0), low)
            end[tp] = max(min(selection.end_offsets.get(tp, position), position, high), start[tp])
    unknown = sorted({*selection.start_offsets, *selection.end_offsets} - end.keys())
    if unknown:
        tp = unknown[0]
        raise PipelineError(f"offsets are given for {tp.topic}-{tp.partition}, which is not replayed or not archived")
    return start, end


def plan_round(
    files: Sequence[ArchiveFile],
    selection: Selection,
    mapping: Mapping[str, str],
    positions: Offsets,
    end: Offsets,
    most_records: int,
) -> tuple[list[list[Piece]], Offsets]:
    """The tasks of the next round, and the positions behind it."""
    upto = limit_by_share(positions, end, most_records)
    pieces = []
    for tp in sorted(upto):
        wanted = Slice(tp.topic, tp.partition, positions[tp], upto[tp], (), selection.times_us)
        holding = tuple(file for file in files if may_hold(file, wanted))
        if holding and wanted.end > wanted.start:
            pieces.append(Piece(wanted._replace(files=holding), mapping.get(tp.topic, tp.topic)))
    return _pack(pieces), upto


def _pack(pieces: list[Piece]) -> list[list[Piece]]:
    """Small pieces share a task. Pieces of one target partition too: their order would else be luck."""
    by_target: dict[TopicPartition, list[Piece]] = {}
    for piece in pieces:
        by_target.setdefault(TopicPartition(piece.target, piece.wanted.partition), []).append(piece)
    tasks: list[list[Piece]] = []
    filled = _TASK_RECORDS_MIN
    for together in by_target.values():
        if filled >= _TASK_RECORDS_MIN:
            tasks.append([])
            filled = 0
        tasks[-1] += together
        filled += sum(piece.wanted.end - piece.wanted.start for piece in together)
    return tasks
