"""Workloads of prepared bytes: the load costs little, so the broker is what is measured."""

import time
from typing import NamedTuple

from penstock.bench import topics
from penstock.bench.artifacts import Kafka
from penstock.bench.loads import nats_load
from penstock.bench.loads.connection import make_batch
from penstock.bench.loads.raw_fetch import Reader, read
from penstock.bench.loads.raw_produce import close_lanes, open_lanes, pump
from penstock.bench.loads.raw_rate import RateRun
from penstock.bench.loads.raw_tail import TailRun
from penstock.bench.meter import Meter, Values, latency_values
from penstock.bench.nats import NatsClient, NatsSubject
from penstock.bench.processes import evict_from_page_cache
from penstock.bench.subjects import KafkaWireSubject, Setup
from penstock.bench.workload import (
    RAW,
    LeftOut,
    Scale,
    Workload,
    check_arrived,
    disk_values,
    scratch_stream,
    scratch_topic,
)
from penstock.records.compression import Codec

_NATS_IN_FLIGHT = 4_000
"""More than this and JetStream refuses with `too many requests`."""
_FIRST_BYTES = 8_192
"""Each partition gets this much before it counts: a broker may make its files with the first write, and Kafka has its
first index entry with the second. That is a page fault in a sparse mapped file of 10 MB, for which the kernel reads
ahead: 8 ms for each of two indexes where the disk's read-ahead is 8 MB. It is part of `create_s`."""


class Shape(NamedTuple):
    """What producers send and how."""

    record_bytes: int
    batch_bytes: int
    acks: int = 1
    codec: int = Codec.NONE
    partitions: int = 4
    connections: int = 4
    window: int = 5


