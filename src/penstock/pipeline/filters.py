"""What a query's filters say about topic, partition, offset and time, so that less is fetched.

Filters only narrow what is read; Spark applies them again to the rows. So whatever is not understood is left out, and
a bound may be too wide but never too narrow. A lower bound in time is an offset, because all records before the first
one of that time are older. An upper bound is not: where producers set the time, older records may follow; it holds
only where the broker does.
"""

import datetime
from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.model.ids import TopicPartition

_FIRST, _END = 0, 2**62


class Bounds(NamedTuple):
    """None: not bounded. `offset_end` and `until_ms` are exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_start: int = _FIRST
    offset_end: int = _END
    from_ms: int | None = None
    until_ms: int | None = None

    def admits(self, tp: TopicPartition) -> bool:
        if self.topics is not None and tp.topic not in self.topics:
            return False
        return self.partitions is None or tp.partition in self.partitions


EVERYTHING = Bounds()


def read_filters(filters: Iterable[Any]) -> Bounds:
    """From the filters that Spark hands to a source (`pyspark.sql.datasource.Filter`), which hold all at once."""
    bounds = Bounds()
    for given in filters:
        if getattr(given, "attribute", None) and len(given.attribute) == 1:
            bounds = _narrowed(
                bounds, given.attribute[0].lower(), type(given).__name__, getattr(given, "value", None)
            )
    return bounds


def _narrowed(bounds: Bounds, column: str, kind: str, value: Any) -> Bounds:
    if column == "topic":
        return bounds._replace(topics=_one_of(bounds.topics, kind, value, str))
    if column == "partition":
        return bounds._replace(partitions=_one_of(bounds.partitions, kind, value, int))
    if column == "offset":
        start, end = _range(kind, value)
        return bounds._replace(offset_start=max(bounds.offset_start, start), offset_end=min(bounds.offset_end, end))
    if column == "timestamp" and isinstance(value, datetime.datetime):
        return _narrowed_in_time(bounds, kind, value)
    return bounds


def _one_of(before: frozenset[Any] | None, kind: str, value: Any, wanted: type) -> frozenset[Any] | None:
    if kind in ("EqualTo", "EqualNullSafe") and isinstance(value, wanted):
        said = frozenset((value,))
    elif kind == "In":
        said = frozenset(each for each in value if isinstance(each, wanted))
    else:
        return before
    return said if before is None else before & said


def _range(kind: str, value: Any) -> tuple[int, int]:
    """What a comparison with whole numbers leaves, as [start, end)."""
    if kind == "In":
        numbers = [each for each in value if isinstance(each, int)]
        return (min(numbers), max(numbers) + 1) if numbers else (_FIRST, _FIRST)
    if not isinstance(value, int):
        return _FIRST, _END
    return {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value + 1, _END),
        "GreaterThanOrEqual": (value, _END),
        "LessThan": (_FIRST, value),
        "LessThanOrEqual": (_FIRST, value + 1),
    }.get(kind, (_FIRST, _END))


def _narrowed_in_time(bounds: Bounds, kind: str, value: datetime.datetime) -> Bounds:
    """To whole milliseconds, which is what records have: down for the start, up for the end."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    since = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    start_ms = since // datetime.timedelta(milliseconds=1)
    end_ms = start_ms + 1
    if kind in ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"):
        bounds = bounds._replace(from_ms=max(bounds.from_ms or 0, start_ms))
    if kind in ("EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual"):
        bounds = bounds._replace(until_ms=end_ms if bounds.until_ms is None else min(bounds.until_ms, end_ms))
    return bounds
