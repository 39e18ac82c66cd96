"""What a second core brings: `penstock up` beside `penstock up --brokers 2`, the same load on each in turns.

    python -m bench.cores            # --json for one object; --brokers 4 on a machine with more cores

Small requests (one record of 100 B) show what the Python of a broker costs, batches of 16 KB and fetches of 1 MB what
the kernel does for it. The load is prepared bytes from one thread; it takes its share of the same cores, so with c
CPU-seconds per request in the broker and l in the load, n cores can do at most n·c / (c + l) times what one broker
does. That bound is printed beside the ratio. flush.mode=os: disks are not what is measured.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from penstock.bench import topics
from penstock.bench.loads.connection import make_batch
from penstock.bench.loads.raw_fetch import Reader, read
from penstock.bench.loads.raw_produce import close_lanes, open_lanes, pump
from penstock.bench.processes import MeasuredProcess, cpu_seconds_of
from penstock.net.free_ports import free_ports_in_a_row

PARTITIONS = 16
WARM_SHARE = 0.25


class Host:
    """One command, so many brokers behind its port."""

    def __init__(self, brokers: int, directory: Path) -> None:
        self.brokers = brokers
        self.port = free_ports_in_a_row(brokers + 2)
        command = [str(Path(sys.executable).with_name("penstock")), "up", "--port", str(self.port)]
        command += ["--brokers", str(brokers), "--data", str(directory / "data"), "--set", "flush.mode=os"]
        directory.mkdir()
        self._process = MeasuredProcess(command, directory / "log")

    def __enter__(self) -> Self:
        self._process.wait_until(lambda: topics.count_brokers(self.port) == self.brokers)
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        self._pids = [int(child) for child in children] if self.brokers > 1 else [pid]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.end()

    def cpu_seconds(self) -> list[float]:
        """Of each broker."""
        return [cpu_seconds_of(pid) for pid in self._pids]


class Sample(NamedTuple):
    """Of one run of a workload: per second of wall clock."""

    requests_per_s: float
    mb_per_s: float
    broker_cores: list[float]
    load_cores: float

    @property
    def broker_us(self) -> float:
        """CPU per request, of all brokers together."""
        return sum(self.broker_cores) / self.requests_per_s * 1e6

    @property
    def load_us(self) -> float:
        return self.load_cores / self.requests_per_s * 1e6


Load = Callable[[float], tuple[int, int]]
"""Works for so many seconds, and tells how many requests were answered, and the bytes of batches in them."""


class Workload(NamedTuple):
    name: str
    batch_bytes: int
    window: int
    fetches: bool = False


WORKLOADS = (
    Workload("produce 100 B, one record per request", 1, 50),
    Workload("produce 1 KB, 16 KB batches", 16_384, 10),
    Workload("fetch 1 KB, 1 MB requests", 262_144, 1, fetches=True),
)


def sample(host: Host, load: Load, seconds: float) -> Sample:
    load(seconds * WARM_SHARE)
    before, own, begun = host.cpu_seconds(), time.process_time(), time.perf_counter()
    requests, payload = load(seconds)
    took_s = time.perf_counter() - begun
    cores = [(after - earlier) / took_s for earlier, after in zip(before, host.cpu_seconds(), strict=True)]
    return Sample(requests / took_s, payload / took_s / 1e6, cores, (time.process_time() - own) / took_s)


def measure(host: Host, workload: Workload, seconds: float, name: str) -> Sample:
    """On a topic of its own, which is deleted afterwards."""
    batch, records = make_batch(100 if workload.batch_bytes == 1 else 1_000, workload.batch_bytes)
    leaders = topics.create_topic(host.port, name, PARTITIONS)
    if len(set(leaders.values())) != host.brokers:
        raise RuntimeError("not every broker leads a part of the topic")
    window = workload.window
    lanes, _ = open_lanes(leaders, name, batch, acks=1, connections=PARTITIONS, window=window)
    if workload.fetches:
        pump(lanes, window, rounds=max(1, (8 << 20) // len(batch)))
        ends = topics.end_offsets(leaders, name)
        readers = [Reader(leaders[p], name, p, len(batch), records, end) for p, end in ends.items()]

        def fetch(for_s: float) -> tuple[int, int]:
            count, latencies = read(readers, seconds=for_s)
            return len(latencies), count // records * len(batch)

        found = sample(host, fetch, seconds)
        for reader in readers:
            reader.socket.close()
    else:

        def produce(for_s: float) -> tuple[int, int]:
            requests, _ = pump(lanes, window, seconds=for_s)
            return requests, requests * len(batch)

        found = sample(host, produce, seconds)
    close_lanes(lanes)
    topics.delete_topic(host.port, name, lambda _: [])
    return found


def summary(samples: dict[int, list[Sample]]) -> dict[str, object]:
    """Medians of each count of brokers, and how they compare."""
    one, many = min(samples), max(samples)

    def median(brokers: int, value: Callable[[Sample], float]) -> float:
        return statistics.median(value(each) for each in samples[brokers])

    cores = len(os.sched_getaffinity(0))
    costs, load = median(one, lambda s: s.broker_us), median(one, lambda s: s.load_us)
    found: dict[str, object] = {
        "ratio": median(many, lambda s: s.requests_per_s) / median(one, lambda s: s.requests_per_s),
        "at most": min(many, cores * costs / (costs + load)),
    }
    for brokers in (one, many):
        found["1 broker" if brokers == 1 else f"{brokers} brokers"] = {
            "requests/s": median(brokers, lambda s: s.requests_per_s),
            "MB/s": median(brokers, lambda s: s.mb_per_s),
            "cores used by each broker": [
                statistics.median(each.broker_cores[n] for each in samples[brokers]) for n in range(brokers)
            ],
            "cores used by the load": median(brokers, lambda s: s.load_cores),
            "broker CPU µs/request": median(brokers, lambda s: s.broker_us),
        }
    return found


def show(name: str, found: dict[str, object]) -> None:
    print(f"{name}: {found['ratio']:.2f} times as much (these cores allow {found['at most']:.2f})")
    for title, figures in found.items():
        if isinstance(figures, dict):
            each = ", ".join(f"{cores:.2f}" for cores in figures["cores used by each broker"])
            print(
                f"  {title:10} {figures['requests/s']:9,.0f} requests/s {figures['MB/s']:8,.1f} MB/s; cores: brokers "
                f"{each}, load {figures['cores used by the load']:.2f}; {figures['broker CPU µs/request']:.0f} µs of "
                "broker CPU per request"
            )


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--data", type=Path, help="where the brokers keep their data; default: the temporary directory"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    samples: dict[str, dict[int, list[Sample]]] = {each.name: {1: [], options.brokers: []} for each in WORKLOADS}
    with tempfile.TemporaryDirectory(prefix="penstock-cores-", dir=options.data) as name, ExitStack() as stack:
        hosts = [stack.enter_context(Host(n, Path(name) / f"host-{n}")) for n in (1, options.brokers)]
        for number in range(options.rounds):
            for workload in WORKLOADS:
                for host in hosts if number % 2 == 0 else reversed(hosts):
                    found = measure(host, workload, options.seconds, f"t-{number}-{WORKLOADS.index(workload)}")
                    samples[workload.name][host.brokers].append(found)
                    print(
                        f"round {number + 1} of {options.rounds}, {workload.name}, brokers: {host.brokers}: "
                        f"{found.requests_per_s:,.0f} requests/s",
                        file=sys.stderr,
                    )
    results = {name: summary(of) for name, of in samples.items()}
    if options.json:
        print(json.dumps(rounded(results), indent=2, ensure_ascii=False))
        return
    for title, figures in results.items():
        show(title, figures)


if __name__ == "__main__":
    main()
