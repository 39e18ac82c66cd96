"""Admin calls of aiokafka, which speaks old versions."""

import asyncio
from collections.abc import Awaitable, Callable

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition

from tests.conformance.clients import Client, ToWrite
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.members import AiokafkaMember, Membership
from tests.waiting import eventually, eventually_async

SECONDS = 30


def with_admin(bootstrap: str, scenario: Callable[[AIOKafkaAdminClient], Awaitable[None]]) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await scenario(admin)
        finally:
            await admin.close()

    asyncio.run(run())


def test_create_describe_grow_delete_topic(bootstrap: str, new_group: str) -> None:
    name = f"topic-of-{new_group}"

    async def partitions(admin: AIOKafkaAdminClient) -> int:
        [described] = await admin.describe_topics([name])
        return len(described["partitions"])

    async def scenario(admin: AIOKafkaAdminClient) -> None:
        created = await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000000"})])
        assert [(topic, error) for topic, error, *_ in created.topic_errors] == [(name, 0)]
        again = await admin.create_topics([NewTopic(name, 2, 1)])
        assert again.topic_errors[0][1] == aiokafka.errors.TopicAlreadyExistsError.errno
        await eventually_async(lambda: partitions(admin), SECONDS)
        assert await partitions(admin) == 2
        assert name in await admin.list_topics()
        await admin.create_partitions({name: NewPartitions(3)})
        await eventually_async(lambda: _equals(partitions(admin), 3), SECONDS)
        await admin.delete_topics([name])
        await eventually_async(lambda: _lacks(admin.list_topics(), name), SECONDS)

    with_admin(bootstrap, scenario)


async def _equals(left: Awaitable[int], right: int) -> bool:
    return await left == right


async def _lacks(names: Awaitable[list[str]], name: str) -> bool:
    return name not in await names


def test_configs(bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic(retention_ms="")

    async def retention(admin: AIOKafkaAdminClient) -> str:
        [answer] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        [(error, _, _, _, entries)] = answer.resources
        assert error == 0
        return next(entry[1] for entry in entries if entry[0] == "retention.ms")

    async def scenario(admin: AIOKafkaAdminClient) -> None:
        assert await retention(admin) == "604800000"
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "9000000"})
        await admin.alter_configs([resource])

        async def is_altered() -> bool:
            return await retention(admin) == "9000000"

        await eventually_async(is_altered, SECONDS)

    with_admin(bootstrap, scenario)


def test_cluster_and_deleted_records(
    bootstrap: str, new_topic: NewTopicFunction, get_client: Callable[[str], Client]
) -> None:
    topic = new_topic()
    client = get_client("aiokafka")
    client.produce(bootstrap, topic, [ToWrite(b"%d" % i) for i in range(6)])

    async def scenario(admin: AIOKafkaAdminClient) -> None:
        cluster = await admin.describe_cluster()
        assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [bootstrap]
        partition = TopicPartition(topic, 0)
        assert await admin.delete_records({partition: RecordsToDelete(before_offset=4)}) == {partition: 4}

    with_admin(bootstrap, scenario)
    assert [record.offset for record in client.consume(bootstrap, topic)] == [4, 5]


def test_groups_and_their_offsets(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, get_client: Callable[[str], Client]
) -> None:
    topic = new_topic(1)
    get_client("aiokafka").produce(bootstrap, topic, [ToWrite(b"%d" % i) for i in range(3)])
    member = AiokafkaMember(Membership(bootstrap, new_group, topic))
    eventually(lambda: len(member.received()) == 3, SECONDS)

    async def scenario(admin: AIOKafkaAdminClient) -> None:
        assert (new_group, "consumer") in await admin.list_consumer_groups()
        [answer] = await admin.describe_consumer_groups([new_group])
        [(error, group, state, protocol_type, protocol, members, *_)] = answer.groups
        assert (error, group, state, protocol_type, protocol) == (0, new_group, "Stable", "consumer", "range")
        assert len(members) == 1

        async def is_committed() -> bool:
            offsets = await admin.list_consumer_group_offsets(new_group)
            return {p.partition: o.offset for p, o in offsets.items()} == {0: 3}

        await eventually_async(is_committed, SECONDS)
        assert await admin.list_consumer_group_offsets("no-such-group") == {}

    try:
        with_admin(bootstrap, scenario)
    finally:
        member.stop()
