"""What replication costs: three brokers on this machine, replication factor 3, acks=all, in both ways to flush.

    python -m bench.cluster            # --json for one object

Throughput: batches of 100 KB to three partitions, one per leader, four requests in flight to each. Latency: one
record of 1 KB at a time, first with nothing else going on, then beside bulk at half speed. Replication lag: from a
leader's answer to acks=1 to the moment a consumer sees the record, that is until every in-sync replica has it.
Brokers and clients share the machine's cores; figures of different machines do not compare. Exit 1: replication lag
is above what is promised.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench import load
from penstock.net.free_ports import free_ports_in_a_row
from penstock.records.batch import iter_headers
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.metadata import MetadataRequest

BROKERS = 3
TOPIC = "bench"
MODES = ("ack", "os")
FETCH_VERSION, PRODUCE_VERSION = 12, 9
READY_S = 60.0
LAG_P99_MS = 200.0
"""The promise, idle and at half speed."""


class MeasuredCluster:
    """`penstock cluster up` as a process."""

    def __init__(self, data: Path, settings: dict[str, str]) -> None:
        self.port = free_ports_in_a_row(2 * BROKERS)
        self._command = [sys.executable, "-m", "penstock", "cluster", "up", "--brokers", str(BROKERS)]
        self._command += ["--port", str(self.port), "--data", str(data)]
        for name, value in settings.items():
            self._command += ["--set", f"{name}={value}"]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "cluster ready" in line:
                self._reading = threading.Thread(target=self._process.stderr.read, daemon=True)
                self._reading.start()
                return self
        raise RuntimeError(f"the cluster ended with code {self._process.wait()} before it was ready")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)

    def create_topic(self) -> None:
        """Returns when every partition has all its replicas."""
        client = load.RawClient(self.port)
        kind = CreateTopicsRequest
        rows = [
            kind.CreatableReplicaAssignment(p, [(p + i) % BROKERS + 1 for i in range(BROKERS)])
            for p in range(BROKERS)
        ]
        topic = kind.CreatableTopic(TOPIC, -1, -1, rows, [kind.CreatableTopicConfig("min.insync.replicas", "2")])
        code = client.call(load.CREATE_TOPICS, 7, kind(topics=[topic], timeout_ms=30_000)).topics[0].error_code
        if code:
            raise RuntimeError(f"the topic was refused with error {code}")
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            wanted = MetadataRequest([MetadataRequest.MetadataRequestTopic(name=TOPIC)])
            partitions = client.call(load.METADATA, 9, wanted).topics[0].partitions
            if len(partitions) == BROKERS and all(len(p.isr_nodes) == BROKERS for p in partitions):
                return
            time.sleep(0.05)
        raise RuntimeError("replicas did not get in sync")

    def leader(self, partition: int) -> load.RawClient:
        """Partition p is led by broker p + 1."""
        return load.RawClient(self.port + 2 * partition)


class Bulk(threading.Thread):
    """Batches without pause, or as many bytes per second as wanted, until it is told to stop."""

    def __init__(self, cluster: MeasuredCluster, partition: int, window: int, bytes_per_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.sent_bytes = 0
        self.latencies: list[float] = []
        self._client = cluster.leader(partition)
        self._batch = load.make_batch(1_000, 100_000)
        request = load.produce_request(TOPIC, partition, self._batch, acks=-1)
        self._frame = self._client.frame(load.PRODUCE, PRODUCE_VERSION, request)
        self._window = window
        self._pause_s = len(self._batch) / bytes_per_s if bytes_per_s else 0.0
        self._ending = threading.Event()

    def run(self) -> None:
        sent_at: list[float] = []
        due = time.perf_counter()
        while not self._ending.is_set():
            while len(sent_at) < self._window:
                if self._pause_s:
                    due = max(due + self._pause_s, time.perf_counter() - 1)
                    self._ending.wait(max(0.0, due - time.perf_counter()))
                sent_at.append(time.perf_counter())
                self._client.socket.sendall(self._frame)
            load.check_produced(self._client.receive())
            self.latencies.append(time.perf_counter() - sent_at.pop(0))
            self.sent_bytes += len(self._batch)

    def stop(self) -> None:
        self._ending.set()
        self.join(30)


def measure_throughput(cluster: MeasuredCluster, seconds: float) -> dict[str, float]:
    bulks = [Bulk(cluster, partition, window=4) for partition in range(BROKERS)]
    for bulk in bulks:
        bulk.start()
    time.sleep(seconds / 4)
    before, begun = sum(bulk.sent_bytes for bulk in bulks), time.perf_counter()
    time.sleep(seconds)
    done, took_s = sum(bulk.sent_bytes for bulk in bulks) - before, time.perf_counter() - begun
    for bulk in bulks:
        bulk.stop()
    latencies = [latency for bulk in bulks for latency in bulk.latencies]
    return {"throughput MB/s": done / took_s / 1e6, **quantiles("latency of 100 KB at full speed", latencies)}


def measure_latency(cluster: MeasuredCluster, seconds: float) -> list[float]:
    client = cluster.leader(0)
    request = load.produce_request(TOPIC, 0, load.make_batch(1_000, 1_000), acks=-1)
    frame = client.frame(load.PRODUCE, PRODUCE_VERSION, request)
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        client.socket.sendall(frame)
        load.check_produced(client.receive())
        latencies.append(time.perf_counter() - begun)
    return latencies


def measure_lag(cluster: MeasuredCluster, seconds: float) -> list[float]:
    writer, reader = cluster.leader(0), cluster.leader(0)
    request = load.produce_request(TOPIC, 0, load.make_batch(100, 100), acks=1)
    lags: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        answer = writer.call(load.PRODUCE, PRODUCE_VERSION, request).responses[0].partition_responses[0]
        if answer.error_code:
            raise RuntimeError(f"produce was refused with error {answer.error_code}")
        begun = time.perf_counter()
        _await_visible(reader, answer.base_offset)
        lags.append(time.perf_counter() - begun)
    return lags


def _await_visible(reader: load.RawClient, offset: int) -> None:
    kind = FetchRequest
    partition = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1)
    topic = kind.FetchTopic(topic=TOPIC, partitions=[partition])
    request = kind(max_wait_ms=5_000, min_bytes=1, max_bytes=1, topics=[topic])
    while True:
        answer: Any = reader.call(load.FETCH, FETCH_VERSION, request).responses[0].partitions[0]
        if any(header.next_offset > offset for _, header in iter_headers(answer.records or b"")):
            return


def quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    shares = {"p50": 0.5, "p99": 0.99}
    return {f"{name} {word} ms": ordered[int(len(ordered) * share)] * 1000 for word, share in shares.items()}


def measure(data: Path, mode: str, seconds: float) -> dict[str, float]:
    with MeasuredCluster(data, {"flush.mode": mode}) as cluster:
        cluster.create_topic()
        measure_latency(cluster, 1.0)
        results = quantiles("latency of 1 KB, idle", measure_latency(cluster, seconds))
        results |= quantiles("replication lag, idle", measure_lag(cluster, seconds))
        results |= measure_throughput(cluster, seconds)
        half = results["throughput MB/s"] * 1e6 / 2 / BROKERS
        bulks = [Bulk(cluster, partition, 1, half) for partition in range(BROKERS)]
        for bulk in bulks:
            bulk.start()
        results |= quantiles("latency of 1 KB at half speed", measure_latency(cluster, seconds))
        results |= quantiles("replication lag at half speed", measure_lag(cluster, seconds))
        for bulk in bulks:
            bulk.stop()
    return results


def verdict(results: dict[str, dict[str, float]]) -> tuple[bool, str]:
    """Whether replication lag is within its limit, and the words for it."""
    lags = [value for found in results.values() for name, value in found.items() if "lag" in name and "p99" in name]
    kept = max(lags) < LAG_P99_MS
    return kept, f"replication lag p99 at most {max(lags):.1f} ms (< {LAG_P99_MS:g}): {'kept' if kept else 'BROKEN'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        for mode in MODES:
            print(f"flush.mode={mode} …", file=sys.stderr, flush=True)
            results[mode] = measure(Path(name) / mode, mode, options.seconds)
    kept, words = verdict(results)
    if options.json:
        print(json.dumps(results, indent=2))
        print(words, file=sys.stderr)
        return 0 if kept else 1
    print(f"{'RF 3, acks=all, three brokers':42} " + " ".join(f"{'flush ' + mode:>10}" for mode in MODES))
    for key in results[MODES[0]]:
        print(f"{key:42} " + " ".join(f"{results[mode][key]:10.2f}" for mode in MODES))
    print(words)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
