"""Work before anything is measured, until a broker gets no cheaper: a JVM compiles what is hot while it runs.

What counts is CPU per request, not speed, so that a busy machine does not pass for one that has settled.
"""

import contextlib
import time
from typing import NamedTuple

from penstock.bench.loads import nats_load
from penstock.bench.loads.connection import make_batch
from penstock.bench.loads.raw_fetch import Reader, read
from penstock.bench.loads.raw_produce import close_lanes, open_lanes, pump
from penstock.bench.meter import Meter
from penstock.bench.nats import NatsSubject
from penstock.bench.subjects import KafkaWireSubject, Subject
from penstock.bench.topics import end_offsets
from penstock.bench.workload import scratch_stream, scratch_topic
from penstock.records.compression import Codec

_RECORD_BYTES = 1_000
_PART_SECONDS = 0.5
_PART_BYTES = 5e7
_PATIENCE = 2
"""So many rounds without getting cheaper, and it has settled."""
_CHEAPER = 0.93


class _Kind(NamedTuple):
    batch_bytes: int
    codec: int = Codec.NONE


_KINDS = (_Kind(1), _Kind(16_384), _Kind(1_000_000), _Kind(65_536, Codec.LZ4))


def settle(subject: Subject, most_seconds: float) -> list[float]:
    """Small and large batches in turn, read back. Returns CPU-µs per small request, round by round."""
    if isinstance(subject, KafkaWireSubject):
        return _settle_kafka_wire(subject, time.monotonic() + most_seconds)
    if isinstance(subject, NatsSubject):
        return _settle_nats(subject, time.monotonic() + most_seconds)
    return []


def has_settled(costs: list[float]) -> bool:
    """The last rounds are no longer cheaper than the best before them."""
    if len(costs) <= _PATIENCE:
        return False
    return min(costs[-_PATIENCE:]) > min(costs[:-_PATIENCE]) * _CHEAPER


def _settle_kafka_wire(subject: KafkaWireSubject, deadline: float) -> list[float]:
    costs: list[float] = []
    with contextlib.ExitStack() as stack:
        batches = [make_batch(_RECORD_BYTES, kind.batch_bytes, kind.codec) for kind in _KINDS]
        topics = [stack.enter_context(scratch_topic(subject, 4)) for _ in _KINDS]
        while time.monotonic() < deadline and not has_settled(costs):
            found = [
                _produce_and_fetch(subject, batch, per_batch, topic, leaders)
                for (batch, per_batch), (topic, leaders) in zip(batches, topics, strict=True)
            ]
            costs.append(found[0])
    return costs


def _produce_and_fetch(subject: Subject, batch: bytes, per_batch: int, topic: str, leaders: dict[int, int]) -> float:
    lanes, _ = open_lanes(leaders, topic, batch, acks=-1, connections=4, window=4)
    with Meter(subject) as meter:
        requests, _ = pump(lanes, 4, seconds=_PART_SECONDS, requests=int(_PART_BYTES / len(batch)))
    close_lanes(lanes)
    ends = end_offsets(leaders, topic)
    readers = [Reader(port, topic, p, len(batch), per_batch, ends[p]) for p, port in leaders.items()]
    read(readers, seconds=_PART_SECONDS / 2)
    for reader in readers:
        reader.socket.close()
    return meter.cpu_seconds / requests * 1e6


def _settle_nats(subject: NatsSubject, deadline: float) -> list[float]:
    port = subject.ports[0]
    costs: list[float] = []
    with scratch_stream(subject) as stream:
        total = 0
        while time.monotonic() < deadline and not has_settled(costs):
            with Meter(subject) as meter:
                count, _ = nats_load.publish(port, stream, _RECORD_BYTES, 100, seconds=_PART_SECONDS, messages=50_000)
            total += count
            nats_load.pull(port, stream, total)
            costs.append(meter.cpu_seconds / count * 1e6)
    return costs
