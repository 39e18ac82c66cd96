"""What a workload is: work that every subject gets alike, told by name, load and set-up.

A run creates a topic of its own, warms up, measures inside the meter, checks that everything arrived, and removes the
topic. A subject that has no equivalent of the work is left out with the reason.
"""

import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock.bench import topics
from penstock.bench.artifacts import Kafka
from penstock.bench.meter import Values
from penstock.bench.nats import NatsClient, NatsSubject
from penstock.bench.subjects import KafkaWireSubject, Setup, Subject

RAW, LIBRDKAFKA, JAVA = "raw", "librdkafka", "java"
LOADS = {
    RAW: "prepared bytes over plain sockets: the broker is the bottleneck",
    LIBRDKAFKA: "librdkafka through confluent-kafka: one Python call per record",
    JAVA: "Kafka's own performance tools, one JVM each",
}


class LeftOut(Exception):
    """Why this subject does not get this work."""


class Scale(NamedTuple):
    """How much of it: a full comparison, a quick one, or a test."""

    seconds: float
    warm_seconds: float
    max_bytes: float
    """Payload of one run: more would measure how fast the disk takes what the page cache cannot hold."""
    java_bytes: float
    java_records: int
    settle_seconds: float
    """How long each broker may get work before anything is measured, until it no longer gets cheaper."""


FULL = Scale(5.0, 1.0, 1.5e9, 5e8, 2_000_000, 90.0)
QUICK = Scale(1.0, 0.4, 2.5e8, 1e8, 250_000, 25.0)


class Workload(ABC):
    """Immutable; `name` is how the command line and the report know it."""

    load: str = RAW
    family: str = ""
    primary: str = "mb_per_s"
    """The metric that its ratio is of."""

    def __init__(self, name: str, title: str, setup: Setup, *, quick: bool = False) -> None:
        self.name = name
        self.title = title
        self.setup = setup
        self.quick = quick

    def run(self, subject: Subject, scale: Scale, kafka: Kafka | None) -> Values:
        if isinstance(subject, KafkaWireSubject):
            return self.run_kafka_wire(subject, scale, kafka)
        if isinstance(subject, NatsSubject):
            return self.run_nats(subject, scale)
        raise LeftOut(f"{subject.name} is not known here")

    @abstractmethod
    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values: ...

    def run_nats(self, subject: NatsSubject, scale: Scale) -> Values:
        raise LeftOut("no equivalent")


_numbers = itertools.count(1)


def _new_name() -> str:
    return f"bench-{os.getpid()}-{next(_numbers)}"


@contextmanager
def scratch_topic(subject: KafkaWireSubject, partitions: int) -> Iterator[tuple[str, dict[int, int]]]:
    """A topic with a replica on every broker, and the port of each partition's leader; gone with its files after."""
    name = _new_name()
    leaders = topics.create_topic(subject.ports[0], name, partitions, subject.setup.brokers)
    try:
        yield name, leaders
    finally:
        topics.delete_topic(subject.ports[0], name, subject.directories)


@contextmanager
def scratch_stream(subject: NatsSubject) -> Iterator[str]:
    name = _new_name()
    client = NatsClient(subject.ports[0])
    answer = client.create_stream(name, subject.setup.brokers)
    if "error" in answer:
        raise RuntimeError(f"the stream was refused: {answer['error']}")
    try:
        yield name
    finally:
        client.api(f"STREAM.DELETE.{name}")
        client.close()
        topics.wait_for(lambda: not subject.directories(name), "the files of the deleted stream are gone")


def check_arrived(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{expected} records were acknowledged, {found} are in the log")


def disk_values(subject: Subject, topic: str, payload_bytes: float) -> Values:
    return {"disk_bytes_per_byte": subject.disk_bytes(topic) / payload_bytes}
