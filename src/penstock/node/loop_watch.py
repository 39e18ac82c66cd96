"""Says in the log when the event loop came late: everything in a broker waits for it, and others take it for dead.

A timer measures how late it is called. The loop's thread was at work all the while (something blocked it), or it did
not get the processor (a starved machine, a stopped process): its own CPU time tells which. One line in a while is
enough, however often it happens. Nothing is decided by this.
"""

import asyncio
import logging
import time
from collections.abc import Callable

log = logging.getLogger("penstock.node")

_EVERY_S = 0.25
_LATE_S = 0.5
_QUIET_S = 10.0


class Lateness:
    """Measurements in, now and then a sentence out. Pure."""

    def __init__(self) -> None:
        self._said_at = float("-inf")
        self._times = 0
        self._worst_s = 0.0
        self._worst_cpu_s = 0.0

    def note(self, late_s: float, cpu_s: float, now_s: float) -> str | None:
        """A turn came `late_s` late, in which the loop's thread worked for `cpu_s`."""
        if late_s > _LATE_S:
            self._times += 1
            if late_s > self._worst_s:
                self._worst_s, self._worst_cpu_s = late_s, cpu_s
        if not self._times or now_s - self._said_at < _QUIET_S:
            return None
        text = self._describe()
        self._said_at, self._times, self._worst_s = now_s, 0, 0.0
        return text

    def _describe(self) -> str:
        late_ms, cpu_ms = self._worst_s * 1000, self._worst_cpu_s * 1000
        if cpu_ms > late_ms / 2:
            why = f"it was busy for {cpu_ms:.0f} ms of it: something blocked it"
        else:
            why = f"it ran for only {cpu_ms:.0f} ms of it: the machine is overloaded, or the process was stopped"
        often = f", and {self._times - 1} more times" if self._times > 1 else ""
        return f"the event loop came {late_ms:.0f} ms late{often}; {why}"


class LoopWatch:
    """Used on the loop that it watches."""

    def __init__(self, monotonic: Callable[[], float], cpu_seconds: Callable[[], float] = time.thread_time) -> None:
        self._monotonic = monotonic
        self._cpu_seconds = cpu_seconds
        self._lateness = Lateness()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._due_s = self._monotonic() + _EVERY_S
        self._cpu_s = self._cpu_seconds()
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s = self._monotonic()
        text = self._lateness.note(now_s - self._due_s, self._cpu_seconds() - self._cpu_s, now_s)
        if text is not None:
            log.warning(text)
        self.start()
