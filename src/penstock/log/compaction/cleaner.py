"""Driving compaction: which log next, one round after the other; files in the pool, swaps on the loop.

A log that turns out to be damaged is reported, and left alone until it was cut or the node starts again. A round that
is overtaken (the topic is deleted, the log truncated, a segment expired) is given up: its files go, and nothing is
lost.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from penstock.log.compaction.cleaned_file import remove_cleaned
from penstock.log.compaction.plan import (
    RoundPlan,
    is_active_overdue,
    measure_dirt,
    plan_round,
    plan_tombstone_round,
    wants_compaction,
)
from penstock.log.compaction.round import Rewritten, Scanned
from penstock.log.compaction.swap import settle_swap, swap_in
from penstock.log.errors import CorruptSegment
from penstock.log.partition_log import PartitionLog
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.model.ports import Clock, Disk
from penstock.model.units import format_bytes

_LOGGER = logging.getLogger(__name__)
T = TypeVar("T")


class RoundWorker(Protocol):
    """Carries out one round, somewhere off the loop."""

    async def scan(self) -> Scanned: ...

    async def rewrite(self, number: int) -> Rewritten: ...

    async def close(self) -> None: ...


class RunInPool(Protocol):
    def __call__(self, work: Callable[[], T]) -> Awaitable[T]: ...


class Candidate(NamedTuple):
    log: PartitionLog
    stable_end_offset: int
    """Its last stable offset: nothing at or above it may be compacted."""


class RoundLost(Exception):
    """Whoever carried out the round is gone; the message says how."""


class _Overtaken(Exception):
    """The log is no longer what the round was planned for."""


class Cleaner:
    """Used on the loop. One log at a time."""

    def __init__(self, clock: Clock, begin: Callable[[Disk, RoundPlan], RoundWorker], run_in_pool: RunInPool) -> None:
        self._clock = clock
        self._begin = begin
        self._run_in_pool = run_in_pool
        self._damaged: dict[PartitionLog, int] = {}
        """Left alone as long as they are what they were: by their generation, since one that is mended was cut."""
        self._horizons: dict[PartitionLog, dict[int, int]] = {}
        """When all tombstones of a segment may go, by base offset; of logs that this cleaner has compacted."""
        self.rounds = 0
        self.on_damaged: Callable[[PartitionLog, CorruptSegment], None] = lambda *_: None

    async def compact_all(self, candidates: Callable[[], Iterable[Candidate]], buffer_bytes: int) -> None:
        """Compacts until no log wants it, the dirtiest first. `candidates` is asked again before every log."""
        tried: set[PartitionLog] = set()
        while True:
            known = [each for each in candidates() if each.log not in tried and self._may_compact(each.log)]
            chosen = self._choose(known)
            if chosen is None:
                break
            tried.add(chosen.log)
            await self.compact(chosen, buffer_bytes)
        self._horizons = {log: due for log, due in self._horizons.items() if not log.is_deleted and due}

    def _may_compact(self, log: PartitionLog) -> bool:
        return (
            log.is_loaded
            and log.config.is_compacted
            and log.has_files
            and log.offline is None
            and log.directory.failure is None
            and self._damaged.get(log) != log.generation
        )

    def _choose(self, candidates: list[Candidate]) -> Candidate | None:
        now_ms = self._clock.now_ms()
        best: tuple[float, Candidate] | None = None
        for candidate in candidates:
            log = candidate.log
            if is_active_overdue(log, now_ms):
                log.roll()  # compacted once it is synced
            dirt = measure_dirt(log, candidate.stable_end_offset, now_ms)
            if wants_compaction(log, dirt):
                rank = dirt.ratio + dirt.is_overdue
            elif self._due_tombstones(log, now_ms):
                rank = 0.0
            else:
                continue
            if best is None or rank > best[0]:
                best = rank, candidate
        return best[1] if best is not None else None

    def _due_tombstones(self, log: PartitionLog, now_ms: int) -> frozenset[int]:
        return frozenset(base for base, due_ms in self._horizons.get(log, {}).items() if due_ms <= now_ms)

    # One log ------------------------------------------------------------------------------------------------

    async def compact(self, candidate: Candidate, buffer_bytes: int) -> None:
        """Rounds over one log until all that may be compacted now is; faults are logged, not raised."""
        log = candidate.log
        try:
            await self._compact(candidate, buffer_bytes)
        except _Overtaken:
            _LOGGER.info("compaction of %s was overtaken and is given up for now", log.name)
        except RoundLost as loss:
            _LOGGER.warning("compaction of %s is tried again later: %s", log.name, loss)
        except CorruptSegment as fault:
            self._damaged[log] = log.generation
            _LOGGER.error("%s is not compacted any more: %s", log.name, fault)
            self.on_damaged(log, fault)
        except OSError as error:
            if log.is_deleted:
                return
            log.directory.write_failed(error)
            if error.errno not in NO_SPACE_ERRORS:
                return
        else:
            return
        if not log.is_deleted and log.directory.failure is None:
            await self._run_in_pool(lambda: remove_cleaned(log.directory.disk, log.path))

    async def _compact(self, candidate: Candidate, buffer_bytes: int) -> None:
        log = candidate.log
        now_ms = self._clock.now_ms()
        dirt = measure_dirt(log, candidate.stable_end_offset, now_ms)
        if not wants_compaction(log, dirt):
            plan = plan_tombstone_round(log, dirt, self._due_tombstones(log, now_ms), now_ms)
            if plan is not None:
                await self._run_round(log, plan)
            return
        end_offset = dirt.end_offset
        while dirt.dirty_bytes > 0:  # more than one round when the buffer is too small for all keys
            await self._run_round(log, plan_round(log, dirt, now_ms, buffer_bytes))
            before, dirt = dirt, measure_dirt(log, min(candidate.stable_end_offset, end_offset), now_ms)
            assert dirt.first_dirty_offset > before.first_dirty_offset

    async def _run_round(self, log: PartitionLog, plan: RoundPlan) -> None:
        directory = log.directory
        generation = log.generation
        # A log that was compacted may have gaps. Recovery must know before there is one.
        directory.cleaned_offsets.setdefault(log.name, plan.first_dirty_offset)
        await self._run_in_pool(directory.write_cleaned_offsets)
        saved_bytes = 0
        worker = self._begin(directory.disk, plan)
        try:
            scanned = await worker.scan()
            for number in range(scanned.groups):
                rewritten = await worker.rewrite(number)
                saved_bytes += await self._swap(log, rewritten, generation)
        except (OSError, CorruptSegment) as fault:
            # Retention or truncation took a file away under the round: no fault of the disk, nor of the log.
            if _is_overtaken(log, generation) or log.segments[0].base_offset > plan.segments[0].base_offset:
                raise _Overtaken from fault
            raise
        finally:
            await worker.close()
        self.rounds += 1
        _check(log, generation)
        if not plan.only_tombstones:
            directory.cleaned_offsets[log.name] = scanned.covered_end_offset
            await self._run_in_pool(directory.write_cleaned_offsets)
            _check(log, generation)
        _LOGGER.info(
            "compacted %s up to offset %d: %s less, %d keys in %d dirty records",
            log.name, scanned.covered_end_offset, format_bytes(saved_bytes), scanned.unique_keys,
            scanned.records_read,
        )  # fmt: skip

    async def _swap(self, log: PartitionLog, rewritten: Rewritten, generation: int) -> int:
        """Puts a rewritten group in its place; returns how many bytes that has saved."""
        _check(log, generation)
        cleaned = rewritten.cleaned
        size_before = log.size_bytes
        saved_bytes = 0
        if cleaned is not None:
            replaced = swap_in(log, cleaned)
            if replaced is None:
                raise _Overtaken
            saved_bytes = size_before - log.size_bytes
            await self._run_in_pool(lambda: settle_swap(log.directory.disk, log.path, cleaned, replaced))
        horizons = self._horizons.setdefault(log, {})
        for base in rewritten.bases:
            horizons.pop(base, None)
        if rewritten.last_horizon_ms is not None:
            horizons[rewritten.bases[0]] = rewritten.last_horizon_ms
        return saved_bytes


def _is_overtaken(log: PartitionLog, generation: int) -> bool:
    return log.is_deleted or log.directory.failure is not None or log.generation != generation


def _check(log: PartitionLog, generation: int) -> None:
    if _is_overtaken(log, generation):
        raise _Overtaken
