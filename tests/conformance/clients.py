"""Every client library behind one face: write a list of records, read a whole topic.

The libraries are used as their documentation says, with the settings that a test needs and no others.
"""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.conformance.java import Jvm, from_base64, to_base64
from tests.external import kcat

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TIMEOUT_SECONDS = 30.0
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
# librdkafka learns from an empty answer that it is at the end; the broker holds empty answers back this long.
END_WAIT_MS = 10
Headers = tuple[tuple[str, bytes | None], ...]


class ToWrite(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    partition: int = 0


class Seen(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Client(Protocol):
    name: str

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        """Writes the records in order; returns their offsets."""

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        """All records from the earliest offset to the end as it is now, sorted by partition and offset."""


class Confluent:
    name = "confluent-kafka"

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                "message.max.bytes": MAX_MESSAGE_BYTES,
            }
        )
        offsets: list[int] = []
        errors: list[object] = []

        def delivered(error: object, message: confluent_kafka.Message) -> None:
            if error is not None:
                errors.append(error)
            else:
                offsets.append(message.offset())

        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
            )
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert not errors, errors
        return offsets

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "max.partition.fetch.bytes": MAX_MESSAGE_BYTES,
                "check.crcs": True,
                "fetch.wait.max.ms": END_WAIT_MS,
            }
        )
        try:
            count = len(consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic].partitions)
            beginning = confluent_kafka.OFFSET_BEGINNING
            consumer.assign([confluent_kafka.TopicPartition(topic, p, beginning) for p in range(count)])
            return self._read_to_the_end(consumer, count)
        finally:
            consumer.close()

    def _read_to_the_end(self, consumer: confluent_kafka.Consumer, partitions: int) -> list[Seen]:
        seen = []
        ended = 0
        while ended < partitions:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None, f"nothing for {TIMEOUT_SECONDS} s after {len(seen)} records"
            error = message.error()
            if error is None:
                seen.append(self._seen(message))
                continue
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ended += 1
        return sorted(seen)

    @staticmethod
    def _seen(message: confluent_kafka.Message) -> Seen:
        headers = tuple(message.headers() or ())
        timestamp_ms = message.timestamp()[1]
        return Seen(message.partition(), message.offset(), timestamp_ms, message.key(), message.value(), headers)


class KafkaPython:
    name = "kafka-python"

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=MAX_MESSAGE_BYTES,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(TIMEOUT_SECONDS)
            return [future.get(TIMEOUT_SECONDS).offset for future in futures]
        finally:
            producer.close()

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=MAX_MESSAGE_BYTES
        )
        try:
            partitions = [kafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            ends = consumer.end_offsets(partitions)
            consumer.seek_to_beginning(*partitions)
            seen: list[Seen] = []
            while any(consumer.position(p) < end for p, end in ends.items()):
                polled = consumer.poll(timeout_ms=int(TIMEOUT_SECONDS * 1000))
                assert polled, f"nothing for {TIMEOUT_SECONDS} s after {len(seen)} records"
                seen += [self._seen(record) for records in polled.values() for record in records]
            return sorted(seen)
        finally:
            consumer.close()

    @staticmethod
    def _seen(record: Any) -> Seen:
        headers = tuple((name, value) for name, value in record.headers)
        return Seen(record.partition, record.offset, record.timestamp, record.key, record.value, headers)


class Aiokafka:
    name = "aiokafka"

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        return asyncio.run(self._produce(bootstrap, topic, records, codec))

    async def _produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
            max_request_size=MAX_MESSAGE_BYTES,
        )
        async with producer:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            return [metadata.offset for metadata in await asyncio.gather(*futures)]

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        return asyncio.run(self._consume(bootstrap, topic))

    async def _consume(self, bootstrap: str, topic: str) -> list[Seen]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=MAX_MESSAGE_BYTES,
        )
        async with consumer:
            await consumer._client._wait_on_metadata(topic)
            partitions = [aiokafka.TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic)]
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            seen: list[Seen] = []
            while [p for p, end in ends.items() if await consumer.position(p) < end]:
                polled = await consumer.getmany(timeout_ms=int(TIMEOUT_SECONDS * 1000))
                assert polled, f"nothing for {TIMEOUT_SECONDS} s after {len(seen)} records"
                seen += [self._seen(record) for records in polled.values() for record in records]
            return sorted(seen)

    @staticmethod
    def _seen(record: Any) -> Seen:
        return Seen(
            record.partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers)
        )


class Kcat:
    """kcat takes one set of headers for all records of a run, and writes text; that is what tests give it."""

    name = "kcat"

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        assert {record.partition for record in records} == {0}
        lines = b"".join((r.key or b"") + b"\t" + (r.value or b"") + b"\n" for r in records)
        headers = [argument for name, value in records[0].headers for argument in ("-H", f"{name}={value!s}")]
        self.run("-P", "-b", bootstrap, "-t", topic, "-p", "0", "-K", "\t", "-Z", "-z", codec, *headers, stdin=lines)
        return list(range(len(records)))

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        short_wait = f"fetch.wait.max.ms={END_WAIT_MS}"
        output = self.run("-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-e", "-q", "-J", "-X", short_wait)
        return sorted(self._seen(json.loads(line)) for line in output.splitlines())

    @staticmethod
    def run(*arguments: str, stdin: bytes = b"") -> bytes:
        command = [kcat(), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout

    @staticmethod
    def _seen(line: dict[str, Any]) -> Seen:
        flat = line.get("headers", [])
        headers = tuple((name, _encoded(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
        key, value = _encoded(line["key"]), _encoded(line["payload"])
        return Seen(line["partition"], line["offset"], line["ts"], key, value, headers)


class Java:
    name = "java"

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def produce(self, bootstrap: str, topic: str, records: Sequence[ToWrite], codec: str = "none") -> list[int]:
        config = {"compression.type": codec, "linger.ms": 20, "max.request.size": MAX_MESSAGE_BYTES}
        nodes = [self._node(record) for record in records]
        answer = self._jvm.call("produce", bootstrap=bootstrap, topic=topic, config=config, records=nodes)
        return [offset for _, offset in answer["results"]]

    def consume(self, bootstrap: str, topic: str) -> list[Seen]:
        config = {"max.partition.fetch.bytes": MAX_MESSAGE_BYTES}
        answer = self._jvm.call("consume", bootstrap=bootstrap, topic=topic, config=config)
        return sorted(self._seen(node) for node in answer["records"])

    @staticmethod
    def _node(record: ToWrite) -> dict[str, Any]:
        return {
            "key": to_base64(record.key),
            "value": to_base64(record.value),
            "headers": [(name, to_base64(value)) for name, value in record.headers],
            "partition": record.partition,
            "timestamp": record.timestamp_ms,
        }

    @staticmethod
    def _seen(node: dict[str, Any]) -> Seen:
        headers = tuple((name, from_base64(value)) for name, value in node["headers"])
        key, value = from_base64(node["key"]), from_base64(node["value"])
        return Seen(node["partition"], node["offset"], node["timestamp"], key, value, headers)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
