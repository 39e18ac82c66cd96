"""Kafka's own performance tools, each a JVM of its own, and what they print."""

import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from penstock.bench.artifacts import Kafka
from penstock.bench.subjects import QUIET_LOG

_TOOL_SECONDS = 600
# As Kafka's script for tools sets it, with the heap its performance tools ask for.
_JVM_OPTIONS = ["-Xmx512M", "-XX:+UseG1GC", QUIET_LOG]

_PRODUCED = re.compile(
    r"(?P<records>\d+) (?:steady state )?records sent, (?P<rate>[\d.,]+) records/sec \((?P<mb>[\d.,]+) MB/sec\).*?"
    r"(?P<p50>\d+) ms 50th, \d+ ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th"
)
_ENDS = re.compile(r"Percentiles: 50th = (?P<p50>[\d.]+), 99th = (?P<p99>[\d.]+), 99\.9th = (?P<p999>[\d.]+)")


class ToolFailed(RuntimeError):
    pass


class Produced(NamedTuple):
    records: int
    records_per_s: float
    latencies_ms: tuple[float, float, float]
    """p50, p99, p99.9."""


def run_producer(kafka: Kafka, bootstrap: str, topic: str, records: int, record_bytes: int, acks: str) -> Produced:
    """With the producer's defaults: batches of 16 KB, linger 5 ms. A tenth of the records warms up."""
    warmup = records // 10
    said = _run(
        kafka,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--record-size", str(record_bytes), "--throughput", "-1", "--warmup-records", str(warmup)),
        *("--command-property", f"acks={acks}"),
    )
    return parse_produced(said)


def parse_produced(said: str) -> Produced:
    """The last line with percentiles: with a warm-up the tool prints the whole first, then what came after it."""
    found = list(_PRODUCED.finditer(said))
    if not found:
        raise ToolFailed(f"the producer tool printed no summary: {said[-300:]}")
    last = found[-1]
    return Produced(
        int(last["records"]),
        float(last["rate"].replace(",", "")),
        (float(last["p50"]), float(last["p99"]), float(last["p999"])),
    )


class Consumed(NamedTuple):
    records: int
    records_per_s: float
    fetch_records_per_s: float
    """Without the time that joining the group takes."""


def run_consumer(kafka: Kafka, bootstrap: str, topic: str, records: int) -> Consumed:
    said = _run(
        kafka,
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records), "--timeout", "30000"),
    )
    return parse_consumed(said)


def parse_consumed(said: str) -> Consumed:
    """Columns by their names: start.time, …, data.consumed.in.nMsg, nMsg.sec, …, fetch.nMsg.sec."""
    lines = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.count(",") >= 7]
    if len(lines) < 2:
        raise ToolFailed(f"the consumer tool printed no summary: {said[-300:]}")
    row = dict(zip(lines[0], lines[-1], strict=False))
    return Consumed(int(row["data.consumed.in.nMsg"]), float(row["nMsg.sec"]), float(row["fetch.nMsg.sec"]))


def run_end_to_end(kafka: Kafka, bootstrap: str, topic: str, records: int, record_bytes: int) -> tuple[float, ...]:
    """One record at a time, produced and consumed before the next: p50, p99, p99.9 in ms."""
    said = _run(
        kafka,
        "org.apache.kafka.tools.EndToEndLatency",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--num-records", str(records)),
        *("--producer-acks", "all", "--record-size", str(record_bytes)),
    )
    return parse_end_to_end(said)


def parse_end_to_end(said: str) -> tuple[float, ...]:
    found = _ENDS.search(said)
    if found is None:
        raise ToolFailed(f"the end-to-end tool printed no summary: {said[-300:]}")
    return tuple(float(found[name]) for name in ("p50", "p99", "p999"))


def _run(kafka: Kafka, main: str, *arguments: str) -> str:
    command: Sequence[str] = ["java", *_JVM_OPTIONS, "-cp", kafka.class_path, main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_SECONDS)
    if done.returncode != 0:
        raise ToolFailed(
            f"{main.rsplit('.', 1)[1]} ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}"
        )
    return done.stdout
