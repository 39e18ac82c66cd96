"""Replication at a bounded rate: what replicas that catch up may take per second, and which replicas that holds for.

Pure; time is an argument. Replicas in sync are never throttled: the watermark waits for them. (KIP-73)
"""

from collections.abc import Sequence

UNLIMITED = (1 << 63) - 1
_WINDOW_S = 1.0


class Throttle:
    """A bucket of one second. It may be overdrawn by one answer, and then nothing goes until it is paid back."""

    __slots__ = ("_left_bytes", "_rate", "_updated_s")

    def __init__(self) -> None:
        self._rate = UNLIMITED
        self._left_bytes = 0.0
        self._updated_s = 0.0

    def is_exceeded(self, rate: int, now_s: float) -> bool:
        if rate >= UNLIMITED:
            return False
        self._refill(rate, now_s)
        return self._left_bytes <= 0

    def take(self, size_bytes: int, rate: int, now_s: float) -> None:
        if rate < UNLIMITED:
            self._refill(rate, now_s)
            self._left_bytes -= size_bytes

    def _refill(self, rate: int, now_s: float) -> None:
        if rate != self._rate:
            self._rate = rate
            self._left_bytes = rate * _WINDOW_S
        else:
            grown = self._left_bytes + (now_s - self._updated_s) * rate
            self._left_bytes = min(grown, rate * _WINDOW_S)
        self._updated_s = now_s


def names_replica(throttled: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas, `partition:broker` or `*`, names this one."""
    return bool(throttled) and ("*" in throttled or f"{partition}:{broker_id}" in throttled)
