"""Many seeds, on all cores, and one seed again: what `penstock sim run`, the tests and `make sim` share."""

import gc
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple

from penstock.sim.cluster import Result, run_seed

LAST_LINES = 40
"""How much of its trace a failed seed brings along."""


class Outcome(NamedTuple):
    """One seed that was run. `failure` says what is wrong with it, with the way there."""

    seed: int
    nodes: int
    seconds: float
    result: Result | None
    failure: str | None
    lines: tuple[str, ...] = ()


def try_seed(
    seed: int, nodes: int, sink: Callable[[str], None] | None = None, *, wire: bool = False, plain: bool = False
) -> Outcome:
    """Runs a seed; a failed one is run again for its trace, which is the same to the last event."""
    start = time.perf_counter()
    try:
        result = run_seed(seed, nodes, sink=sink, wire=wire, plain=plain)
    except Exception as error:  # the edge: whatever is wrong with a seed is its outcome
        failure = f"{type(error).__name__}: {error}"
        lines = _last_lines(seed, nodes, plain) if sink is None else ()
        where = "".join(traceback.format_exception(error)[-6:])
        return Outcome(seed, nodes, time.perf_counter() - start, None, f"{failure}\n{where}", lines)
    finally:
        gc.collect()
    return Outcome(seed, nodes, time.perf_counter() - start, result, None)


def _last_lines(seed: int, nodes: int, plain: bool) -> tuple[str, ...]:
    lines: deque[str] = deque(maxlen=LAST_LINES)

    def keep(line: str) -> None:
        if "(aiokafka" not in line:  # its lines on each attempt to connect would be all there is
            lines.append(line)

    try:
        run_seed(seed, nodes, sink=keep, plain=plain)
    except Exception:  # the same failure again
        return tuple(lines)
    return ("the seed did not fail again: the world is not deterministic",)


def run_seeds(seeds: Iterable[int], nodes: Callable[[int], int], jobs: int = 1) -> Iterator[Outcome]:
    """Outcomes in the order in which they become known."""
    if jobs <= 1:
        for seed in seeds:
            yield try_seed(seed, nodes(seed))
        return
    with ProcessPoolExecutor(jobs, initializer=_prepare) as pool:
        waiting: set[Future[Outcome]] = set()
        for seed in seeds:
            waiting.add(pool.submit(try_seed, seed, nodes(seed)))
            if len(waiting) >= 2 * jobs:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in waiting:
            yield future.result()


def _prepare() -> None:
    """What is imported stays: the collection after every seed need not look at it again."""
    import aiokafka  # noqa: F401 - every seed's clients use it

    gc.collect()
    gc.freeze()


class Tally:
    """Adds outcomes up for people to read."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seeds = 0
        self.acknowledged = 0
        self.turns = 0
        self.faults = 0
        self.snapshots_written = self.snapshots_taken = self.rotted = 0
        self.virtual_s = 0.0
        self.failures: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        if outcome.result is not None:
            self.acknowledged += outcome.result.acknowledged
            self.turns += outcome.result.turns
            self.faults += outcome.result.faults
            self.snapshots_written += outcome.result.snapshots_written
            self.snapshots_taken += outcome.result.snapshots_taken
            self.rotted += outcome.result.rotted
            self.virtual_s += outcome.result.virtual_s
        if outcome.failure is not None:
            self.failures.append(outcome)

    @property
    def seeds_per_minute(self) -> float:
        return 60 * self.seeds / max(time.perf_counter() - self._start, 1e-9)

    def progress(self, total: int) -> str:
        """One line for whoever waits."""
        left_min = (total - self.seeds) / max(self.seeds_per_minute, 1e-9)
        left = f"{left_min / 60:.1f} h" if left_min >= 90 else f"{left_min:.1f} min"
        rate = f"{self.seeds_per_minute:.0f} seeds/min"
        return f"{self.seeds} of {total} seeds, {len(self.failures)} failed, {rate}, {left} left"

    def __str__(self) -> str:
        return (
            f"{self.seeds} seeds, {len(self.failures)} failed, {self.seeds_per_minute:.0f} seeds/min: "
            f"{self.virtual_s:.0f} s of virtual time, {self.turns} turns, {self.faults} faults, "
            f"{self.snapshots_written} metadata snapshots written, {self.snapshots_taken} fetched, "
            f"{self.rotted} bits rotted, "
            f"{self.acknowledged} acknowledged records held"
        )
