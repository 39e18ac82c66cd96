"""What one request costs in steps of the interpreter, counted, not timed: the same on every machine, however busy.

    python -m bench.hot_path            # what it costs now, beside the budget
    python -m bench.hot_path --accept   # that is the budget from now on; say why in the commit

The real connection, router, handlers and log of a real broker, with a socket pair in place of the network; for
replication two whole brokers. Counted is what runs in this repository's code: bytecodes, calls of Python functions,
calls into C, system calls among them, and how many bytes of Python objects a request needs for a while. `make test`
holds each to its budget.
"""

import argparse
import asyncio
import json
import platform
import socket
import sys
import sysconfig
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from penstock.bench.loads.connection import RawClient, check_produced, fetch_frame, make_batch, produce_frame
from penstock.net.connection import Connection
from penstock.testing import Broker, Cluster

BUDGETS_FILE = Path(__file__).with_name("hot_path_budgets.json")
MARGIN = 1.05
OTHER_PYTHON = 1.30
"""Bytecodes differ between versions of Python, and so do sizes of objects; calls hardly do."""
_VERSION_BOUND = ("bytecodes", "transient_bytes")
_REQUESTS = 100
_ROUNDS = 12
_RECORDS = 20
_STDLIB = (sysconfig.get_path("stdlib"), "<frozen")
_SYSTEM_CALLS = frozenset(
    ("write", "pwrite", "pwritev", "read", "pread", "preadv", "send", "sendmsg", "sendfile", "fstat", "open", "mmap")
)

Costs = dict[str, float]


class Counter:
    """Counts while it is switched on, in this thread: frames of the standard library are left out."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("bytecodes", "calls", "c_calls", "system_calls"), 0)

    def __enter__(self) -> "Counter":
        self._before = sys.gettrace(), sys.getprofile()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if _is_foreign(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self.counts["calls"] += 1
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.counts["bytecodes"] += 1
        return self._step

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and not _is_foreign(frame):
            self.counts["c_calls"] += 1
            if argument.__name__ in _SYSTEM_CALLS:
                self.counts["system_calls"] += 1


def _is_foreign(frame: FrameType) -> bool:
    """Of the standard library, or of this file."""
    name = frame.f_code.co_filename
    return name == __file__ or name.startswith(_STDLIB)


class Wire(asyncio.Transport):
    """A transport whose other end is a socket in the same process."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = socket.socketpair()
        self.there.settimeout(5.0)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.here, "peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def pause_reading(self) -> None:
        raise AssertionError("a limit was reached")

    def abort(self) -> None:
        raise AssertionError("the broker ended the connection")

    def close(self) -> None:
        self.here.close()
        self.there.close()


class Client:
    """Puts frames where the event loop would, and takes the answers from the wire. Runs on the broker's loop."""

    def __init__(self, broker: Broker) -> None:
        server = broker.node._server
        self._wire = Wire()
        self._shared = server.shared
        self._connection = Connection(server.shared, server, "PLAINTEXT")
        self._connection.connection_made(self._wire)

    def receive(self, frame: bytes) -> None:
        """What happens when these bytes arrive, and at the end of that turn of the loop."""
        self._connection.get_buffer(-1)[: len(frame)] = frame
        self._connection.buffer_updated(len(frame))
        self._shared.send_all()

    def answer(self) -> bytes:
        found = self._wire.there.recv(1 << 20)
        wanted = int.from_bytes(found[:4], "big") + 4
        while len(found) < wanted:
            found += self._wire.there.recv(1 << 20)
        assert len(found) == wanted
        return found

    def close(self) -> None:
        self._connection.connection_lost(None)
        self._wire.close()


