"""Lag over time, out of commits and of where partitions ended when. Pure.

Commits are kept as long as `__consumer_offsets` keeps them: it is compacted, so of the past the last commit of each
group and partition is sure, and the ones before it as long as the cleaner has not come by.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

FALLING_BEHIND, CATCHING_UP, KEEPING_UP, STOPPED, IDLE = (
    "falling behind",
    "catching up",
    "keeping up",
    "stopped",
    "idle",
)
_NOTEWORTHY = 0.02  # of what was produced meanwhile


class Commit(NamedTuple):
    """The last commit of a group in a window of time. An offset of −1: the commit was deleted."""

    at_ms: int
    offset: int


class EndPoint(NamedTuple):
    """Where a partition ended at a time."""

    at_ms: int
    end_offset: int


class LagPoint(NamedTuple):
    at_ms: int
    committed: int
    end_offset: int
    lag: int
    lag_ms: int | None
    """How long ago the end was where the group is now; None where the past does not reach back that far."""


def lag_history(commits: Sequence[Commit], ends: Sequence[EndPoint]) -> list[LagPoint]:
    """Lag at each time of `ends`, from the first commit on. Both in order of time."""
    times = [commit.at_ms for commit in commits]
    points = []
    for end in ends:
        at = bisect_right(times, end.at_ms) - 1
        if at < 0 or commits[at].offset < 0:
            continue
        committed = commits[at].offset
        lag = max(end.end_offset - committed, 0)
        points.append(LagPoint(end.at_ms, committed, end.end_offset, lag, _behind_ms(ends, end, committed)))
    return points


def _behind_ms(ends: Sequence[EndPoint], now: EndPoint, committed: int) -> int | None:
    """Since when the record at `committed` has been there, between the points that are known."""
    if committed >= now.end_offset:
        return 0
    offsets = [end.end_offset for end in ends]
    at = bisect_left(offsets, committed + 1)  # the first time at which the record was there
    if at >= len(ends):
        return 0
    if at == 0:
        return None if ends[0].at_ms < now.at_ms else 0
    before, after = ends[at - 1], ends[at]
    grown = max(after.end_offset - before.end_offset, 1)
    since = before.at_ms + (after.at_ms - before.at_ms) * (committed - before.end_offset) / grown
    return max(int(now.at_ms - since), 0)


class Trend(NamedTuple):
    """How a group does over the time that is known. Rates per second; `seconds_to_end` where it is catching up."""

    state: str
    produced_per_s: float
    consumed_per_s: float
    seconds_to_end: float | None


def trend(points: Sequence[LagPoint]) -> Trend:
    """Over the later half of the points: what matters is where it is going."""
    recent = points[len(points) // 2 :] if len(points) > 3 else points
    if len(recent) < 2 or recent[-1].at_ms <= recent[0].at_ms:
        lag = recent[-1].lag if recent else 0
        return Trend(IDLE if not lag else STOPPED, 0.0, 0.0, None)
    first, last = recent[0], recent[-1]
    seconds = (last.at_ms - first.at_ms) / 1000
    produced = last.end_offset - first.end_offset
    consumed = last.committed - first.committed
    rates = (produced / seconds, consumed / seconds)
    change = last.lag - first.lag
    small = max(_NOTEWORTHY * produced, 1)
    if not produced and not consumed:
        return Trend(IDLE if not last.lag else STOPPED, *rates, None)
    if not consumed and last.lag:
        return Trend(STOPPED, *rates, None)
    if change > small:
        return Trend(FALLING_BEHIND, *rates, None)
    if change < -small:
        return Trend(CATCHING_UP, *rates, last.lag / (-change / seconds))
    return Trend(KEEPING_UP, *rates, None)


def sum_points(series: Sequence[Sequence[LagPoint]]) -> list[tuple[int, int]]:
    """The lag of all partitions together at each time at which any of them is known; others keep their last."""
    times = sorted({point.at_ms for points in series for point in points})
    total = []
    places = [0] * len(series)
    for at_ms in times:
        lag = 0
        for number, points in enumerate(series):
            while places[number] < len(points) and points[places[number]].at_ms <= at_ms:
                places[number] += 1
            if places[number]:
                lag += points[places[number] - 1].lag
        total.append((at_ms, lag))
    return total
