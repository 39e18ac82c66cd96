"""Takes the offsets of deleted topics out of the shards led here, in steps: others get the loop in between."""

import asyncio
from collections.abc import Callable, Mapping

from penstock.broker.group_shards import LedShard
from penstock.groups.decision import Now

_STEP = 1_000  # tombstones over all shards: 12 ms, or twice that on a busy machine
_PAUSE_MS = 1


class OffsetSweeper:
    """Shards know what is to go; this one knows when."""

    def __init__(self, shards: Mapping[int, LedShard], now: Callable[[], Now]) -> None:
        """`shards` are those that are served at any moment."""
        self._shards = shards
        self._now = now
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Some shard may have something to sweep: the first step is taken now, unless there is one to come."""
        if self._timer is None:
            self._step()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self) -> None:
        self._timer = None
        now = self._now()
        room = _STEP
        for led in list(self._shards.values()):
            while room > 0 and not led.closed and (decision := led.shard.decide_sweep(now, room)) is not None:
                led.apply(decision, now)
                room -= 1 + len(decision.records)
        self._wait_for_next(now)

    def _wait_for_next(self, now: Now) -> None:
        waiting = [led.shard.next_sweep_ms() for led in self._shards.values()]
        next_ms = min((each for each in waiting if each is not None), default=None)
        if next_ms is not None:
            delay_ms = max(next_ms - now.steady_ms, _PAUSE_MS)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._step)
