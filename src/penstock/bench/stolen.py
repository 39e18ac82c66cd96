"""What a hypervisor took: time in which this machine wanted a core and another one had it.

No broker answers then, and no load sends. Linux tells it in ticks of 10 ms; nothing is taken from real machines.
"""

import bisect
import itertools
import threading
import time
from pathlib import Path
from typing import Self

_UNNOTICED_TICKS = 1
"""Per second, over all cores: less than would delay one record in a hundred by 10 ms."""


class StolenTime:
    """The share of it since this was made."""

    def __init__(self) -> None:
        self._begun = _core_times()

    def share(self) -> float:
        """0 where nobody tells."""
        spent = [now - before for now, before in zip(_core_times(), self._begun, strict=True)]
        wanted = sum(spent) - spent[3] - spent[4]  # but idle, and waiting for the disk
        return spent[7] / wanted if wanted > 0 else 0.0


class StolenSeconds:
    """When it was taken: a thread looks ten times per second, from `with` to its end."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stolen-seconds", daemon=True)

    def __enter__(self) -> Self:
        self.look(time.perf_counter(), stolen_ticks())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.look(time.perf_counter(), stolen_ticks())

    def quiet(self, begun: float, seconds: int) -> list[bool]:
        """For each second since `begun` (`time.perf_counter`): whether nothing to speak of was taken in it, nor in
        the one before, of which something may have been left to do."""
        until = [self._ticks_at(begun + number) for number in range(-1, seconds + 1)]
        taken = [after - before for before, after in itertools.pairwise(until)]
        return [max(pair) <= _UNNOTICED_TICKS for pair in itertools.pairwise(taken)]

    def look(self, moment: float, ticks: int) -> None:
        self._seen.append((moment, ticks))

    def _ticks_at(self, moment: float) -> int:
        """As seen next: what was taken before then is in it."""
        place = bisect.bisect_left(self._seen, (moment, 0))
        return self._seen[min(place, len(self._seen) - 1)][1]

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.look(time.perf_counter(), stolen_ticks())


def stolen_ticks() -> int:
    return _core_times()[7]


def _core_times() -> list[int]:
    """User, nice, system, idle, waiting, two kinds of interrupts, stolen; zeros where nobody tells."""
    found = [int(ticks) for ticks in _read().partition("\n")[0].split()[1:9]]
    return found if len(found) == 8 else [0] * 8


def _read() -> str:
    try:
        return Path("/proc/stat").read_text()
    except OSError:
        return ""
