"""Idempotent producers of every library: what was written once is there once."""

import asyncio
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.conformance.clients import Confluent, Java, ToWrite
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.java import Jvm

COUNT = 2_000
SECONDS = 30.0


def values() -> list[bytes]:
    return [b"%06d" % number for number in range(COUNT)]


def confluent_writes(bootstrap: str, topic: str) -> None:
    config = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "batch.num.messages": 37, "linger.ms": 0}
    producer = confluent_kafka.Producer(config)
    for value in values():
        producer.produce(topic, value, partition=0)
    assert producer.flush(SECONDS) == 0


def kafka_python_writes(bootstrap: str, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, batch_size=700, linger_ms=0)
    futures = [producer.send(topic, value, partition=0) for value in values()]
    producer.flush(SECONDS)
    assert all(future.succeeded() for future in futures)
    producer.close()


def aiokafka_writes(bootstrap: str, topic: str) -> None:
    async def write() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=700)
        async with producer:
            await asyncio.gather(*[await producer.send(topic, value, partition=0) for value in values()])

    asyncio.run(write())


@pytest.mark.parametrize("write", [confluent_writes, kafka_python_writes, aiokafka_writes])
def test_idempotent_producers(bootstrap: str, new_topic: NewTopicFunction, write: Callable[[str, str], None]) -> None:
    topic = new_topic()
    write(bootstrap, topic)
    assert [record.value for record in Confluent().consume(bootstrap, topic)] == values()


@pytest.mark.java
def test_java_is_idempotent_by_default(bootstrap: str, new_topic: NewTopicFunction, jvm: Jvm) -> None:
    topic = new_topic()
    written = [ToWrite(value) for value in values()]
    assert Java(jvm).produce(bootstrap, topic, written) == list(range(COUNT))
    assert [record.value for record in Confluent().consume(bootstrap, topic)] == values()
