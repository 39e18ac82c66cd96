"""Producer, consumer and raw client against a real broker."""

import asyncio
import socket
from collections.abc import Awaitable
from pathlib import Path

import pytest

from penstock.client import Admin, Consumer, ConsumerRecord, Producer, RawClient, TopicPartition
from penstock.client.errors import (
    ClientError,
    ConnectionFailed,
    NoOffset,
    OffsetError,
    TopicError,
    UsageError,
)
from penstock.records.builder import build_batch
from penstock.records.reader import read_all_records
from penstock.testing import Broker
from tests.waiting import eventually_async


async def make_topic(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    async with Admin(bootstrap) as admin:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.create_topic(name, partitions, configs=named)


async def read(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records, or the test's time is over."""
    records: list[ConsumerRecord] = []
    async with asyncio.timeout(20):
        while len(records) < count:
            records += await consumer.poll(500, max_records=count - len(records))
    return records


def test_all_that_was_sent_with_acks_0_leaves_before_the_producer_stops(bootstrap: str, name: str) -> None:
    """More than the socket takes at once."""

    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Producer(bootstrap, acks=0) as producer:
            await producer.send_and_wait(name, b"first")
            for _ in range(1_499):  # at once: nothing leaves in between
                assert producer.try_send(name, bytes(10_000), None, None, None, None, asyncio.Future()) is not None

    async def written() -> int:
        async with Admin(bootstrap) as admin:
            [found] = (await admin.list_offsets({TopicPartition(name, 0): -1})).values()
            return found.offset

    asyncio.run(scenario())  # with its loop goes what it still had to write
    asyncio.run(eventually_async(lambda: _is(written(), 1_500), timeout=20))


async def _is(found: Awaitable[int], wanted: int) -> bool:
    return await found == wanted


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(bootstrap: str, name: str, codec: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 2)
        headers = [("source", b"test"), ("empty", None)]
        async with Producer(bootstrap, compression=codec) as producer:
            sent = [
                await producer.send(name, b"v%d" % n, b"k%d" % n, headers=headers, timestamp_ms=1000 + n)
                for n in range(200)
            ]
            tombstone = await producer.send_and_wait(name, None, "gone")
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, 0), (name, 1)])
            records = {(r.partition, r.offset): r for r in await read(consumer, 201)}
        for number, future in enumerate(sent):
            where = future.result()
            record = records[where.partition, where.offset]
            assert (record.key, record.value, record.timestamp_ms) == (
                b"k%d" % number,
                b"v%d" % number,
                1000 + number,
            )
            assert list(record.headers) == headers
        gone = records[tombstone.partition, tombstone.offset]
        assert (gone.key, gone.value) == (b"gone", None)

    asyncio.run(scenario())


def test_positions(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Producer(bootstrap) as producer:
            for number in range(50):
                await producer.send(name, b"%d" % number, timestamp_ms=10_000 + number * 10)
        tp = TopicPartition(name, 0)
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            assert [r.offset for r in await read(consumer, 5)] == [0, 1, 2, 3, 4]
            assert await consumer.position(tp) == 5
            consumer.seek(tp, 40)
            assert (await read(consumer, 1))[0].offset == 40
            await consumer.seek_to_time(10_205)
            assert (await read(consumer, 1))[0].offset == 21
            await consumer.seek_to_time(99_999)
            assert await consumer.position(tp) == 50
            await consumer.seek_to_beginning(tp)
            assert (await read(consumer, 1))[0].offset == 0
            await consumer.seek_to_end()
            assert await consumer.poll(20) == []
            assert await consumer.position(tp) == 50
            assert await consumer.beginning_offsets(tp) == {tp: 0}
            assert await consumer.end_offsets(tp) == {tp: 50}
            assert (await consumer.offsets_for_times({tp: 10_015}))[tp].offset == 2

    asyncio.run(scenario())


def test_a_seek_before_anything_is_known_does_not_wait_for_the_timeout(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Producer(bootstrap) as producer:
            await producer.send(name, b"x")
        async with Consumer(bootstrap) as consumer:
            consumer.assign([(name, 0)])
            consumer.seek((name, 0), 0)
            async with asyncio.timeout(10):
                assert await consumer.poll(60_000)

    asyncio.run(scenario())


def test_iteration_moves_the_position_with_each_record(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Producer(bootstrap) as producer:
            for number in range(30):
                await producer.send(name, b"%d" % number)
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, 0)])
            seen = 0
            async for record in consumer:
                assert record.offset == seen
                seen += 1
                assert await consumer.position((name, 0)) == seen
                if seen == 30:
                    break

    asyncio.run(scenario())


def test_pausing_holds_records_back(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 2)
        async with Producer(bootstrap) as producer:
            for number in range(20):
                await producer.send(name, b"x", partition=number % 2)
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([(name, 0), (name, 1)])
            consumer.pause((name, 1))
            assert {r.partition for r in await read(consumer, 10)} == {0}
            assert await consumer.poll(20) == []
            assert consumer.paused() == {(name, 1)}
            consumer.resume()
            assert {r.partition for r in await read(consumer, 10)} == {1}

    asyncio.run(scenario())


