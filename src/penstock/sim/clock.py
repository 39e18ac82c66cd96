"""Time and chance of one node: virtual, seeded, and not to be trusted more than a real machine's."""

import random

from penstock.sim.loop import SimLoop

EPOCH_S = 1_800_000_000
"""What the wall clocks show when a world begins."""


class SimClock:
    """`skew_ms` is changed by the world: the wall clock jumps, the monotonic one never does."""

    __slots__ = ("_loop", "skew_ms")

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return int((EPOCH_S + self._loop.time()) * 1000) + self.skew_ms

    def monotonic(self) -> float:
        return self._loop.time()


class SimRng:
    __slots__ = ("_random",)

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
