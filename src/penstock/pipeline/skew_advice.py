"""How uneven a distribution is, and what to do about it: more partitions, or salt for keys that are too hot. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.model.hashing import murmur2

EVEN_ENOUGH = 1.25
"""The busiest partition over the average; below it nothing is suggested."""
_MOST_PARTITIONS = 10_000
_MOST_SALTS = 256


def gini(counts: Iterable[tuple[float, int]]) -> float:
    """Gini coefficient out of (value, how many have it): 0 when all are equal, towards 1 when one has everything."""
    ordered = sorted((value, how_many) for value, how_many in counts if how_many > 0)
    total_items = sum(how_many for _, how_many in ordered)
    total = sum(value * how_many for value, how_many in ordered)
    if total_items < 2 or total <= 0:
        return 0.0
    weighted, rank = 0.0, 0
    for value, how_many in ordered:
        # Ranks rank+1 … rank+how_many share a value.
        weighted += value * (how_many * rank + how_many * (how_many + 1) / 2)
        rank += how_many
    found = 2 * weighted / (total_items * total) - (total_items + 1) / total_items
    return min(max(found, 0.0), 1.0)


def lorenz(counts: Iterable[tuple[float, int]], points: int = 100) -> list[tuple[float, float]]:
    """The share of all that the smallest so many have, for a plot."""
    ordered = sorted((value, how_many) for value, how_many in counts if how_many > 0)
    items = sum(how_many for _, how_many in ordered)
    total = sum(value * how_many for value, how_many in ordered)
    if not items or total <= 0:
        return [(0.0, 0.0), (1.0, 1.0)]
    curve, seen, summed = [(0.0, 0.0)], 0, 0.0
    for value, how_many in ordered:
        seen += how_many
        summed += value * how_many
        curve.append((seen / items, summed / total))
    step = max(len(curve) // points, 1)
    return [*curve[:-1:step], curve[-1]]


class HotKey(NamedTuple):
    """A key (None: records without one) with its share of a topic's load."""

    key: bytes | None
    load: float
    share: float


class Salting(NamedTuple):
    key: bytes
    share: float
    salts: int


class Advice(NamedTuple):
    """What would make a topic even. `imbalance` is the busiest partition over the average."""

    partitions: int
    suggested_partitions: int
    salting: list[Salting]
    imbalance: float
    expected_imbalance: float
    reasons: list[str]


def imbalance(loads: Sequence[float]) -> float:
    """The busiest over the average: 1 is even."""
    average = sum(loads) / len(loads) if loads else 0.0
    return max(loads) / average if average > 0 else 1.0


def place(keys: Iterable[tuple[bytes, float]], rest: float, partitions: int) -> list[float]:
    """Loads of partitions when keys go where the default partitioner sends them and the rest spreads evenly."""
    loads = [rest / partitions] * partitions
    for key, load in keys:
        loads[(murmur2(key) & 0x7FFFFFFF) % partitions] += load
    return loads


def salted(key: bytes, load: float, salts: int) -> list[tuple[bytes, float]]:
    """The keys that a salted key becomes: `key#0`, `key#1`, …"""
    if salts <= 1:
        return [(key, load)]
    return [(key + b"#%d" % number, load / salts) for number in range(salts)]


def advise(
    partition_loads: Sequence[float],
    hot_keys: Sequence[HotKey],
    *,
    peak_per_second: float = 0.0,
    capacity_per_second: float = 0.0,
) -> Advice:
    """`hot_keys` are the busiest; loads in any one unit. Capacity is what one partition (its leader, or one consumer)
    should bear at the peak; without it the number of partitions is left alone."""
    count = max(len(partition_loads), 1)
    total = sum(partition_loads)
    now = imbalance(partition_loads)
    reasons: list[str] = []
    wanted = count
    if capacity_per_second > 0 and peak_per_second > 0:
        needed = min(math.ceil(peak_per_second / capacity_per_second), _MOST_PARTITIONS)
        if needed > count:
            wanted = needed
            reasons.append(
                f"the peak of {peak_per_second:,.0f}/s needs {needed} partitions of {capacity_per_second:,.0f}/s each"
            )
        elif needed < count / 4:
            reasons.append(f"{needed} partitions would bear the peak; there are {count}")
    salting = _salting(hot_keys, wanted)
    expected = _expected(hot_keys, salting, total, wanted)
    if salting:
        hottest = hot_keys[0] if hot_keys[0].key is not None else next(k for k in hot_keys if k.key is not None)
        reasons.append(
            f"the busiest key has {hottest.share:.1%} of the load, an even share of {wanted} partitions is "
            f"{1 / wanted:.1%}: no number of partitions helps, salt it"
        )
    elif now > EVEN_ENOUGH and hot_keys and expected > EVEN_ENOUGH and total > 0:
        better = _better_count(hot_keys, total, wanted)
        if better is not None:
            reasons.append(f"busy keys share partitions by chance; {better} partitions part them")
            wanted, expected = better, _expected(hot_keys, [], total, better)
    elif now > EVEN_ENOUGH and total > 0:
        reasons.append(
            "partitions are uneven though no key is: producers choose partitions by themselves, or partitions were "
            "added later"
        )
    return Advice(count, wanted, salting, now, expected, reasons)


def _salting(hot_keys: Sequence[HotKey], partitions: int) -> list[Salting]:
    """Keys with more than an even share of a partition, and into how many they must be cut to have less."""
    found = []
    for hot in hot_keys:
        if hot.key is None or partitions < 2 or hot.share * partitions <= EVEN_ENOUGH:
            continue
        # Twice as many as just enough, for salted keys meet by chance too; never more than partitions.
        salts = min(max(math.ceil(2 * hot.share * partitions), 2), _MOST_SALTS, partitions)
        found.append(Salting(hot.key, hot.share, salts))
    return found


def _expected(hot_keys: Sequence[HotKey], salting: Sequence[Salting], total: float, partitions: int) -> float:
    cuts: Mapping[bytes, int] = {salt.key: salt.salts for salt in salting}
    keyed = [(hot.key, hot.load) for hot in hot_keys if hot.key is not None]
    pieces = [piece for key, load in keyed for piece in salted(key, load, cuts.get(key, 1))]
    rest = max(total - sum(load for _, load in keyed), 0.0)
    return imbalance(place(pieces, rest, partitions))


def _better_count(hot_keys: Sequence[HotKey], total: float, partitions: int) -> int | None:
    """The smallest number of partitions, up to twice as many, with which the keys as they are spread well."""
    for count in range(partitions + 1, min(2 * partitions, _MOST_PARTITIONS) + 1):
        if _expected(hot_keys, [], total, count) <= EVEN_ENOUGH:
            return count
    return None
