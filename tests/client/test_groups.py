"""Consumer groups against a real broker: rebalances, commits, static members, and other libraries in one group."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, Consumer, OffsetAndMetadata, Producer, TopicPartition
from penstock.client.errors import ClientError, CommitFailed, GroupError
from tests.waiting import eventually_async

FAST: dict[str, Any] = {"heartbeat_interval_ms": 50, "session_timeout_ms": 6_000, "auto_offset_reset": "earliest"}


async def make_topic(bootstrap: str, name: str, partitions: int) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(name, partitions)


class Member:
    """A consumer in a task of its own, which remembers what it read and what it was told."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        self.consumer = Consumer(bootstrap, group_id=group, **{**FAST, **options})
        self.records: list[tuple[int, int]] = []
        self.events: list[tuple[str, list[int]]] = []
        self._topic = topic
        self._stopping = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.consumer:
            self.consumer.subscribe(
                self._topic,
                on_assigned=self._note("assigned"),
                on_revoked=self._note("revoked"),
                on_lost=self._note("lost"),
            )
            while not self._stopping.is_set():
                for record in await self.consumer.poll(50):
                    self.records.append((record.partition, record.offset))

    def _note(self, what: str) -> Callable[[list[TopicPartition]], None]:
        return lambda partitions: self.events.append((what, [tp.partition for tp in partitions]))

    @property
    def partitions(self) -> set[int]:
        """What it holds, as far as its listeners were told."""
        held: set[int] = set()
        for what, partitions in self.events:
            held = held | set(partitions) if what == "assigned" else held - set(partitions)
        return held

    async def stop(self) -> None:
        self._stopping.set()
        await self._task


async def hold(members: list[Member], *loads: int) -> None:
    """Until the members hold this many partitions each, none twice."""

    def settled() -> bool:
        held = [member.partitions for member in members]
        distinct = len(set().union(*held)) == sum(map(len, held))
        return distinct and sorted(map(len, held)) == sorted(loads)

    await eventually_async(settled, 20, message=f"loads: {[m.partitions for m in members]}")


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_members_come_and_go_and_nothing_is_lost_or_doubled(bootstrap: str, name: str, assignor: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 6)
        options = {"assignors": [assignor]}
        async with Producer(bootstrap, linger_ms=0) as producer:

            async def produce(count: int) -> None:
                for number in range(count):
                    await producer.send(name, b"x", partition=number % 6)
                await producer.flush()

            members = [Member(bootstrap, name, name, **options)]
            await hold(members, 6)
            await produce(60)
            members.append(Member(bootstrap, name, name, **options))
            await produce(60)
            await hold(members, 3, 3)
            members.append(Member(bootstrap, name, name, **options))
            await produce(60)
            await hold(members, 2, 2, 2)
            gone = members.pop(0)
            await gone.stop()
            await hold(members, 3, 3)
            await produce(60)
            everyone = [gone, *members]
            await eventually_async(lambda: sum(len(m.records) for m in everyone) >= 240, 20)
        await asyncio.gather(*(member.stop() for member in members))
        counted = Counter(record for member in everyone for record in member.records)
        assert set(counted) == {(p, o) for p in range(6) for o in range(40)}
        assert set(counted.values()) == {1}

    asyncio.run(scenario())


def test_cooperative_members_keep_what_they_keep(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 4)
        first = Member(bootstrap, name, name, assignors=["cooperative-sticky"])
        await hold([first], 4)
        second = Member(bootstrap, name, name, assignors=["cooperative-sticky"])
        await hold([first, second], 2, 2)
        revoked = [partitions for what, partitions in first.events if what == "revoked"]
        assert [len(partitions) for partitions in revoked] == [2]
        await asyncio.gather(first.stop(), second.stop())

    asyncio.run(scenario())