def count(receive: Callable[[bytes], None], frame: bytes, then: Callable[[], object]) -> Costs:
    """The mean over many requests: index entries and the like come once in a while."""
    for _ in range(_REQUESTS):
        receive(frame)
        then()
    counter = Counter()
    for _ in range(_REQUESTS):
        with counter:
            receive(frame)
        then()
    costs = {name: value / _REQUESTS for name, value in counter.counts.items()}
    peaks = []
    tracemalloc.start()
    for _ in range(_ROUNDS):
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        receive(frame)
        peaks.append(tracemalloc.get_traced_memory()[1] - before)
        then()
    tracemalloc.stop()
    return costs | {"transient_bytes": float(sorted(peaks)[_ROUNDS // 2])}


async def count_parked(consumer: Client, producer: Client, fetch: Callable[[int], bytes], produce: bytes) -> Costs:
    """A fetch that waits, and its answer after somebody produced: the least of some rounds, since whatever else the
    loop does meanwhile only adds."""
    found: list[dict[str, int]] = []
    for number in range(_ROUNDS):
        counter = Counter()
        with counter:
            consumer.receive(fetch(number))
        producer.receive(produce)
        with counter:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        producer.answer()
        consumer.answer()
        found.append(counter.counts)
    return {name: float(min(each[name] for each in found)) for name in found[0]}


async def count_synced(client: Client, frame: bytes) -> Costs:
    """A record that is answered once it is fsynced: what the loop does for it, before and after; another thread does
    the fsync. The least of some rounds, as above."""
    found: list[dict[str, int]] = []
    for _ in range(_ROUNDS):
        with Counter() as counter:
            client.receive(frame)
            await asyncio.get_running_loop().run_in_executor(None, client.answer)
        found.append(counter.counts)
    return {name: float(min(each[name] for each in found)) for name in found[0]}


async def _measure(broker: Broker, topics: dict[str, str]) -> dict[str, Costs]:
    client, consumer = Client(broker), Client(broker)
    small, _ = make_batch(100, 1)
    large, _ = make_batch(1_000, 16_384)
    frames = RawClient.__new__(RawClient)
    frames._next_id = 0
    work: dict[str, Costs] = {}
    for name, batch in (("produce of 100 bytes", small), ("produce of 16 KB", large)):
        frame = produce_frame(frames, topics[name], {0: batch}, 1)
        await _open(client, frame)
        work[name] = count(client.receive, frame, client.answer)
    name = "produce of 100 bytes, fsynced"
    frame = produce_frame(frames, topics[name], {0: small}, -1)
    await _open(client, frame)
    work[name] = await count_synced(client, frame)
    name = "fetch of 64 KB"  # above what is copied: sent from the file
    long, _ = make_batch(1_000, 65_536)
    await _open(client, produce_frame(frames, topics[name], {0: long}, 1))
    work[name] = count(client.receive, fetch_frame(frames, topics[name], 0, 0, 1 << 20), client.answer)
    produce = produce_frame(frames, topics["fetch"], {0: small}, 1)
    await _open(client, produce)
    work["fetch of one batch at the end"] = count(
        client.receive, fetch_frame(frames, topics["fetch"], 0, 0, 1 << 20), client.answer
    )
    work["fetch that waits and is woken"] = await count_parked(
        consumer, client, lambda n: fetch_frame(frames, topics["fetch"], 0, 1 + n, 1 << 20, 30_000), produce
    )
    client.close()
    consumer.close()
    return work


async def _open(client: Client, frame: bytes) -> None:
    """The first request to a partition opens its log, in the pool."""
    client.receive(frame)
    await asyncio.get_running_loop().run_in_executor(None, client.answer)


def measure() -> dict[str, Costs]:
    return _measure_requests() | _measure_replication()


def _measure_requests() -> dict[str, Costs]:
    with Broker({"flush.mode": "os"}) as broker:
        names = ("produce of 100 bytes", "produce of 16 KB", "fetch", "fetch of 64 KB")
        topics = {name: broker.create_topic(f"topic-{number}") for number, name in enumerate(names)}
        topics["produce of 100 bytes, fsynced"] = broker.create_topic("synced", config={"flush.mode": "ack"})
        return broker.run(_measure(broker, topics))


def _measure_replication() -> dict[str, Costs]:
    """One record after the other with acks=all, and what each of two brokers does for it: its followers have asked
    again before it is acknowledged, so that the next finds all as this one did."""
    with Cluster(2, {"flush.mode": "os", "min.insync.replicas": "2"}) as cluster:
        topic = cluster.create_topic("replicated", replication_factor=2)
        leader = cluster.leader_of(topic)
        (follower,) = set(cluster.brokers) - {leader}
        client = RawClient(cluster.brokers[leader].port)
        batch, _ = make_batch(100, 1)
        frame = produce_frame(client, topic, {0: batch}, -1)

        def produce() -> None:
            client.socket.sendall(frame)
            check_produced(client.receive())

        try:
            return {
                f"replicating a record, {role}": _count_within(cluster.brokers[node_id], produce)
                for role, node_id in (("its leader", leader), ("a follower", follower))
            }
        finally:
            client.close()


def _count_within(broker: Broker, produce: Callable[[], None]) -> Costs:
    """The least of some rounds, since whatever else the broker does meanwhile only adds."""
    found: list[dict[str, int]] = []
    for _ in range(_ROUNDS):
        produce()
        counter = Counter()
        broker.run(_switched(counter, on=True))
        for _ in range(_RECORDS):
            produce()
        broker.run(_switched(counter, on=False))
        found.append(counter.counts)
    return {name: min(each[name] for each in found) / _RECORDS for name in found[0] if name != "system_calls"}


async def _switched(counter: Counter, *, on: bool) -> None:
    if on:
        counter.__enter__()
    else:
        counter.__exit__()


# -- budgets --------------------------------------------------------------------------------------------------------


class Budgets(NamedTuple):
    python: str
    """The version they were counted with."""
    work: dict[str, Costs]

    def limit(self, name: str, cost: str, python: str) -> float:
        loose = cost in _VERSION_BOUND and python != self.python
        return self.work[name][cost] * (OTHER_PYTHON if loose else 1.0) * MARGIN


def own_python() -> str:
    return ".".join(platform.python_version_tuple()[:2])


def load_budgets() -> Budgets:
    return Budgets(**json.loads(BUDGETS_FILE.read_text()))


def exceeded(found: dict[str, Costs], budgets: Budgets, python: str) -> list[str]:
    """What grew, by how much."""
    return [
        f"{name}: {value:g} {cost.replace('_', ' ')}, the budget is {budgets.work[name][cost]:g}"
        f" ({value / budgets.work[name][cost] - 1:+.1%})"
        for name, costs in found.items()
        for cost, value in costs.items()
        if value > budgets.limit(name, cost, python)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="make what it costs now the budget")
    options = parser.parse_args()
    found = measure()
    known = load_budgets().work if BUDGETS_FILE.exists() else {}
    for name, costs in found.items():
        told = [f"{cost} {value:g} ({known.get(name, {}).get(cost, 0):g})" for cost, value in costs.items()]
        print(f"{name:32} {', '.join(told)}")
    if options.accept:
        text = json.dumps(Budgets(own_python(), found)._asdict(), indent=1)
        BUDGETS_FILE.write_text(text + "\n")


if __name__ == "__main__":
    main()
