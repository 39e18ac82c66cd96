"""Continuity: runs of numbers that follow each other, and what lies between them. Pure.

A log is cut into runs (maximal stretches in log order without a jump) by Spark; a healthy one has a single run. What
is decided here is what the jumps between runs mean. Offsets count up for ever; sequence numbers wrap at 2³¹.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.pipeline.audit_findings import Finding

SEQUENCE_MODULUS = 1 << 31


class Run(NamedTuple):
    """`length` consecutive numbers from `first` on, found at `offset` (up to `end_offset`) of the log."""

    first: int
    length: int
    offset: int
    end_offset: int
    first_ms: int = 0
    last_ms: int = 0


class Jump(NamedTuple):
    """Numbers [first, end), counted without wrapping, and the run before or in which it shows."""

    first: int
    end: int
    run: Run
    before: Run | None = None


class Walk(NamedTuple):
    missing: list[Jump]
    repeated: list[Jump]
    late: list[Jump]
    end: int
    """Behind the highest number seen."""


def walk(runs: Sequence[Run], start: int | None = None, modulus: int | None = None) -> Walk:
    """Numbers that never came, that came twice, and that came after higher ones; `start` is the first expected."""
    missing: list[Jump] = []
    repeated: list[Jump] = []
    late: list[Jump] = []
    if start is None:
        start = runs[0].first if runs else 0
    end = start
    before: Run | None = None
    for run in runs:
        first = run.first if modulus is None else end + _signed(run.first - end, modulus)
        if first > end:
            missing.append(Jump(end, first, run, before))
        elif first < end:
            missing, filled, again = _fill(missing, first, min(first + run.length, end), run)
            late += filled
            repeated += again
        end = max(end, first + run.length)
        before = run
    return Walk(missing, repeated, late, end)


def _signed(distance: int, modulus: int) -> int:
    """The shorter way round the circle."""
    distance %= modulus
    return distance - modulus if distance >= modulus // 2 else distance


def _fill(missing: list[Jump], first: int, end: int, run: Run) -> tuple[list[Jump], list[Jump], list[Jump]]:
    """A run that goes back to [first, end): what is still missing, what it filled, and what was there already."""
    left: list[Jump] = []
    filled: list[Jump] = []
    again: list[Jump] = []
    at = first
    for gap in missing:
        low, high = max(gap.first, at), min(gap.end, end)
        if low >= high:
            left.append(gap)
            continue
        if gap.first < low:
            left.append(gap._replace(end=low))
        if high < gap.end:
            left.append(gap._replace(first=high))
        filled.append(Jump(low, high, run))
        if at < low:
            again.append(Jump(at, low, run))
        at = high
    if at < end:
        again.append(Jump(at, end, run))
    return left, filled, again


# -- offsets ------------------------------------------------------------------------------------------------------


class PartitionFacts(NamedTuple):
    """What the broker says of a partition. `start_offset` is where the audit began; offsets before it are unknown."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    log_start_offset: int  # at the end of the audit: retention goes on meanwhile
    compacted: bool = False
    first_timestamp_ms: int = -1  # of the first batch that was audited

    @property
    def is_whole(self) -> bool:
        """Whether the log was audited from the very first record, and nothing was removed from it."""
        return self.start_offset == 0 and self.log_start_offset == 0 and not self.compacted


