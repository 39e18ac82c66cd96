"""A round in steps in the pool: the loop is free between them, and the throttle makes its pauses.

Every step holds the interpreter for a few milliseconds, so this is for small logs and for disks that live in memory;
big logs are given to a process of their own where there is one.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor

from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.round import Rewritten, Round, Scanned
from penstock.model.ports import Disk

_STEP_BYTES = 256 << 10


class PoolWorker:
    """A `cleaner.RoundWorker`."""

    def __init__(self, disk: Disk, plan: RoundPlan, pool: Executor | None, max_bytes_per_second: float) -> None:
        self._round = Round(disk, plan)
        self._pool = pool
        self._max_bytes_per_second = max_bytes_per_second

    async def scan(self) -> Scanned:
        await self._drive(self._round.scan())
        return self._round.scanned

    async def rewrite(self, number: int) -> Rewritten:
        await self._drive(self._round.rewrite(number))
        return self._round.rewritten

    async def close(self) -> None:
        """Nothing to do: files close with their last reference."""

    async def _drive(self, steps: Iterator[int]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            cost, has_more = await loop.run_in_executor(self._pool, _advance, steps)
            if not has_more:
                return
            await asyncio.sleep(max(0.0, cost / self._max_bytes_per_second - (loop.time() - started)))


def _advance(steps: Iterator[int]) -> tuple[int, bool]:
    """What a piece of work cost in bytes, and whether there is more."""
    done = 0
    for cost in steps:
        done += cost
        if done >= _STEP_BYTES:
            return done, True
    return done, False