class RawProduce(Workload):
    load = RAW

    def __init__(
        self, name: str, title: str, setup: Setup, shape: Shape, *, family: str = "produce", quick: bool = False
    ) -> None:
        super().__init__(name, title, setup, quick=quick)
        self.family = family
        self.shape = shape
        if shape.batch_bytes <= shape.record_bytes:
            self.primary = "requests_per_s"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        shape = self.shape
        batch, per_batch = make_batch(shape.record_bytes, shape.batch_bytes, shape.codec)
        most = max(1, int(scale.max_bytes / subject.setup.brokers / (per_batch * shape.record_bytes)))
        begun = time.perf_counter()
        with scratch_topic(subject, shape.partitions) as (topic, leaders):
            lanes, first = open_lanes(
                leaders, topic, batch, acks=shape.acks, connections=shape.connections, window=shape.window
            )
            first += pump(lanes, shape.window, rounds=1 + -(-_FIRST_BYTES // len(batch)))[0]
            create_s = time.perf_counter() - begun
            warm, _ = pump(lanes, shape.window, seconds=scale.warm_seconds, requests=-(-most // 4))
            with Meter(subject) as meter:
                requests, latencies = pump(lanes, shape.window, seconds=scale.seconds, requests=most)
            close_lanes(lanes)
            records = (first + warm + requests) * per_batch
            check_arrived(topics.count_records(leaders, topic), records)
            values = meter.values(
                records=requests * per_batch,
                record_bytes=shape.record_bytes,
                requests=requests,
                latencies_s=latencies,
            )
            values["create_s"] = create_s
            return values | disk_values(subject, topic, records * shape.record_bytes)

    def run_nats(self, subject: NatsSubject, scale: Scale) -> Values:
        shape = self.shape
        if shape.codec:
            raise LeftOut("no compression in the client protocol")
        if self.family == "many":
            if shape.window > 1:
                raise LeftOut("no partitions")
            return self._run_nats_connections(subject, scale)
        per_batch = max(1, shape.batch_bytes // shape.record_bytes)
        window = min(_NATS_IN_FLIGHT, shape.connections * shape.window * per_batch)
        most = max(1, int(scale.max_bytes / subject.setup.brokers / shape.record_bytes))
        with scratch_stream(subject) as stream:
            port = subject.ports[0]
            warm, _ = nats_load.publish(port, stream, shape.record_bytes, window, seconds=scale.warm_seconds)
            with Meter(subject) as meter:
                records, latencies = nats_load.publish(
                    port, stream, shape.record_bytes, window, seconds=scale.seconds, messages=most
                )
            client = NatsClient(port)
            check_arrived(client.count_messages(stream), warm + records)
            client.close()
            values = meter.values(
                records=records, record_bytes=shape.record_bytes, requests=records, latencies_s=latencies
            )
            return values | disk_values(subject, stream, (warm + records) * shape.record_bytes)

    def _run_nats_connections(self, subject: NatsSubject, scale: Scale) -> Values:
        """One record in flight on each of many connections, to one stream; they are there before it counts."""
        size = self.shape.record_bytes
        most = max(1, int(scale.max_bytes / size))
        port = subject.ports[0]
        with scratch_stream(subject) as stream:
            publishers = nats_load.Publishers(port, stream, size, self.shape.connections)
            warm, _ = publishers.run(seconds=scale.warm_seconds, messages=-(-most // 4))
            with Meter(subject) as meter:
                records, latencies = publishers.run(seconds=scale.seconds, messages=most)
            publishers.close()
            client = NatsClient(port)
            check_arrived(client.count_messages(stream), warm + records)
            client.close()
            values = meter.values(records=records, record_bytes=size, requests=records, latencies_s=latencies)
            return values | disk_values(subject, stream, (warm + records) * size)


class RawFetch(Workload):
    """Consumers that read the log from its beginning; `cold`: from the disk, the page cache has none of it."""

    load = RAW
    family = "fetch"
    partitions = 4

    def __init__(
        self, name: str, title: str, setup: Setup, batch_bytes: int, *, cold: bool = False, quick: bool = False
    ) -> None:
        super().__init__(name, title, setup, quick=quick)
        self.record_bytes = 1_000
        self.batch_bytes = batch_bytes
        self.cold = cold

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        batch, per_batch = make_batch(self.record_bytes, self.batch_bytes)
        most = max(self.partitions, int(scale.max_bytes / 2 / len(batch)))
        with scratch_topic(subject, self.partitions) as (topic, leaders):
            lanes, _ = open_lanes(leaders, topic, batch, acks=1, connections=self.partitions, window=4)
            pump(lanes, 4, requests=most)
            close_lanes(lanes)
            ends = topics.end_offsets(leaders, topic)
            readers = [Reader(port, topic, p, len(batch), per_batch, ends[p]) for p, port in leaders.items()]
            if self.cold:
                evict_from_page_cache(subject.directories(topic))
            else:
                read(readers, seconds=scale.warm_seconds)
            with Meter(subject) as meter:
                records, latencies = read(readers, seconds=0.0 if self.cold else scale.seconds)
            for reader in readers:
                reader.socket.close()
            if self.cold:
                check_arrived(records, sum(ends.values()))
            return meter.values(
                records=records, record_bytes=self.record_bytes, requests=len(latencies), latencies_s=latencies
            )

    def run_nats(self, subject: NatsSubject, scale: Scale) -> Values:
        messages = int(scale.max_bytes / 2 / self.record_bytes)
        port = subject.ports[0]
        with scratch_stream(subject) as stream:
            nats_load.publish(port, stream, self.record_bytes, _NATS_IN_FLIGHT, messages=messages)
            if self.cold:
                evict_from_page_cache(subject.directories(stream))
            records = 0
            with Meter(subject) as meter:
                end = time.perf_counter() + scale.seconds
                while not records or (not self.cold and time.perf_counter() < end):
                    nats_load.pull(port, stream, messages)
                    records += messages
            return meter.values(records=records, record_bytes=self.record_bytes)


class RawTail(Workload):
    """Consumers at the end of the log, reading what producers write meanwhile: as fast as the broker takes it, or so
    many MB per second. Percentiles are of a batch, from sent (at a rate: due) to consumed."""

    load = RAW
    family = "fetch"
    partitions = 4
    window = 5
    record_bytes = 1_000

    def __init__(self, name: str, title: str, setup: Setup, batch_bytes: int, mb_per_s: float = 0.0) -> None:
        super().__init__(name, title, setup)
        self.batch_bytes = batch_bytes
        self.mb_per_s = mb_per_s
        if mb_per_s:
            self.primary = "p99_ms"

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        batch, per_batch = make_batch(self.record_bytes, self.batch_bytes)
        payload = per_batch * self.record_bytes
        most = max(1, int(scale.max_bytes / payload))
        rate = self.mb_per_s * 1e6 / payload
        with scratch_topic(subject, self.partitions) as (topic, leaders):
            run = TailRun(leaders, topic, batch, per_batch, acks=1, window=self.window)
            run.run(scale.warm_seconds, -(-most // 4), rate)
            with Meter(subject) as meter:
                latencies = run.run(scale.seconds, most, rate)
            run.close()
            check_arrived(topics.count_records(leaders, topic), run.sent * per_batch)
            return meter.values(
                records=len(latencies) * per_batch, record_bytes=self.record_bytes, latencies_s=latencies
            )

    def run_nats(self, subject: NatsSubject, scale: Scale) -> Values:
        if self.mb_per_s:
            raise LeftOut("no batches: so many MB would be single messages, about as many as it takes at full speed")
        most = max(1, int(scale.max_bytes / self.record_bytes))
        window = min(_NATS_IN_FLIGHT, self.partitions * self.window * (self.batch_bytes // self.record_bytes))
        with scratch_stream(subject) as stream:
            run = nats_load.Followed(subject.ports[0], stream, self.record_bytes)
            run.run(window, seconds=scale.warm_seconds, messages=-(-most // 4))
            with Meter(subject) as meter:
                latencies = run.run(window, seconds=scale.seconds, messages=most)
            run.close()
            return meter.values(records=len(latencies), record_bytes=self.record_bytes, latencies_s=latencies)


class RawRate(Workload):
    """One record per request at a fixed rate, consumed at the same time; percentiles are from due to consumed."""

    load = RAW
    family = "latency"
    primary = "p99_ms"

    def __init__(
        self, name: str, title: str, setup: Setup, rate: int, *, record_bytes: int = 1_000, quick: bool = False
    ) -> None:
        super().__init__(name, title, setup, quick=quick)
        self.rate = rate
        self.record_bytes = record_bytes

    def run_kafka_wire(self, subject: KafkaWireSubject, scale: Scale, kafka: Kafka | None) -> Values:
        with scratch_topic(subject, 1) as (topic, leaders):
            run = RateRun(leaders[0], topic, self.record_bytes, self.rate, acks=-1)
            run.run(scale.warm_seconds)
            with Meter(subject) as meter:
                acks, ends = run.run(scale.seconds)
            run.close()
        return self._values(meter, acks, ends)

    def run_nats(self, subject: NatsSubject, scale: Scale) -> Values:
        with scratch_stream(subject) as stream:
            run = nats_load.Followed(subject.ports[0], stream, self.record_bytes)
            run.run_at_rate(self.rate, scale.warm_seconds)
            with Meter(subject) as meter:
                acks, ends = run.run_at_rate(self.rate, scale.seconds)
            run.close()
        return self._values(meter, acks, ends)

    def _values(self, meter: Meter, acks: list[float], ends: list[float]) -> Values:
        values = meter.values(records=len(ends), record_bytes=self.record_bytes, requests=len(acks), latencies_s=ends)
        return values | latency_values(acks, "ack_")
