"""Workloads by real clients: librdkafka in this process, Kafka's own tools in JVMs."""

from typing import Any

from penstock.bench import topics
from penstock.bench.artifacts import Kafka
from penstock.bench.loads import java_tools, librdkafka
from penstock.bench.loads.connection import make_batch
from penstock.bench.loads.raw_produce import close_lanes, open_lanes, pump
from penstock.bench.meter import Meter, Values, latency_values
from penstock.bench.subjects import KafkaWireSubject, Setup
from penstock.bench.workload import (
    JAVA,
    LIBRDKAFKA,
    LeftOut,
    Scale,
    Workload,
    check_arrived,
    disk_values,
    scratch_topic,
)

_PARTITIONS = 4
_FILL_BATCH_BYTES = 16_384


class _Sized(Workload):
    def __init__(
        self,
        name: str,
        title: str,
        setup: Setup,
        record_bytes: int = 1_000,
        acks: str = "all",
        *,
        quick: bool = False,
    ) -> None:
        super().__init__(name, title, setup, quick=quick)
        self.record_bytes = record_bytes
        self.acks = acks


class LibrdkafkaProduce(_Sized):
    load = LIBRDKAFKA
    family = "produce"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        with scratch_topic(subject, _PARTITIONS) as (topic, leaders):
            options: dict[str, Any] = {"acks": self.acks, "linger.ms": 5}
            run = librdkafka.ProduceRun(subject.bootstrap, topic, self.record_bytes, options)
            warm, _ = run.run(scale.warm_seconds)
            with Meter(subject) as meter:
                records, latencies = run.run(scale.seconds)
            check_arrived(topics.count_records(leaders, topic), warm + records)
            values = meter.values(records=records, record_bytes=self.record_bytes, latencies_s=latencies)
            return values | disk_values(subject, topic, (warm + records) * self.record_bytes)


class LibrdkafkaConsume(_Sized):
    load = LIBRDKAFKA
    family = "fetch"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        with scratch_topic(subject, _PARTITIONS) as (topic, leaders):
            records = fill(topic, leaders, self.record_bytes, scale.max_bytes / 2)
            with Meter(subject) as meter:
                librdkafka.consume(subject.bootstrap, topic, _PARTITIONS, records)
            return meter.values(records=records, record_bytes=self.record_bytes)


class LibrdkafkaRate(_Sized):
    """Without lingering, at a rate that a client library keeps up with easily."""

    load = LIBRDKAFKA
    family = "latency"
    primary = "p99_ms"
    rate = 1_000

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        with scratch_topic(subject, 1) as (topic, _):
            options: dict[str, Any] = {"acks": self.acks, "linger.ms": 0}
            run = librdkafka.RateRun(subject.bootstrap, topic, self.record_bytes, self.rate, options)
            run.run(scale.warm_seconds)
            with Meter(subject) as meter:
                acks, ends = run.run(scale.seconds)
            run.close()
            values = meter.values(records=len(ends), record_bytes=self.record_bytes, latencies_s=ends)
            return values | latency_values(acks, "ack_")


class JavaProduce(_Sized):
    load = JAVA
    family = "produce"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        kafka = _needed(kafka)
        records = min(scale.java_records, int(scale.java_bytes / self.record_bytes))
        with scratch_topic(subject, _PARTITIONS) as (topic, leaders):
            with Meter(subject) as meter:
                made = java_tools.run_producer(kafka, subject.bootstrap, topic, records, self.record_bytes, self.acks)
            check_arrived(topics.count_records(leaders, topic), records)
            # The meter saw all records, the tool's figures leave out its warm-up.
            values = meter.values(
                records=records, record_bytes=self.record_bytes, seconds=records / made.records_per_s
            )
            values |= dict(zip(("p50_ms", "p99_ms", "p999_ms"), made.latencies_ms, strict=True))
            return values | disk_values(subject, topic, records * self.record_bytes)


class JavaConsume(_Sized):
    load = JAVA
    family = "fetch"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        kafka = _needed(kafka)
        with scratch_topic(subject, _PARTITIONS) as (topic, leaders):
            records = fill(topic, leaders, self.record_bytes, scale.max_bytes / 2)
            with Meter(subject) as meter:
                got = java_tools.run_consumer(kafka, subject.bootstrap, topic, records)
            return meter.values(
                records=got.records, record_bytes=self.record_bytes, seconds=got.records / got.fetch_records_per_s
            )


class JavaEndToEnd(_Sized):
    load = JAVA
    family = "latency"
    primary = "p99_ms"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        kafka = _needed(kafka)
        records = int(1_000 * scale.seconds)
        with scratch_topic(subject, 1) as (topic, _):
            with Meter(subject) as meter:
                found = java_tools.run_end_to_end(kafka, subject.bootstrap, topic, records, self.record_bytes)
            values = meter.values(records=records, record_bytes=self.record_bytes)
            return values | dict(zip(("p50_ms", "p99_ms", "p999_ms"), found, strict=True))


def _needed(kafka: Kafka | None) -> Kafka:
    if kafka is None:
        raise LeftOut("Kafka's tools are not there")
    return kafka


def fill(topic: str, leaders: dict[int, int], record_bytes: int, payload_bytes: float) -> int:
    """Puts records into the topic, as prepared bytes; returns how many."""
    batch, per_batch = make_batch(record_bytes, _FILL_BATCH_BYTES)
    requests = max(1, int(payload_bytes / (per_batch * record_bytes)))
    lanes, first = open_lanes(leaders, topic, batch, acks=-1, connections=len(leaders), window=4)
    done, _ = pump(lanes, 4, requests=requests)
    close_lanes(lanes)
    return (first + done) * per_batch