def test_a_position_out_of_range_follows_the_policy(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        tp = TopicPartition(name, 0)
        async with Producer(bootstrap) as producer, Admin(bootstrap) as admin:
            for number in range(10):
                await producer.send_and_wait(name, b"%d" % number)
            await admin.delete_records({tp: 6})
        async with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 2)
            assert (await read(consumer, 1))[0].offset == 6
        async with Consumer(bootstrap, auto_offset_reset="none") as consumer:
            consumer.assign([tp])
            with pytest.raises(NoOffset):
                await read(consumer, 1)
            consumer.seek(tp, 2)
            with pytest.raises(NoOffset, match="offset 2 is out of range"):
                await read(consumer, 1)

    asyncio.run(scenario())


def test_a_batch_larger_than_asked_for_still_comes(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Producer(bootstrap) as producer:
            for _ in range(3):
                await producer.send_and_wait(name, bytes(200_000))
        async with Consumer(
            bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=1000, fetch_max_bytes=1000
        ) as consumer:
            consumer.assign([(name, 0)])
            assert [len(r.value or b"") for r in await read(consumer, 3)] == [200_000] * 3

    asyncio.run(scenario())


def test_a_bootstrap_address_that_accepts_and_never_answers_is_passed_over(broker: Broker) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:  # as a stopped process: the kernel accepts for it
            silent_first = f"127.0.0.1:{silent.getsockname()[1]},{broker.bootstrap}"
            async with Admin(silent_first, connect_timeout_ms=300, start_timeout_ms=0) as admin:
                assert len((await admin.describe_cluster()).brokers) == 1

    asyncio.run(scenario())


def test_a_restart_of_the_broker_is_waited_out(name: str, tmp_path: Path) -> None:
    """Without a record lost or doubled, and the consumer goes on where it was."""

    async def scenario(broker: Broker) -> None:
        await make_topic(broker.bootstrap, name)
        loop = asyncio.get_running_loop()
        async with (
            Producer(broker.bootstrap, linger_ms=1) as producer,
            Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([(name, 0)])
            futures = [await producer.send(name, b"%d" % n) for n in range(100)]
            first = await read(consumer, 50)
            restart = loop.run_in_executor(None, broker.restart)
            for number in range(100, 300):
                futures.append(await producer.send(name, b"%d" % number))
                await asyncio.sleep(0)
            await restart
            records = first + await read(consumer, 250)
            offsets = [(await future).offset for future in futures]
        assert [r.value for r in records] == [b"%d" % n for n in range(300)]
        assert offsets == list(range(300))

    with Broker(data_dir=tmp_path / "data") as broker:
        asyncio.run(scenario(broker))


def test_partitions_added_later_get_records(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with Admin(bootstrap) as admin, Producer(bootstrap, metadata_max_age_ms=20) as producer:
            await producer.send_and_wait(name, b"x")
            await admin.create_partitions(name, 3)

            async def reaches_partition_2() -> bool:
                try:
                    await producer.send_and_wait(name, b"x", partition=2)
                except TopicError:
                    return False
                return True

            await eventually_async(reaches_partition_2)

    asyncio.run(scenario())


def test_raw_batches(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name)
        async with RawClient(bootstrap) as client:
            batch = build_batch([(b"k", b"1"), (b"k", b"2")], timestamp_ms=1)
            assert (await client.produce_batch(name, 0, batch)).base_offset == 0
            assert (await client.produce_batch(name, 0, batch, acks=1)).base_offset == 2
            fetched = await client.fetch_batches(name, 0, 0)
            assert fetched.high_watermark == 4
            assert [r.value for r in read_all_records(fetched.data)] == [b"1", b"2", b"1", b"2"]
            assert (await client.fetch_batches(name, 0, 4, max_wait_ms=0)).data == b""
            with pytest.raises(OffsetError):
                await client.fetch_batches(name, 0, 99)
            assert await client.partitions(name) == [0]

    asyncio.run(scenario())


def test_mistakes_are_told(broker: Broker, name: str) -> None:
    bootstrap = broker.bootstrap  # which does not create topics by itself

    async def scenario() -> None:
        async with Producer(bootstrap, max_block_ms=100) as producer:
            with pytest.raises(TopicError, match="does not exist") as caught:
                await producer.send(name, b"x")
            assert "topic create" in caught.value.hint
        async with Consumer(bootstrap) as consumer:
            for call in (lambda: consumer.subscribe(name), lambda: consumer.seek((name, 0), 1)):
                with pytest.raises(UsageError):
                    call()
            with pytest.raises(UsageError):
                await consumer.commit()
        with pytest.raises(ConnectionFailed):
            await Consumer("127.0.0.1:1", start_timeout_ms=0).start()
        with pytest.raises(ClientError, match="not started"):
            await Producer(bootstrap).send(name, b"x")

    asyncio.run(scenario())


def test_a_deleted_topic_is_not_brought_back_by_those_who_used_it(name: str) -> None:
    async def scenario(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin, Producer(bootstrap, metadata_max_age_ms=20) as producer:
            await producer.send_and_wait(name, b"made by asking for it")
            assert name in [t.name for t in await admin.list_topics()]
            await admin.delete_topic(name)
            cluster = producer._cluster
            assert cluster is not None
            await eventually_async(lambda: not cluster.metadata.topics[name].partitions)
            assert name not in [t.name for t in await admin.list_topics()]
            await producer.send_and_wait(name, b"made again")

    with Broker() as broker:
        asyncio.run(scenario(broker.bootstrap))