def test_commits_are_where_the_next_member_begins(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        tp = TopicPartition(name, 0)
        async with Producer(bootstrap) as producer:
            for _ in range(10):
                await producer.send(name, b"x")
        async with Consumer(bootstrap, group_id=name, auto_commit=False, **FAST) as consumer:
            consumer.subscribe(name)
            assert [r.offset for r in await consumer.poll(5_000, max_records=4)] == [0, 1, 2, 3]
            assert await consumer.committed() == {}
            await consumer.commit()
            assert (await consumer.committed(tp))[tp].offset == 4
            await consumer.commit({tp: OffsetAndMetadata(7, "by hand")})
            assert await consumer.committed(tp) == {tp: OffsetAndMetadata(7, "by hand", -1)}
        async with Consumer(bootstrap, group_id=name, **FAST) as consumer:
            consumer.subscribe(name)
            assert (await consumer.poll(5_000))[0].offset == 7
        async with Admin(bootstrap) as admin:  # auto commit did it when the consumer left
            assert (await admin.group_offsets(name))[tp].offset == 10

    asyncio.run(scenario())


def test_auto_commit_by_the_clock(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        tp = TopicPartition(name, 0)
        async with Producer(bootstrap) as producer:
            await producer.send(name, b"x")
        async with (
            Consumer(bootstrap, group_id=name, auto_commit_interval_ms=10, **FAST) as consumer,
            Admin(bootstrap) as admin,
        ):
            consumer.subscribe(name)

            async def committed() -> bool:
                await consumer.poll(20)
                offsets = await admin.group_offsets(name)
                return tp in offsets and offsets[tp].offset == 1

            await eventually_async(committed)

    asyncio.run(scenario())


def test_a_listener_can_commit_before_partitions_go(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        async with Producer(bootstrap) as producer:
            await producer.send(name, b"x")
        async with Consumer(bootstrap, group_id=name, auto_commit=False, **FAST) as consumer:

            async def on_revoked(partitions: list[TopicPartition]) -> None:
                await consumer.commit()

            consumer.subscribe(name, on_revoked=on_revoked)
            assert await consumer.poll(5_000)
        async with Admin(bootstrap) as admin:
            assert (await admin.group_offsets(name))[TopicPartition(name, 0)].offset == 1

    asyncio.run(scenario())


def test_a_static_member_comes_back_to_its_partitions(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 2)
        stays = Member(bootstrap, name, name, group_instance_id="stays")
        leaves = Member(bootstrap, name, name, group_instance_id="leaves")
        await hold([stays, leaves], 1, 1)
        before = leaves.partitions
        events = len(stays.events)
        await leaves.stop()
        returned = Member(bootstrap, name, name, group_instance_id="leaves")
        await hold([stays, returned], 1, 1)
        assert returned.partitions == before
        assert len(stays.events) == events
        await asyncio.gather(stays.stop(), returned.stop())

    asyncio.run(scenario())


def test_two_of_the_same_instance_fence_each_other(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        first = Member(bootstrap, name, name, group_instance_id="one")
        await hold([first], 1)
        second = Member(bootstrap, name, name, group_instance_id="one")
        with pytest.raises(ClientError, match="instance"):
            await asyncio.wait_for(first._task, 10)
        await second.stop()

    asyncio.run(scenario())


def test_who_does_not_poll_loses_its_partitions(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        async with Consumer(bootstrap, group_id=name, auto_commit=False, max_poll_interval_ms=300, **FAST) as sleepy:
            lost: list[TopicPartition] = []
            sleepy.subscribe(name, on_lost=lost.extend)
            await eventually_async(lambda: _polled(sleepy))
            other = Member(bootstrap, name, name)
            await hold([other], 1)
            with pytest.raises(CommitFailed):
                await sleepy.commit({TopicPartition(name, 0): 1})
            await sleepy.poll(10)
            assert lost == [(name, 0)]
            await other.stop()

    async def _polled(consumer: Consumer) -> bool:
        await consumer.poll(50)
        return bool(consumer.assignment())

    asyncio.run(scenario())


def test_a_pattern_finds_topics_made_later(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, f"{name}-a", 1)
        async with Consumer(bootstrap, group_id=name, metadata_max_age_ms=50, **FAST) as consumer:
            consumer.subscribe(pattern=f"^{name}-")

            async def reads(*topics: str) -> bool:
                await consumer.poll(30)
                return {tp.topic for tp in consumer.assignment()} == set(topics)

            await eventually_async(lambda: reads(f"{name}-a"))
            await make_topic(bootstrap, f"{name}-b", 1)
            await eventually_async(lambda: reads(f"{name}-a", f"{name}-b"))
            async with Admin(bootstrap) as admin:
                await admin.create_partitions(f"{name}-b", 2)
            await eventually_async(lambda: _held(consumer, 3))

    async def _held(consumer: Consumer, count: int) -> bool:
        await consumer.poll(30)
        return len(consumer.assignment()) == count

    asyncio.run(scenario())


def test_offsets_of_a_group_with_members_cannot_be_set(bootstrap: str, name: str) -> None:
    async def scenario() -> None:
        await make_topic(bootstrap, name, 1)
        member = Member(bootstrap, name, name)
        await hold([member], 1)
        async with Admin(bootstrap) as admin:
            with pytest.raises(GroupError, match="has members"):
                await admin.alter_group_offsets(name, {TopicPartition(name, 0): 0})
            with pytest.raises(GroupError):
                await admin.delete_group(name)
            described = await admin.describe_group(name)
            assert described.state == "Stable"
            assert described.members[0].assignment == [(name, 0)]
        await member.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_one_group_with_librdkafka(bootstrap: str, name: str, assignor: str) -> None:
    """Either may lead: the first to join does."""
    import confluent_kafka

    async def scenario(ours_first: bool) -> None:
        group = f"{name}-{ours_first}"
        other = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "partition.assignment.strategy": assignor,
                "heartbeat.interval.ms": 100,
                "session.timeout.ms": 6000,
                "auto.offset.reset": "earliest",
            }
        )

        async def others_partitions() -> set[int]:
            await asyncio.get_running_loop().run_in_executor(None, other.poll, 0.05)
            return {tp.partition for tp in other.assignment()}

        async def other_holds(count: int) -> bool:
            return len(await others_partitions()) == count

        if ours_first:
            ours = Member(bootstrap, group, name, assignors=[assignor])
            await hold([ours], 4)
            other.subscribe([name])
        else:
            other.subscribe([name])
            await eventually_async(lambda: other_holds(4), 20)
            ours = Member(bootstrap, group, name, assignors=[assignor])

        async def shared() -> bool:
            theirs = await others_partitions()
            return len(theirs) == 2 and ours.partitions == {0, 1, 2, 3} - theirs

        await eventually_async(shared, 20)
        await ours.stop()
        await eventually_async(lambda: other_holds(4), 20)
        other.close()

    async def both() -> None:
        await make_topic(bootstrap, name, 4)
        await scenario(True)
        await scenario(False)

    asyncio.run(both())
