"""Load by librdkafka through confluent-kafka: a real client with batching, compression and sequence numbers.

Python calls it once per record, so at small records the client is what is slow; the report says how busy it was.
"""

import os
import threading
import time
from typing import Any

_POLL_EVERY = 500
_SAMPLE_EVERY = 101
_FLUSH_SECONDS = 60.0
_CONSUME = 5_000


class ProduceRun:
    """One producer; latency is sampled from `produce()` to the delivery report."""

    def __init__(self, bootstrap: str, topic: str, record_bytes: int, options: dict[str, Any]) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._value = os.urandom(record_bytes)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 65_536,
                **options,
            }
        )
        self.errors = 0

    def run(self, seconds: float) -> tuple[int, list[float]]:
        produce, poll, topic, value = self._producer.produce, self._producer.poll, self._topic, self._value
        latencies: list[float] = []
        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(_POLL_EVERY):
                try:
                    if count % _SAMPLE_EVERY:
                        produce(topic, value)
                    else:
                        produce(topic, value, on_delivery=self._noting(latencies, time.perf_counter()))
                    count += 1
                except BufferError:
                    poll(0.01)
            poll(0)
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or self.errors:
            raise RuntimeError(f"{left} records were not delivered, {self.errors} of the sampled were refused")
        return count, latencies

    def _noting(self, latencies: list[float], begun: float) -> Any:
        def note(error: object, message: object) -> None:
            if error is not None:
                self.errors += 1
            latencies.append(time.perf_counter() - begun)

        return note


def consume(bootstrap: str, topic: str, partitions: int, records: int) -> int:
    """From the beginning until so many came; returns the bytes of their values."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "fetch.min.bytes": 1}
    )
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    count = size = 0
    deadline = time.monotonic() + _FLUSH_SECONDS
    while count < records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} of {records} records were consumed in {_FLUSH_SECONDS:.0f} s")
        for message in consumer.consume(_CONSUME, 1.0):
            if message.error():
                raise RuntimeError(f"consume failed: {message.error()}")
            count += 1
            size += len(message.value() or b"")
    consumer.close()
    return size


class RateRun:
    """Producer and consumer at a fixed rate; a record carries when it was due, and latency counts from there."""

    def __init__(self, bootstrap: str, topic: str, record_bytes: int, rate: int, options: dict[str, Any]) -> None:
        from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

        self._topic = topic
        self._rate = rate
        self._padding = os.urandom(record_bytes - 8)
        self._producer = Producer({"bootstrap.servers": bootstrap, **options})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
        self._consumer.poll(1.0)
        self._acks: list[float] = []
        self._ends: list[float] = []

    def run(self, seconds: float) -> tuple[list[float], list[float]]:
        self._acks, self._ends = [], []
        total = int(self._rate * seconds)
        consuming = threading.Thread(target=self._consume, args=(total, time.monotonic() + seconds + 30))
        consuming.start()
        begun = time.perf_counter()
        sent = 0
        while sent < total:
            due = min(total, int((time.perf_counter() - begun) * self._rate))
            for number in range(sent, due):
                self._send(begun + (number + 1) / self._rate)
            sent = max(sent, due)
            self._producer.poll(0.001)
        left = self._producer.flush(_FLUSH_SECONDS)
        consuming.join()
        if left or len(self._ends) < total:
            raise RuntimeError(f"of {total} records {left} were not delivered and {len(self._ends)} were consumed")
        return self._acks, self._ends

    def _send(self, due: float) -> None:
        value = int(due * 1e9).to_bytes(8, "big") + self._padding

        def note(error: object, message: object) -> None:
            self._acks.append(time.perf_counter() - due)

        self._producer.produce(self._topic, value, partition=0, on_delivery=note)

    def _consume(self, total: int, deadline: float) -> None:
        while len(self._ends) < total and time.monotonic() < deadline:
            messages = self._consumer.consume(100, 0.01)
            now = time.perf_counter()
            for message in messages:
                value = message.value()
                if message.error() is None and value is not None:
                    self._ends.append(now - int.from_bytes(value[:8], "big") / 1e9)

    def close(self) -> None:
        self._consumer.close()