def decide_offsets(facts: PartitionFacts, runs: Sequence[Run]) -> list[Finding]:
    """What is wrong with the offsets of a partition. Runs are in log order."""

    def found(kind: str, first: int, end: int, detail: str = "") -> Finding:
        return Finding(kind, facts.topic, facts.partition, first, end, end - first, detail)

    findings: list[Finding] = []
    if facts.log_start_offset > 0 and facts.start_offset <= facts.log_start_offset:
        findings.append(found("retention_hole", 0, facts.log_start_offset))
    start = max(facts.start_offset, facts.log_start_offset)
    kept = [run for run in runs if run.first + run.length > start]
    if kept:  # a first batch may begin before what was asked for
        start = min(start, kept[0].first)
    result = walk(kept, start)
    for gap in result.missing:
        if gap.end <= facts.log_start_offset:
            continue  # in the retention hole
        kind = "compacted" if facts.compacted else "gap"
        findings.append(found(kind, max(gap.first, facts.log_start_offset), gap.end))
    findings += [found("duplicate_offsets", jump.first, jump.end) for jump in result.repeated]
    findings += [found("disorder", jump.first, jump.end) for jump in result.late]
    if result.end < facts.end_offset:
        findings.append(found("cut_off", result.end, facts.end_offset, f"its end is {facts.end_offset}"))
    return findings


# -- sequences ----------------------------------------------------------------------------------------------------


class ProducerRuns(NamedTuple):
    """Sequence numbers of one producer id and epoch in one partition."""

    producer_id: int
    epoch: int
    runs: Sequence[Run]
    follows_epoch: bool = False
    """Whether an earlier epoch of the producer is in the partition: then this one must begin at 0."""


def decide_sequences(facts: PartitionFacts, producer: ProducerRuns, expiration_ms: int) -> list[Finding]:
    """What is wrong with the sequence of one producer. Brokers forget producers that are silent for
    `expiration_ms`, and take any number from them then."""
    who = f"producer {producer.producer_id} epoch {producer.epoch}"
    runs = producer.runs
    must_start = facts.is_whole or (producer.follows_epoch and not facts.compacted)
    result = walk(runs, 0 if must_start else None, SEQUENCE_MODULUS)

    def found(kind: str, jump: Jump) -> Finding:
        numbers = _numbers(jump)
        place = jump.run
        first = jump.before.end_offset if jump.before is not None else place.offset
        # Missing records have no offset: what is named is where they would have been.
        at = (min(first, place.offset), place.offset + 1) if "gap" in kind or "start" in kind else place[2:4]
        return Finding(kind, facts.topic, facts.partition, at[0], at[1], jump.end - jump.first, f"{who}, {numbers}")

    findings = [found(_missing_kind(facts, jump, expiration_ms), jump) for jump in result.missing]
    findings += [found("sequence_duplicate", jump) for jump in result.repeated]
    findings += [found("sequence_disorder", jump) for jump in result.late]
    if not must_start and not facts.compacted and runs and runs[0].first:
        first = Jump(0, runs[0].first, runs[0])
        findings.append(found("sequence_before_range", first)._replace(records=0))
    return findings


def _missing_kind(facts: PartitionFacts, jump: Jump, expiration_ms: int) -> str:
    if facts.compacted:
        return "compacted"
    if jump.before is None:
        return "sequence_start"
    return "sequence_expired" if jump.run.first_ms - jump.before.last_ms >= expiration_ms else "sequence_gap"


def _numbers(jump: Jump) -> str:
    first, last = jump.first % SEQUENCE_MODULUS, (jump.end - 1) % SEQUENCE_MODULUS
    return f"sequence number {first}" if first == last else f"sequence numbers {first} to {last}"


class EpochStep(NamedTuple):
    """A batch whose producer epoch or leader epoch is lower than that of the one before it."""

    topic: str
    partition: int
    offset: int
    end_offset: int
    producer_id: int  # −1: it is about the leader epoch
    before: int
    after: int


def decide_epochs(steps: Iterable[EpochStep]) -> list[Finding]:
    findings = []
    for step in steps:
        if step.producer_id < 0:
            kind, detail = "leader_epoch_disorder", f"leader epoch {step.after} after {step.before}"
        else:
            kind = "producer_epoch_disorder"
            detail = f"producer {step.producer_id}, epoch {step.after} after {step.before}"
        count = step.end_offset - step.offset
        findings.append(Finding(kind, step.topic, step.partition, step.offset, step.end_offset, count, detail))
    return findings
