"""A round in steps in the pool: the loop is free between them, and the throttle makes its pauses.

A step holds the interpreter for a few milliseconds, so this is for small logs and for disks that live in memory; big
logs are given to a process of their own (`worker`).
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Executor

from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.round import Rewritten, Round, Scanned
from penstock.log.compaction.throttle import Throttle, advance
from penstock.model.ports import Disk

_STEP_BYTES = 128 << 10


class PoolWorker:
    """A `cleaner.RoundWorker`."""

    def __init__(self, disk: Disk, plan: RoundPlan, pool: Executor | None, max_bytes_per_second: float) -> None:
        self._round = Round(disk, plan)
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._throttle = Throttle(max_bytes_per_second, self._loop.time())

    async def scan(self) -> Scanned:
        await self._drive(self._round.scan())
        return self._round.scanned

    async def rewrite(self, number: int) -> Rewritten:
        await self._drive(self._round.rewrite(number))
        return self._round.rewritten

    async def close(self) -> None:
        """Nothing to do: files close with their last reference."""

    async def _drive(self, steps: Iterator[int]) -> None:
        loop = self._loop
        has_more = True
        while has_more:
            cost, has_more = await loop.run_in_executor(self._pool, advance, steps, _STEP_BYTES)
            await asyncio.sleep(self._throttle.pause_s(cost, loop.time()))
