"""Transactional producers and readers of every client library behind one face."""

import asyncio
import itertools
import subprocess
from collections.abc import Callable
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
from kafka.structs import OffsetAndMetadata

from tests.conformance.java import JavaFailure, Jvm, from_base64, to_base64
from tests.external import kcat

SECONDS = 30.0
TIMEOUT_MS = 60_000
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"


class TransactionalProducer(Protocol):
    """Made of a bootstrap address, a transactional id and a timeout; the id is taken over by then."""

    failures: tuple[type[Exception], ...]
    transaction_version: int

    def begin(self) -> None: ...

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        """Returns when they are written."""

    def send_offset(self, group: str, topic: str, offset: int) -> None: ...

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class ConfluentTransactions:
    failures = (confluent_kafka.KafkaException,)
    transaction_version = 1

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._config = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = confluent_kafka.Producer(
            {**self._config, "transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        )
        self._producer.init_transactions(SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)
        assert self._producer.flush(SECONDS) == 0

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        consumer = confluent_kafka.Consumer({**self._config, "group.id": group})
        place = confluent_kafka.TopicPartition(topic, 0, offset)
        self._producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), SECONDS)
        consumer.close()

    def commit(self) -> None:
        self._producer.commit_transaction(SECONDS)

    def abort(self) -> None:
        self._producer.abort_transaction(SECONDS)

    def close(self) -> None:
        del self._producer  # as it is: a fenced one takes no more calls


class KafkaPythonTransactions:
    failures = (kafka.errors.KafkaError,)
    transaction_version = 1

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        sent = [self._producer.send(topic, value, partition=partition) for value in values]
        for future in sent:
            future.get(SECONDS)

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        place = kafka.TopicPartition(topic, 0)
        self._producer.send_offsets_to_transaction({place: OffsetAndMetadata(offset, "", -1)}, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AiokafkaTransactions:
    failures = (aiokafka.errors.KafkaError,)
    transaction_version = 1

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._loop = asyncio.new_event_loop()
        self._producer = self._run(self._start(bootstrap, transactional_id, timeout_ms))

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> aiokafka.AIOKafkaProducer:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        await producer.start()
        return producer

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, SECONDS))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        async def send_all() -> None:
            sent = [await self._producer.send(topic, value, partition=partition) for value in values]
            await asyncio.gather(*sent)

        self._run(send_all())

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        place = aiokafka.TopicPartition(topic, 0)
        self._run(self._producer.send_offsets_to_transaction({place: offset}, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        self._run(self._producer.stop())
        self._loop.close()


class JavaTransactions:
    """Transaction version 2, where the broker offers it."""

    failures = (JavaFailure,)
    transaction_version = 2
    _names = itertools.count()

    def __init__(self, jvm: Jvm, bootstrap: str, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> None:
        self._jvm = jvm
        self._name = f"producer-{next(self._names)}"
        config = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms}
        self._step("init", bootstrap=bootstrap, config=config)

    def _step(self, step: str, **arguments: Any) -> None:
        self._jvm.call("transaction", step=step, name=self._name, **arguments)

    def begin(self) -> None:
        self._step("begin")

    def send(self, topic: str, *values: bytes, partition: int = 0) -> None:
        self._step("send", topic=topic, partition=partition, values=[to_base64(value) for value in values])

    def send_offset(self, group: str, topic: str, offset: int) -> None:
        self._step("offsets", group=group, topic=topic, partition=0, offset=offset)

    def commit(self) -> None:
        self._step("commit")

    def abort(self) -> None:
        self._step("abort")

    def close(self) -> None:
        self._step("close")


# -- readers --------------------------------------------------------------------------------------------------------

Reader = Callable[[str, str, str], list[bytes]]


def read_with_confluent(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    values: list[bytes] = []
    try:
        while True:
            message = consumer.poll(SECONDS)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return values
            values.append(message.value())
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level=isolation, fetch_max_wait_ms=10
    )
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        end = consumer.end_offsets([place])[place]
        values: list[bytes] = []
        while consumer.position(place) < end:
            values += [record.value for records in consumer.poll(timeout_ms=100).values() for record in records]
        return values
    finally:
        consumer.close()


def read_with_aiokafka(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level=isolation, fetch_max_wait_ms=10
        )
        async with consumer:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            end = (await consumer.end_offsets([place]))[place]
            values: list[bytes] = []
            while await consumer.position(place) < end:
                polled = await consumer.getmany(timeout_ms=100)
                values += [record.value for records in polled.values() for record in records]
            return values

    return asyncio.run(asyncio.wait_for(read(), SECONDS))


def read_with_kcat(bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    options = ["-C", "-b", bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q"]
    command = [kcat(), *options, "-X", f"isolation.level={isolation}", "-X", "fetch.wait.max.ms=10"]
    done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=True)
    return done.stdout.splitlines()


def read_with_java(jvm: Jvm, bootstrap: str, topic: str, isolation: str) -> list[bytes]:
    config = {"isolation.level": isolation, "fetch.max.wait.ms": 10}
    answer = jvm.call("consume", bootstrap=bootstrap, topic=topic, config=config)
    return [from_base64(record["value"]) or b"" for record in answer["records"]]
