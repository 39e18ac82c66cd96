"""Producers that write without pause and remember what the broker acknowledged, through restarts and crashes.

Each writes numbered records to a partition of its own. A record that was acknowledged must be at its offset for
ever; one that was not may be there or not, but never twice.
"""

import asyncio
import threading
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka

GIVE_UP_MS = 120_000
IN_FLIGHT = 400
PADDING = b"." * 400


class Acknowledged(NamedTuple):
    offset: int
    number: int


def payload(number: int) -> bytes:
    return b"%010d" % number + PADDING


def number_of(value: bytes) -> int:
    assert value[10:] == PADDING
    return int(value[:10])


class Writer:
    """The part that is the same for every library; a thread runs `_run` until `stop`."""

    name = ""

    def __init__(self, bootstrap: str, topic: str, partition: int, in_flight: int = IN_FLIGHT) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partition = partition
        self.acknowledged: list[Acknowledged] = []
        self.failures: list[str] = []
        self._in_flight = in_flight
        self._room = threading.Semaphore(in_flight)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=f"writer {self.name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise AssertionError("each library has its own")

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # the edge of a thread: told to the test by stop()
            self.failures.append(repr(error))

    def stop(self) -> None:
        """Sends nothing more, waits for what is under way; everything must have been acknowledged."""
        self._ending.set()
        self._thread.join(GIVE_UP_MS / 1000)
        assert not self._thread.is_alive(), f"{self.name} does not come to an end"
        assert not self.failures, f"{self.name}: {self.failures[:3]}"


class ConfluentWriter(Writer):
    name = "confluent-kafka"

    def _run(self) -> None:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 50,
                "message.timeout.ms": GIVE_UP_MS,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "log_level": 0,
            }
        )
        number = 0
        while not self._ending.is_set():
            if not self._room.acquire(blocking=False):
                producer.poll(0.01)
                continue
            producer.produce(self.topic, payload(number), partition=self.partition, on_delivery=self._delivered)
            number += 1
        assert producer.flush(GIVE_UP_MS / 1000) == 0

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        self._room.release()
        if error is not None:
            self.failures.append(error.str())
        else:
            self.acknowledged.append(Acknowledged(message.offset(), number_of(message.value())))


class KafkaPythonWriter(Writer):
    name = "kafka-python"

    def _run(self) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            batch_size=20_000,
            delivery_timeout_ms=GIVE_UP_MS,
            retry_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )
        number = 0
        while not self._ending.is_set():
            if not self._room.acquire(timeout=0.05):
                continue
            sent = producer.send(self.topic, payload(number), partition=self.partition)
            sent.add_both(self._done, number, sent)
            number += 1
        producer.flush(GIVE_UP_MS / 1000)
        producer.close()

    def _done(self, number: int, future: object, outcome: object) -> None:
        self._room.release()
        if isinstance(outcome, BaseException):
            self.failures.append(repr(outcome))
        else:
            self.acknowledged.append(Acknowledged(outcome.offset, number))  # type: ignore[attr-defined]


class AiokafkaWriter(Writer):
    name = "aiokafka"

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            max_batch_size=20_000,
            request_timeout_ms=GIVE_UP_MS,
            retry_backoff_ms=20,
        )
        room = asyncio.Semaphore(self._in_flight)
        under_way: set[asyncio.Task[None]] = set()
        async with producer:
            number = 0
            while not self._ending.is_set():
                await room.acquire()
                sent = await producer.send(self.topic, payload(number), partition=self.partition)
                task = asyncio.create_task(self._await(sent, number, room))
                under_way.add(task)
                task.add_done_callback(under_way.discard)
                number += 1
            await asyncio.gather(*under_way)

    async def _await(self, sent: "asyncio.Future[object]", number: int, room: asyncio.Semaphore) -> None:
        try:
            metadata = await sent
            self.acknowledged.append(Acknowledged(metadata.offset, number))  # type: ignore[attr-defined]
        except aiokafka.errors.KafkaError as error:
            self.failures.append(repr(error))
        finally:
            room.release()
