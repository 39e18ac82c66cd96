"""Producers' counters against the log: what was acknowledged must be there, and no more than was sent. Pure.

Told by `penstock.client` producers (`audit=True`); see `penstock.client.audit` for what a cell is.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from penstock.pipeline.audit_findings import Finding
from penstock.pipeline.audit_runs import PartitionFacts

CellKey = tuple[str, int, int, int, int]
"""Topic, partition, producer id, producer epoch, window (milliseconds)."""
_LATEST_ARRIVAL_MS = 600_000
"""Where a log does not begin at 0: how much later than it was made a record may have been appended."""


class Cell(NamedTuple):
    """Totals of one cell as told last."""

    client: str
    incarnation: str
    key: CellKey
    window_ms: int
    part: int
    produced: int
    acknowledged: int
    failed: int
    latencies: tuple[int, ...]


class Life(NamedTuple):
    client: str
    incarnation: str
    cells: int
    closed: bool
    at_ms: int


class Counters(NamedTuple):
    cells: list[Cell]
    lives: list[Life]
    malformed: int


def replay_counters(records: Iterable[tuple[bytes | None, bytes | None]]) -> Counters:
    """The last word of each cell and of each producer; records are in log order."""
    cells: dict[bytes, Cell] = {}
    lives: dict[bytes, Life] = {}
    malformed = 0
    for key, value in records:
        if key is None:
            malformed += 1
            continue
        if value is None:
            cells.pop(key, None)
            lives.pop(key, None)
            continue
        try:
            said = msgspec.json.decode(value)
            if said["kind"] == "counters":
                cells[key] = _cell(said)
            else:
                lives[key] = Life(said["client"], said["incarnation"], said["cells"], said["closed"], said["at"])
        except (msgspec.DecodeError, KeyError, TypeError):
            malformed += 1
    return Counters(list(cells.values()), list(lives.values()), malformed)


def _cell(said: dict[str, Any]) -> Cell:
    key = (said["topic"], said["partition"], said["producer"], said["epoch"], said["window"])
    return Cell(
        said["client"],
        said["incarnation"],
        key,
        said["window_ms"],
        said["part"],
        said["produced"],
        said["acknowledged"],
        said["failed"],
        tuple(said["latencies"]),
    )


class _Sum:
    """What all parts of a cell say. Producers without an identity share a cell."""

    def __init__(self) -> None:
        self.acknowledged = self.failed = self.highest = self.window_ms = 0
        self.clients: set[str] = set()
        self.incarnations: set[str] = set()

    def add(self, cell: Cell) -> None:
        self.acknowledged += cell.acknowledged
        self.failed += cell.failed
        # A batch that changed its identity was sent in one cell and acknowledged in another.
        self.highest += max(cell.produced, cell.acknowledged + cell.failed)
        self.window_ms = max(self.window_ms, cell.window_ms)
        self.clients.add(cell.client)
        self.incarnations.add(cell.incarnation)


def decide_counters(
    counters: Counters,
    logged: Mapping[CellKey, int],
    facts: Mapping[tuple[str, int], PartitionFacts],
) -> list[Finding]:
    """`logged` are the records of each cell in the log. Only partitions in `facts` are judged; where retention or
    compaction took records away, only what is left to be judged is."""
    findings: list[Finding] = []
    sums: dict[CellKey, _Sum] = defaultdict(_Sum)
    for cell in counters.cells:
        sums[cell.key].add(cell)
    closed = {life.incarnation for life in counters.lives if life.closed}
    for key, told in sorted(sums.items()):
        partition = facts.get(key[:2])
        if partition is None:
            continue
        if told.failed:
            findings.append(_found("delivery_failed", key, told.failed, told))
        if not _can_be_judged(partition, key[4], told.window_ms):
            continue
        findings += _judge(key, told, logged.get(key, 0), told.incarnations <= closed)
    return findings + _decide_lives(counters, facts)


def _can_be_judged(partition: PartitionFacts, window: int, window_ms: int) -> bool:
    """Whether all that was written of a window must still be there."""
    if partition.is_whole:
        return True
    if partition.compacted or partition.first_timestamp_ms < 0:
        return False
    return window >= partition.first_timestamp_ms + window_ms + _LATEST_ARRIVAL_MS


def _judge(key: CellKey, told: _Sum, there: int, ended: bool) -> list[Finding]:
    if there < told.acknowledged:
        detail = f"{told.acknowledged} acknowledged, {there} in the log"
        return [_found("counter_loss", key, told.acknowledged - there, told, detail)]
    # Others may write without an identity too, and a running producer has not told its last.
    if there > told.highest and key[2] >= 0 and ended:
        detail = f"{told.highest} sent, {there} in the log"
        return [_found("counter_surplus", key, there - told.highest, told, detail)]
    return []


def _found(kind: str, key: CellKey, count: int, told: _Sum, detail: str = "") -> Finding:
    topic, partition, producer_id, epoch, window = key
    who = f"client {', '.join(sorted(told.clients))}"
    if producer_id >= 0:
        who += f", producer {producer_id} epoch {epoch}"
    said = f"{who}, window {window}" + (f": {detail}" if detail else "")
    return Finding(kind, topic, partition, -1, -1, count, said)


def _decide_lives(counters: Counters, facts: Mapping[tuple[str, int], PartitionFacts]) -> list[Finding]:
    seen: dict[str, set[int]] = defaultdict(set)
    first_cell: dict[str, Cell] = {}
    for cell in counters.cells:
        seen[cell.incarnation].add(cell.part)
        if cell.key[:2] in facts:
            first_cell.setdefault(cell.incarnation, cell)
    findings = []
    for life in counters.lives:
        known = first_cell.get(life.incarnation)
        if known is None:
            continue  # nothing to do with what is audited
        who = f"client {life.client}, incarnation {life.incarnation}"
        missing = life.cells - len(seen[life.incarnation])
        if missing > 0:
            detail = f"{who}: {missing} of {life.cells} cells"
            findings.append(Finding("counters_incomplete", known.key[0], known.key[1], -1, -1, missing, detail))
        if not life.closed:
            findings.append(Finding("producer_running", known.key[0], known.key[1], -1, -1, 0, who))
    return findings


def latency_percentiles(buckets: Sequence[int], points: Sequence[float]) -> dict[str, float] | None:
    """Percentiles out of counts of latencies below 1, 2, 4, … ms: the upper end of the bucket that holds them."""
    total = sum(buckets)
    if not total:
        return None
    found = {}
    for point in points:
        need, seen = point * total, 0
        for power, count in enumerate(buckets):
            seen += count
            if seen >= need:
                found[f"p{point * 100:g}"] = float(2**power)
                break
    return found
