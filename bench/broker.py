"""What one broker costs: CPU per GB and per request, latency, start-up, memory, idle partitions.

    make bench-parts      # or: python -m bench.broker --json

Budgets in brackets are what Penstock holds itself to on a 2-core machine. `make bench-page` writes what this
prints into the README.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench import load
from bench.broker_process import MeasuredBroker

GB = 1_000_000_000


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure_machine(data: Path, results: dict[str, float], gigabytes: float) -> None:
    """What the kernel alone takes for the same bytes: a broker cannot be cheaper than the sum of these.

    Written twice, and the second time counts: on a virtual machine the first touch of a page of memory costs several
    times what the write itself costs, and that is not what is to be measured, here or in the broker after this.
    """
    data.mkdir(parents=True)
    block = os.urandom(1_000_000)
    for _ in range(2):
        fd = os.open(data / "raw", os.O_RDWR | os.O_CREAT)
        before = time.process_time()
        for number in range(int(gigabytes * 1000)):
            os.pwrite(fd, block, number * len(block))
        results["machine_write_cpu_s_per_gb"] = (time.process_time() - before) / gigabytes
        os.close(fd)
        os.unlink(data / "raw")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    process = multiprocessing.get_context("fork").Process(target=_send_blocks, args=(port, block, 1000))
    process.start()
    connection, _ = listener.accept()
    view = memoryview(bytearray(1_000_000))
    before = time.process_time()
    while connection.recv_into(view):
        pass
    results["machine_receive_cpu_s_per_gb"] = time.process_time() - before
    process.join()


def _send_blocks(port: int, block: bytes, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(count):
            connection.sendall(block)


def measure_bulk(data: Path, results: dict[str, float], gigabytes: float) -> None:
    """1 KB records in batches just below the default limit of 1 MB, flush.mode=os."""
    with MeasuredBroker(data, {"flush.mode": "os"}) as broker:
        client = load.RawClient(broker.port)
        load.create_topic(client, "bulk", 1)
        batch = load.make_batch(1024, 1_000_000)
        load.produce(client, "bulk", batch, 50, 4)
        requests = int(gigabytes * GB / len(batch))
        before = broker.cpu_seconds()
        load.produce(client, "bulk", batch, requests, 4)
        results["produce_cpu_s_per_gb"] = (broker.cpu_seconds() - before) / (requests * len(batch) / GB)
        load.fetch_all(client, "bulk")
        before = broker.cpu_seconds()
        total = load.fetch_all(client, "bulk")
        results["fetch_cpu_s_per_gb"] = (broker.cpu_seconds() - before) / (total / GB)
        results["peak_rss_mb"] = broker.peak_rss_bytes() / 1e6


def measure_tiny(data: Path, mode: str, results: dict[str, float], requests: int) -> None:
    """One small batch per request: CPU with requests in flight, latency with one at a time."""
    with MeasuredBroker(data, {"flush.mode": mode}) as broker:
        client = load.RawClient(broker.port)
        load.create_topic(client, "tiny", 1)
        batch = load.make_batch(100, 100)
        load.produce(client, "tiny", batch, 1000, 5)
        if mode == "os":
            before = broker.cpu_seconds()
            load.produce(client, "tiny", batch, requests, 5)
            results["tiny_produce_cpu_us"] = (broker.cpu_seconds() - before) / requests * 1e6
        latencies = load.produce(client, "tiny", batch, min(requests, 5000), 1)
        results[f"produce_p50_ms_flush_{mode}"] = statistics.median(latencies) * 1e3
        results[f"produce_p99_ms_flush_{mode}"] = percentile(latencies, 0.99) * 1e3


def measure_start_and_idle(data: Path, results: dict[str, float]) -> None:
    starts = []
    for _ in range(5):
        with MeasuredBroker(data, {}) as broker:
            starts.append(broker.start_seconds)
            results["idle_rss_mb"] = broker.rss_bytes() / 1e6
    results["start_seconds"] = statistics.median(starts)


def measure_partitions(data: Path, count: int, results: dict[str, float]) -> None:
    with MeasuredBroker(data, {}) as broker:
        client = load.RawClient(broker.port)
        before = broker.rss_bytes()
        results["create_partitions_s"] = load.create_topic(client, "wide", count)
        results["idle_partitions_mb"] = (broker.rss_bytes() - before) / 1e6
    with MeasuredBroker(data, {}) as broker:
        results["start_seconds_partitions"] = broker.start_seconds
        results["rss_mb_partitions_after_restart"] = broker.rss_bytes() / 1e6


WORDS = {
    "start_seconds": "`penstock up` to ready, s",
    "idle_rss_mb": "memory of an idle broker, MB",
    "machine_write_cpu_s_per_gb": "the kernel alone, to write: CPU-s per GB",
    "machine_receive_cpu_s_per_gb": "the kernel alone, to receive: CPU-s per GB",
    "produce_cpu_s_per_gb": "produce, 1 KB records in 1 MB batches, flush.mode=os: CPU-s per GB",
    "fetch_cpu_s_per_gb": "fetch of the same: CPU-s per GB",
    "peak_rss_mb": "peak memory meanwhile, MB",
    "tiny_produce_cpu_us": "produce, one small batch per request, flush.mode=os: CPU-µs per request",
    "produce_p50_ms_flush_os": "latency of that, one at a time, flush.mode=os: p50 ms",
    "produce_p99_ms_flush_os": "latency of that, one at a time, flush.mode=os: p99 ms",
    "produce_p50_ms_flush_ack": "the same, fsynced (flush.mode=ack, the default): p50 ms",
    "produce_p99_ms_flush_ack": "the same, fsynced (flush.mode=ack, the default): p99 ms",
    "create_partitions_s": "creating {partitions:,} partitions, s",
    "idle_partitions_mb": "memory they add, MB",
    "start_seconds_partitions": "start with them, s",
    "rss_mb_partitions_after_restart": "memory after that start, MB",
}
"""How the table names what the JSON calls by its key."""
BUDGETS = {
    "produce_cpu_s_per_gb": 1.0,
    "fetch_cpu_s_per_gb": 0.7,
    "tiny_produce_cpu_us": 50,
    "start_seconds": 0.5,
    "idle_rss_mb": 80,
}


def table(results: dict[str, float], partitions: int) -> list[str]:
    """A line for each, in the order in which they were measured."""
    lines = []
    for key, value in results.items():
        budget = f"  [{BUDGETS[key]}]" if key in BUDGETS else ""
        lines.append(f"{WORDS[key].format(partitions=partitions):74} {value:8.3f}{budget}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout instead of a table")
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        root = Path(name)
        say("start-up and idle memory …")
        measure_start_and_idle(root / "idle", results)
        say("the machine itself …")
        measure_machine(root / "machine", results, options.gigabytes)
        say(f"{options.gigabytes:g} GB in 1 MB batches …")
        measure_bulk(root / "bulk", results, options.gigabytes)
        for mode in ("os", "ack"):
            say(f"one small batch per request, flush.mode={mode} …")
            measure_tiny(root / f"tiny-{mode}", mode, results, options.requests)
        say(f"{options.partitions} idle partitions …")
        measure_partitions(root / "wide", options.partitions, results)
    if options.json:
        rounded = {key: round(value, 4) for key, value in results.items()}
        print(json.dumps({"partitions": options.partitions, **rounded}, indent=2))
        return
    print("\n".join(table(results, options.partitions)))


if __name__ == "__main__":
    main()
