"""Percentiles, best and median, ratios."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.bench.meter import latency_values
from penstock.bench.results.statistics import METRICS, percentile, ratio, summarize
from penstock.bench.settle import has_settled


def test_percentile_is_the_nearest_rank():
    ordered = [float(n) for n in range(1, 1001)]
    assert percentile(ordered, 0.5) == 500
    assert percentile(ordered, 0.99) == 990
    assert percentile(ordered, 0.999) == 999
    assert percentile([7.0], 0.999) == 7


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([0.5, 0.99, 0.999]))
def test_at_least_that_share_does_not_exceed_it(values: list[float], share: float):
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= share * len(ordered) - 1e-9


def test_best_depends_on_the_metric():
    assert summarize([3.0, 1.0, 2.0], METRICS["mb_per_s"]) == (3.0, 2.0)
    assert summarize([3.0, 1.0, 2.0], METRICS["p99_ms"]) == (1.0, 2.0)


def test_ratio():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(3.0, 0.0) is None


def test_latencies_are_told_in_milliseconds():
    assert latency_values([0.003, 0.001, 0.002], "ack_") == pytest.approx(
        {"ack_p50_ms": 2.0, "ack_p99_ms": 3.0, "ack_p999_ms": 3.0}
    )
    assert latency_values([]) == {}


def test_a_broker_has_settled_when_it_gets_no_cheaper():
    assert not has_settled([100.0, 50.0])
    assert not has_settled([100.0, 60.0, 40.0])
    assert not has_settled([100.0, 100.0, 40.0])
    assert has_settled([100.0, 40.0, 39.0, 41.0])
