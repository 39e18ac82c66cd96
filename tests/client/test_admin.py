"""The admin client against a real broker."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.client import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, Consumer, NewTopic, Producer, TopicPartition
from penstock.client.admin.descriptions import CreatedTopic, TopicDescription
from penstock.client.errors import ClientError, GroupError, InvalidSetting, TopicError, UsageError
from tests.waiting import eventually_async


def with_admin(bootstrap: str, body: Callable[[Admin], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with Admin(bootstrap, timeout_ms=10_000) as admin:
            await body(admin)

    asyncio.run(scenario())


async def fill(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    async with Producer(bootstrap) as producer:
        for number in range(count):
            await producer.send(topic, b"x", partition=number % partitions, timestamp_ms=1000 + number)


def test_topics_live_and_die(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        made = await admin.create_topic(name, 3, configs={"retention.ms": "60000"})
        assert (made.name, made.partitions, made.replication_factor) == (name, 3, 1)
        with pytest.raises(TopicError) as caught:
            await admin.create_topic(name)
        assert not caught.value.retriable
        described = await admin.describe_topic(name)
        assert [p.partition for p in described.partitions] == [0, 1, 2]
        assert described.topic_id == made.topic_id
        await admin.create_partitions(name, 5)
        assert len((await admin.describe_topic(name)).partitions) == 5
        with pytest.raises(InvalidSetting):
            await admin.create_partitions(name, 2)
        assert name in [t.name for t in await admin.list_topics()]
        await admin.delete_topic(name)
        with pytest.raises(TopicError):
            await admin.describe_topic(name)
        with pytest.raises(TopicError):
            await admin.delete_topic(name)

    with_admin(bootstrap, body)


def test_many_at_once_have_an_outcome_each(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        good, bad = f"{name}-good", f"{name} bad"
        outcomes = await admin.create_topics([NewTopic(good, 1), NewTopic(bad, 1)])
        assert isinstance(outcomes[good], CreatedTopic)
        assert isinstance(outcomes[bad], TopicError)
        described = await admin.describe_topics([good, f"{name}-none"])
        assert isinstance(described[good], TopicDescription)
        assert isinstance(described[f"{name}-none"], TopicError)
        deleted = await admin.delete_topics([good, f"{name}-none"])
        assert deleted[good] is None
        assert isinstance(deleted[f"{name}-none"], TopicError)
        await admin.create_topic(f"{name}-checked", 1, validate_only=True)
        assert f"{name}-checked" not in [t.name for t in await admin.list_topics()]

    with_admin(bootstrap, body)


def test_settings(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        await admin.create_topic(name, 1, configs={"retention.ms": "60000"})

        async def own() -> dict[str, str | None]:
            return {c.name: c.value for c in await admin.describe_configs("topic", name) if not c.is_default}

        async def own_are(expected: dict[str, str]) -> bool:
            return await own() == expected

        await eventually_async(lambda: own_are({"retention.ms": "60000"}))
        await admin.alter_configs("topic", name, {"max.message.bytes": "5000"}, unset=["retention.ms"])
        await eventually_async(lambda: own_are({"max.message.bytes": "5000"}))
        with pytest.raises(InvalidSetting):
            await admin.alter_configs("topic", name, {"no.such.setting": "1"})
        with pytest.raises(InvalidSetting):
            await admin.alter_configs("topic", name, {"retention.ms": "soon"})
        (entry,) = await admin.describe_configs("topic", name, names=["retention.ms"], documentation=True)
        assert entry.is_default
        assert entry.documentation
        node_id = (await admin.describe_cluster()).brokers[0].node_id
        settings = {c.name: c.value for c in await admin.describe_configs("broker", node_id)}
        assert settings["auto.create.topics.enable"] in ("true", "false")

    with_admin(bootstrap, body)


def test_offsets_and_records(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        await admin.create_topic(name, 2)
        await fill(bootstrap, name, 20, 2)
        first, second = TopicPartition(name, 0), TopicPartition(name, 1)
        found = await admin.list_offsets({first: LATEST, second: EARLIEST})
        assert (found[first].offset, found[second].offset) == (10, 0)
        assert (await admin.list_offsets({first: MAX_TIMESTAMP}))[first] == (9, 1018, 0)
        assert (await admin.list_offsets({first: 1010}))[first].offset == 5
        assert await admin.delete_records({first: 4, second: -1}) == {first: 4, second: 10}
        assert (await admin.list_offsets({first: EARLIEST}))[first].offset == 4
        with pytest.raises(TopicError, match="no partition 9"):
            await asyncio.wait_for(Admin.list_offsets(admin, {TopicPartition(name, 9): LATEST}), 15)

    async def impatient() -> None:
        async with Admin(bootstrap, timeout_ms=300) as admin:
            await body(admin)

    asyncio.run(impatient())


def test_group_offsets_move(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        await admin.create_topic(name, 2)
        await fill(bootstrap, name, 20, 2)
        first, second = TopicPartition(name, 0), TopicPartition(name, 1)
        with pytest.raises(UsageError, match="committed nothing"):
            await admin.reset_group_offsets(name, to_earliest=True)
        moves = await admin.reset_group_offsets(name, topics=[name], to_latest=True)
        assert [(m.partition, m.before, m.after) for m in moves] == [(first, None, 10), (second, None, 10)]
        await admin.reset_group_offsets(name, shift=-3)
        assert {tp: o.offset for tp, o in (await admin.group_offsets(name)).items()} == {first: 7, second: 7}
        planned = await admin.reset_group_offsets(name, to_time_ms=1011, dry_run=True)
        assert [m.after for m in planned] == [6, 5]
        assert (await admin.group_offsets(name, [first]))[first].offset == 7
        moves = await admin.reset_group_offsets(name, to_offset=999)
        assert [m.after for m in moves] == [10, 10]  # never beyond the end
        with pytest.raises(UsageError, match="exactly one"):
            await admin.reset_group_offsets(name, to_earliest=True, shift=1)
        assert await admin.delete_group_offsets(name, [first]) == {first: None}
        assert set(await admin.group_offsets(name)) == {second}
        listed = {g.group_id: g.state for g in await admin.list_groups()}
        assert listed[name] == "Empty"
        await admin.delete_group(name)
        with pytest.raises(GroupError):
            await admin.describe_group(name)
        outcomes = await admin.delete_groups([name])
        assert isinstance(outcomes[name], ClientError)

    with_admin(bootstrap, body)


def test_the_cluster(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        await admin.create_topic(name, 1)
        await fill(bootstrap, name, 5)
        cluster = await admin.describe_cluster()
        assert cluster.controller_id in [b.node_id for b in cluster.brokers]
        assert cluster.brokers[0].address == bootstrap
        (log_dir,) = await admin.describe_log_dirs()
        sizes = {p.partition: p.size_bytes for p in log_dir.partitions}
        assert sizes[TopicPartition(name, 0)] > 0
        assert log_dir.total_bytes >= log_dir.usable_bytes > 0

    with_admin(bootstrap, body)


def test_a_group_of_consumers_is_described(bootstrap: str, name: str) -> None:
    async def body(admin: Admin) -> None:
        await admin.create_topic(name, 2)
        async with Consumer(bootstrap, group_id=name, client_id="me", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(name)
            async with asyncio.timeout(10):
                while not consumer.assignment():
                    await consumer.poll(50)
            described = (await admin.describe_groups([name]))[name]
            assert not isinstance(described, ClientError)
            assert (described.state, described.assignor) == ("Stable", "range")
            (member,) = described.members
            assert member.client_id == "me"
            assert member.assignment == [(name, 0), (name, 1)]

    with_admin(bootstrap, body)
