"""Skew is measured as defined, and the advice makes it smaller where it is followed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.sync import Admin, Producer
from penstock.pipeline.skew_advice import EVEN_ENOUGH, HotKey, advise, gini, imbalance, lorenz, place, salted
from penstock.testing import Broker

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline import JobContext
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.skew_job import skew

loads = st.lists(st.integers(0, 1_000), min_size=1, max_size=40)


@settings(max_examples=100, deadline=None)
@given(loads)
def test_gini_is_the_mean_difference(values: list[int]) -> None:
    """Grouped by value or not, it is half the mean absolute difference over the mean."""
    grouped = [(float(value), values.count(value)) for value in set(values)]
    count, total = len(values), sum(values)
    expected = 0.0
    if count > 1 and total:
        expected = sum(abs(a - b) for a in values for b in values) / (2 * count * total)
    assert gini(grouped) == pytest.approx(expected, abs=1e-9)
    curve = lorenz(grouped)
    assert curve[-1] == (1.0, 1.0)
    assert all(y <= x + 1e-9 for x, y in curve)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=30), st.integers(2, 24))
def test_salting_does_not_make_it_worse(values: list[int], partitions: int) -> None:
    keys = [(b"key-%d" % number, float(load)) for number, load in enumerate(sorted(values, reverse=True))]
    total = sum(load for _, load in keys)
    now = place(keys, 0.0, partitions)
    hot = [HotKey(key, load, load / total) for key, load in keys]
    advice = advise(now, hot)
    assert advice.imbalance == pytest.approx(imbalance(now))
    cuts = {salt.key: salt.salts for salt in advice.salting}
    after = [piece for key, load in keys for piece in salted(key, load, cuts.get(key, 1))]
    assert advice.expected_imbalance == pytest.approx(imbalance(place(after, 0.0, advice.suggested_partitions)))
    for salt in advice.salting:
        assert salt.share * partitions > EVEN_ENOUGH
        assert 2 <= salt.salts <= partitions


def test_advice_on_the_number_of_partitions() -> None:
    even = [100.0] * 4
    assert advise(even, []).reasons == []
    needs = advise(even, [], peak_per_second=900, capacity_per_second=100)
    assert needs.suggested_partitions == 9
    uneven = advise([700.0, 100, 100, 100], [HotKey(b"a", 5, 0.005)])
    assert "producers choose partitions by themselves" in uneven.reasons[0]


def test_a_hot_key_is_found_and_salt_suggested(spark: Any, broker: Broker, tmp_path: Path) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("skewed", 4)
    with Producer(broker.bootstrap) as producer:
        for number in range(600):
            producer.send("skewed", b"x" * 10, key=b"whale" if number % 2 else f"fish {number}", timestamp_ms=number)
        producer.send("skewed", b"", partition=0, timestamp_ms=0)
    page, report = tmp_path / "skew.html", tmp_path / "skew.json"
    context = JobContext(broker.bootstrap, spark=spark)
    summary = skew(context, ["skewed"], top=3, html=str(page), json=str(report))
    [topic] = summary.topics
    assert topic.records == 601
    assert topic.keys == 301
    assert (topic.hot_keys[0].key, topic.hot_keys[0].load) == (b"whale", 300)
    assert topic.peak_per_second == 601
    assert [salt.key for salt in topic.advice.salting] == [b"whale"]
    assert topic.advice.expected_imbalance < topic.advice.imbalance
    assert topic.key_gini > 0.4
    assert json.loads(report.read_text())["rows"][0]["hot_keys"][0]["key"] == "whale"
    assert "whale" in page.read_text()
    by_bytes = skew(context, ["skewed"], by="bytes", top=1)
    assert by_bytes.topics[0].hot_keys[0].load == 300 * 15
    with pytest.raises(PipelineError, match="not by 'colour'"):
        skew(context, ["skewed"], by="colour")
