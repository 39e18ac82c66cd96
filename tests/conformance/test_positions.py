"""Finding one's place: by offset, by time, from either end, and after records were deleted."""

import asyncio
from collections.abc import Callable

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.conformance.clients import Confluent, Kcat, ToWrite
from tests.conformance.conftest import NewTopicFunction

FIRST_MS = 1_700_000_000_000
SECONDS = 30.0
COUNT = 200


@pytest.fixture
def topic(bootstrap: str, new_topic: NewTopicFunction) -> str:
    """Records one second apart, over many small segments and batches."""
    name = new_topic(segment_bytes=str(1024 * 1024), index_interval_bytes="200")
    for start in range(0, COUNT, 10):
        written = [ToWrite(b"%d" % i, timestamp_ms=FIRST_MS + 1000 * i) for i in range(start, start + 10)]
        Confluent().produce(bootstrap, name, written)
    return name


def confluent_value(bootstrap: str, topic: str, offset: int) -> bytes:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        consumer.seek(confluent_kafka.TopicPartition(topic, 0, offset))
        message = consumer.poll(SECONDS)
        assert message is not None
        return message.value()
    finally:
        consumer.close()


def kafka_python_value(bootstrap: str, topic: str, offset: int) -> bytes:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        [records] = consumer.poll(timeout_ms=int(SECONDS * 1000), max_records=1).values()
        value: bytes = records[0].value
        return value
    finally:
        consumer.close()


def aiokafka_value(bootstrap: str, topic: str, offset: int) -> bytes:
    async def read() -> bytes:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        async with consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            value: bytes = (await asyncio.wait_for(consumer.getone(), SECONDS)).value
            return value

    return asyncio.run(read())


@pytest.mark.parametrize("value_at", [confluent_value, kafka_python_value, aiokafka_value])
def test_seek_to_an_offset(bootstrap: str, topic: str, value_at: Callable[[str, str, int], bytes]) -> None:
    for offset in (0, 7, 10, 123, COUNT - 1):
        assert value_at(bootstrap, topic, offset) == b"%d" % offset


def test_offsets_for_times(bootstrap: str, topic: str) -> None:
    wanted = {0: 0, FIRST_MS: 0, FIRST_MS + 1: 1, FIRST_MS + 57_000: 57, FIRST_MS + 1000 * COUNT: None}
    assert {ms: _confluent_offset(bootstrap, topic, ms) for ms in wanted} == wanted
    assert {ms: _kafka_python_offset(bootstrap, topic, ms) for ms in wanted} == wanted
    assert {ms: asyncio.run(_aiokafka_offset(bootstrap, topic, ms)) for ms in wanted} == wanted


def _confluent_offset(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        asked = [confluent_kafka.TopicPartition(topic, 0, timestamp_ms)]
        [found] = consumer.offsets_for_times(asked, timeout=SECONDS)
        return None if found.offset == confluent_kafka.OFFSET_END else int(found.offset)
    finally:
        consumer.close()


def _kafka_python_offset(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        [found] = consumer.offsets_for_times({kafka.TopicPartition(topic, 0): timestamp_ms}).values()
        return None if found is None else int(found.offset)
    finally:
        consumer.close()


async def _aiokafka_offset(bootstrap: str, topic: str, timestamp_ms: int) -> int | None:
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        [found] = (await consumer.offsets_for_times({aiokafka.TopicPartition(topic, 0): timestamp_ms})).values()
        return None if found is None else int(found.offset)


def test_kcat_from_the_end_and_by_time(bootstrap: str, topic: str) -> None:
    read = ("-C", "-b", bootstrap, "-t", topic, "-e", "-q")
    assert Kcat.run(*read, "-o", "-3").split() == [b"197", b"198", b"199"]
    first, last = FIRST_MS + 5_500, FIRST_MS + 8_500
    assert Kcat.run(*read, "-o", f"s@{first}", "-o", f"e@{last}").split() == [b"6", b"7", b"8"]
    assert Kcat.run("-Q", "-b", bootstrap, "-t", f"{topic}:0:{first}").strip() == f"{topic} [0] offset 6".encode()


def test_an_offset_that_is_gone_falls_back_to_the_reset_policy(bootstrap: str, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        admin.delete_records({kafka.TopicPartition(topic, 0): 50})
    finally:
        admin.close()
    for policy, expected in (("earliest", b"50"), ("latest", None)):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "auto.offset.reset": policy,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 10)])
        message = consumer.poll(SECONDS)
        assert message is not None
        assert (None if message.error() else message.value()) == expected
        consumer.close()
