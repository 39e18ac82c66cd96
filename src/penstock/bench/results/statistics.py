"""From repetitions to figures: percentiles, best and median, and ratios. Pure."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Metric(NamedTuple):
    title: str
    higher_is_better: bool
    unit: str = ""


METRICS = {
    "mb_per_s": Metric("throughput", True, "MB/s"),
    "records_per_s": Metric("records", True, "/s"),
    "requests_per_s": Metric("requests", True, "/s"),
    "p50_ms": Metric("p50", False, "ms"),
    "p99_ms": Metric("p99", False, "ms"),
    "p999_ms": Metric("p99.9", False, "ms"),
    "ack_p50_ms": Metric("produce p50", False, "ms"),
    "ack_p99_ms": Metric("produce p99", False, "ms"),
    "ack_p999_ms": Metric("produce p99.9", False, "ms"),
    "cpu_s": Metric("CPU", False, "s"),
    "cpu_s_per_gb": Metric("CPU per GB", False, "s"),
    "cpu_ms_per_1000_requests": Metric("CPU per 1,000 requests", False, "ms"),
    "cpu_ms_per_1000_records": Metric("CPU per 1,000 records", False, "ms"),
    "peak_rss_mb": Metric("peak memory", False, "MB"),
    "disk_bytes_per_byte": Metric("disk per payload byte", False),
    "start_s": Metric("start-up", False, "s"),
    "create_s": Metric("creating the topic, first writes to every partition", False, "s"),
}
"""What is compared. Values that are not here (duration, how busy the load was) explain and are not compared."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed (nearest rank)."""
    rank = -(-len(ordered) * round(share * 1e6) // 1_000_000)
    return ordered[max(0, rank - 1)]


class Summary(NamedTuple):
    best: float
    median: float


def summarize(values: Sequence[float], metric: Metric) -> Summary:
    return Summary(max(values) if metric.higher_is_better else min(values), statistics.median(values))


def ratio(ours: float, theirs: float) -> float | None:
    """Ours ÷ theirs; None where theirs is nothing."""
    return ours / theirs if theirs else None
