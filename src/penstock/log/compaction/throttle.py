"""Work in steps, and the pauses between them that keep compaction below `log.cleaner.io.max.bytes.per.second`."""

from collections.abc import Iterator

_LONGEST_PAUSE_S = 1.0


class Throttle:
    """Told what was done and when, says how long to pause. Time not used in a pause is not saved up."""

    __slots__ = ("_debt_s", "_last", "_max_bytes_per_second")

    def __init__(self, max_bytes_per_second: float, now: float) -> None:
        self._max_bytes_per_second = max_bytes_per_second
        self._debt_s = 0.0
        self._last = now

    def pause_s(self, done_bytes: int, now: float) -> float:
        """`done_bytes` since the last call; `now` in seconds that never go back."""
        self._debt_s = max(0.0, self._debt_s - (now - self._last)) + done_bytes / self._max_bytes_per_second
        self._last = now
        return min(self._debt_s, _LONGEST_PAUSE_S)


def advance(steps: Iterator[int], step_bytes: int) -> tuple[int, bool]:
    """Works for about `step_bytes`; what it cost, and whether there is more to do."""
    done = 0
    for cost in steps:
        done += cost
        if done >= step_bytes:
            return done, True
    return done, False
