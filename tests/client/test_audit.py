"""A producer's counters in the audit topic say what it sent; trouble with them is not the producer's trouble."""

import asyncio
import json

import pytest

from penstock.client import EARLIEST, Admin, Consumer, Producer, TopicPartition
from penstock.client.audit import AuditOptions
from penstock.client.errors import UsageError


async def told(bootstrap: str, topic: str) -> list[dict[str, object]]:
    """The last word of every cell, and of the producer, up to its end."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        said: dict[bytes | None, dict[str, object]] = {}
        while not any(value.get("closed") for value in said.values()):
            for record in await consumer.poll(timeout_ms=5_000):
                said[record.key] = json.loads(record.value or b"")
        return list(said.values())


def test_what_was_acknowledged_is_told(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        audit = f"{name}-audit"
        async with Admin(bootstrap) as admin:
            await admin.create_topic(name, 2)
        options = AuditOptions(audit, interval_ms=3_600_000, window_ms=1_000)
        async with Producer(bootstrap, client_id="shop", audit=options) as producer:
            for number in range(50):
                await producer.send(name, b"x", partition=number % 2, timestamp_ms=1_000 * (number // 25))
            await producer.flush()
        said = await told(bootstrap, audit)
        cells = [value for value in said if value["kind"] == "counters"]
        assert sum(int(str(cell["acknowledged"])) for cell in cells) == 50
        assert sum(int(str(cell["produced"])) for cell in cells) == 50
        assert {cell["partition"] for cell in cells} == {0, 1}
        assert {cell["client"] for cell in cells} == {"shop"}
        [life] = [value for value in said if value["kind"] == "producer"]
        assert life["cells"] == len(cells)

    asyncio.run(scenario())


def test_trouble_with_the_audit_topic_does_not_hold_up_the_producer(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic(name, 1)
            async with Producer(bootstrap, audit="not a topic's name") as producer:
                await producer.send_and_wait(name, b"x")
            positions = await admin.list_offsets({TopicPartition(name, 0): EARLIEST})
        assert positions[TopicPartition(name, 0)].offset == 0

    asyncio.run(scenario())


def test_an_audit_without_a_topic_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be"):
        Producer(audit=AuditOptions(""))
