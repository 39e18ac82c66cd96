"""Lag over time: as a model has it, and as a real group left it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.sync import Admin, Consumer, Producer
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.pipeline.lag_history import (
    CATCHING_UP,
    FALLING_BEHIND,
    IDLE,
    KEEPING_UP,
    STOPPED,
    Commit,
    EndPoint,
    LagPoint,
    lag_history,
    sum_points,
    trend,
)
from penstock.testing import Broker

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline import JobContext
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.lag_job import lag

steps = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_history_equals_what_happened(happened: list[tuple[int, int, int]]) -> None:
    """Time passes, records are produced, some are consumed and committed."""
    now = end = committed = 0
    commits, ends, expected = [], [], []
    born: list[int] = []
    for passed, produced, consumed in happened:
        now += passed
        born += [now] * produced
        end += produced
        committed = min(committed + consumed, end)
        commits.append(Commit(now, committed))
        ends.append(EndPoint(now, end))
        expected.append((now, end - committed, now - born[committed] if committed < end else 0))
    for point, (at, behind, oldest) in zip(lag_history(commits, ends), expected, strict=True):
        assert (point.at_ms, point.lag) == (at, behind)
        # Between two points nobody knows; never more than the step before the record came.
        if point.lag_ms is not None:
            assert oldest <= point.lag_ms <= oldest + 50


def points(*pairs: tuple[int, int]) -> list[LagPoint]:
    return [LagPoint(n * 1_000, done, end, end - done, None) for n, (done, end) in enumerate(pairs)]


def test_trends_are_named() -> None:
    assert trend(points((10, 10), (10, 10))).state == IDLE
    assert trend(points((5, 10), (5, 10))).state == STOPPED
    assert trend(points((5, 10), (5, 90))).state == STOPPED
    assert trend(points((5, 10), (50, 200))).state == FALLING_BEHIND
    assert trend(points((0, 100), (100, 200))).state == KEEPING_UP
    catching = trend(points((0, 100), (60, 110)))
    assert catching.state == CATCHING_UP
    assert catching.seconds_to_end == pytest.approx(1.0)
    assert trend([]).state == IDLE


def test_partitions_are_summed_at_every_time() -> None:
    one, other = points((0, 5), (5, 5)), [LagPoint(500, 0, 7, 7, None)]
    assert sum_points([one, other]) == [(0, 5), (500, 12), (1_000, 7)]


def test_a_real_group_is_seen_over_time(spark: Any, broker: Broker, tmp_path: Path) -> None:
    tp = TopicPartition("lagging", 0)
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic("lagging", 1)
        for number in range(90):
            producer.send("lagging", b"x", timestamp_ms=1_000_000 + number)
        producer.flush()
        with Consumer(broker.bootstrap, group_id="slow", auto_offset_reset="earliest", auto_commit=False) as consumer:
            consumer.subscribe("lagging")
            for done in (10, 40):
                while not consumer.poll(timeout_ms=1_000):
                    continue
                consumer.commit({tp: OffsetAndMetadata(done)})
                consumer.seek(tp, done)
        page, report = tmp_path / "lag.html", tmp_path / "lag.json"
        context = JobContext(broker.bootstrap, spark=spark)
        summary = lag(context, ["slow"], points=20, most_lag=49, html=str(page), json=str(report))
    [found] = summary.partitions
    assert (found.committed, found.end_offset, found.lag) == (40, 90, 50)
    assert not summary.passed
    assert "over 49" in summary.notes[0]
    # The commit of 10 is still in the log, and was before that of 40.
    lags = [point.lag for point in found.history]
    assert lags[0] == 80
    assert lags[-1] == 50
    assert json.loads(report.read_text())["partitions"][0]["history"]
    assert "<svg" in page.read_text()
    with pytest.raises(PipelineError, match="no group 'nobody'"):
        lag(context, ["nobody"])
