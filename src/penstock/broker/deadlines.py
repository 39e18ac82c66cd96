"""Many deadlines, one timer.

Whatever waits at a broker has a deadline, and nearly all of it is answered long before. A timer of its own for each,
made and cancelled, took a tenth of a leader's CPU. Those that wait equally long expire in the order in which they
came, so that only the oldest of every length need be looked at, and the timer is set anew a few times per second.
"""

import asyncio
from itertools import takewhile
from typing import Protocol

_RESOLUTION_S = 0.0005
"""Event loops count in milliseconds: what is due within half of one is due."""
_KEPT_LENGTHS = 64
"""Clients mostly wait as long as the last time. Beyond so many lengths, those that nobody waits for are dropped."""


class Waiter(Protocol):
    def time_out(self) -> None:
        """Called once, unless `Deadlines.remove` came first."""


class Deadlines:
    def __init__(self) -> None:
        self._waiting: dict[int, dict[Waiter, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, waiter: Waiter, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + delay_ms / 1000
        equals = self._waiting.get(delay_ms)
        if equals is None:
            equals = self._waiting[delay_ms] = {}
        equals[waiter] = deadline
        if deadline < self._timer_at:
            self._set_timer(loop, deadline)

    def remove(self, waiter: Waiter, delay_ms: int) -> None:
        """`delay_ms` as it was given to `add`. Whoever is not there any more is no error."""
        equals = self._waiting.get(delay_ms)
        if equals is not None:
            equals.pop(waiter, None)
            if not equals and len(self._waiting) > _KEPT_LENGTHS:
                del self._waiting[delay_ms]

    def _set_timer(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, self._timer_at = None, float("inf")
        latest = loop.time() + _RESOLUTION_S
        due = [
            (waiter, equals)
            for equals in self._waiting.values()
            for waiter, _ in takewhile(lambda each: each[1] <= latest, equals.items())
        ]
        try:
            for waiter, equals in due:
                if equals.pop(waiter, None) is not None:  # what timed out before it may have answered it
                    waiter.time_out()
        finally:
            self._waiting = {delay_ms: equals for delay_ms, equals in self._waiting.items() if equals}
            soonest = min((next(iter(equals.values())) for equals in self._waiting.values()), default=None)
            if soonest is not None and soonest < self._timer_at:
                self._set_timer(loop, soonest)
