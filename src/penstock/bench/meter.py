"""What one run of a load cost: wall clock, CPU of the brokers and of the load, memory and latencies."""

import resource
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from penstock.bench.results.statistics import percentile
from penstock.bench.subjects import Subject

GB = 1e9

Values = dict[str, float]
"""Measured values by name; `statistics.METRICS` says what each is."""


class Meter:
    """Runs from `with meter:` to its end; a load enters it when it is warm."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.load_cpu_seconds = 0.0

    def __enter__(self) -> Self:
        self._subject.forget_peak()
        self._load_cpu = _own_cpu_seconds()
        self._cpu = self._subject.cpu_seconds()
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.cpu_seconds = self._subject.cpu_seconds() - self._cpu
        self.load_cpu_seconds = _own_cpu_seconds() - self._load_cpu

    def values(
        self,
        *,
        records: int,
        record_bytes: int,
        requests: int = 0,
        latencies_s: Iterable[float] = (),
        seconds: float | None = None,
    ) -> Values:
        """`seconds` where the load measured its time itself."""
        wall = seconds or self.seconds
        payload = records * record_bytes
        found: Values = {
            "seconds": wall,
            "records_per_s": records / wall,
            "mb_per_s": payload / wall / 1e6,
            "cpu_s": self.cpu_seconds,
            "cpu_s_per_gb": self.cpu_seconds / (payload / GB),
            "cpu_ms_per_1000_records": self.cpu_seconds * 1e6 / records,
            "load_busy": self.load_cpu_seconds / self.seconds,
            "peak_rss_mb": self._subject.peak_rss_bytes() / 1e6,
        }
        if requests:
            found["requests_per_s"] = requests / wall
            found["cpu_ms_per_1000_requests"] = self.cpu_seconds * 1e6 / requests
        return found | latency_values(latencies_s)


def latency_values(latencies_s: Iterable[float], prefix: str = "") -> Values:
    ordered = sorted(latencies_s)
    if not ordered:
        return {}
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {prefix + name: percentile(ordered, share) * 1e3 for name, share in shares.items()}


def _own_cpu_seconds() -> float:
    """Of this process and of the tools it ran and waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
