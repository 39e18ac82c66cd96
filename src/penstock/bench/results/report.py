"""What a comparison found: every single measurement, so that tables and charts can be made again from the file."""

from typing import Any

import msgspec

from penstock.bench.results.statistics import METRICS, Summary, ratio, summarize


class Row(msgspec.Struct):
    """One workload."""

    name: str
    title: str
    family: str
    load: str
    brokers: int
    flush: str
    primary: str
    measurements: dict[str, list[dict[str, float]]] = {}
    """Per subject, one entry per repetition."""
    left_out: dict[str, str] = {}
    """Per subject, why it has no measurement."""

    def summary(self, subject: str, metric: str) -> Summary | None:
        values = [values[metric] for values in self.measurements.get(subject, ()) if metric in values]
        return summarize(values, METRICS[metric]) if values else None

    def ratio(self, subject: str, other: str, metric: str) -> float | None:
        """Of the medians."""
        ours, theirs = self.summary(subject, metric), self.summary(other, metric)
        return ratio(ours.median, theirs.median) if ours and theirs else None

    def load_busy(self, subject: str) -> float:
        """Share of a core that the load took; the median."""
        values = sorted(each.get("load_busy", 0.0) for each in self.measurements.get(subject, ()))
        return values[len(values) // 2] if values else 0.0


class Report(msgspec.Struct):
    command: str
    begun: str
    machine: dict[str, str]
    versions: dict[str, str]
    scale: str
    repetitions: int
    rows: list[Row] = []
    missing: dict[str, str] = {}
    """What could not be had at all, and why."""
    unsettled: list[str] = []
    """Who still got cheaper per request when the measurements began; its figures are worse than they would become."""
    load_average: list[float] = []
    """Of the machine before and after: figures of a busy machine are provisional."""
    stolen: float = 0.0
    """Share of the cores' busy time that a hypervisor gave to others: latencies contain it."""
    minutes: float = 0.0
    complete: bool = False


def encode_report(report: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(report))), indent=1) + b"\n"


def decode_report(data: bytes) -> Report:
    return msgspec.json.decode(data, type=Report)


def _rounded(value: Any) -> Any:
    """Four significant digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return value
