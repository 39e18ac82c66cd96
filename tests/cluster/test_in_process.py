"""Three brokers in the test process: clients of both kinds go on while brokers die, stop, sleep and are cut off."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.model.errors import ErrorCode
from penstock.testing import Cluster
from penstock.wire.generated.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.cluster.traffic import Writer, read_all

SETTINGS = {"min.insync.replicas": "2"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings=SETTINGS) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> Iterator[str]:
    """A topic with three replicas, on a cluster that is whole before and after the test."""
    cluster.start()
    name = cluster.create_topic(cluster.unused_topic_name(), partitions=3, replication_factor=3)
    yield name
    cluster.heal()
    for node_id in cluster.brokers:
        cluster.resume(node_id)
    cluster.start()


def check(cluster: Cluster, topic: str, writer: Writer) -> None:
    """Every acknowledged record is there, once, where the broker said."""
    assert not writer.failures
    found = read_all(cluster.bootstrap, topic, len(writer.acknowledged))
    assert sorted(found) == sorted(writer.acknowledged)
    assert len({value for _, _, value in found}) == len(found)


def test_records_are_replicated(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(300)
    check(cluster, topic, writer)
    for partition in range(3):
        assert cluster.in_sync(topic, partition) == {1, 2, 3}


def test_aiokafka_writes_and_reads(cluster: Cluster, topic: str) -> None:
    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all") as producer:
            sent = [await producer.send_and_wait(topic, f"{n}".encode(), partition=0) for n in range(50)]
        assert [each.offset for each in sent] == list(range(50))
        consumer = AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
        async with consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found = [(await consumer.getone()).value for _ in range(50)]
        assert found == [f"{n}".encode() for n in range(50)]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_any_broker_takes_any_request(cluster: Cluster) -> None:
    for node_id, broker in cluster.brokers.items():
        name = f"made-by-{node_id}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(name, 1, 3)])[name].result(30)
        cluster.wait_until_in_sync(name)


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_the_leader_goes_and_comes_back(cluster: Cluster, topic: str, fault: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(100)
    leader = cluster.leader_of(topic)
    if fault == "kill":
        cluster.kill(leader)
    else:
        cluster.brokers[leader].stop()
    writer.write(100)
    assert cluster.leader_of(topic) != leader
    cluster.start()
    cluster.wait_until_in_sync(topic)
    writer.write(100)
    check(cluster, topic, writer)


def test_the_controller_is_killed(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(50)
    controller = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    cluster.kill(controller)
    writer.write(100)
    cluster.wait_for(lambda: cluster.controller_id not in (None, controller), "no other controller")
    cluster.start()
    cluster.wait_until_in_sync(topic)
    check(cluster, topic, writer)


def test_a_leader_that_sleeps_is_replaced(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(50)
    leader = cluster.leader_of(topic)
    cluster.pause(leader)
    others = [broker.bootstrap for node_id, broker in cluster.brokers.items() if node_id != leader]
    second = Writer(",".join(others), topic, prefix="second")
    second.write(100)
    cluster.resume(leader)
    cluster.wait_until_in_sync(topic)
    writer.acknowledged += second.acknowledged
    assert not second.failures
    check(cluster, topic, writer)


def test_a_leader_that_is_cut_off_is_replaced(cluster: Cluster, topic: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(50)
    leader = cluster.leader_of(topic)
    cluster.isolate(leader)
    writer.write(100)
    cluster.heal()
    cluster.wait_until_in_sync(topic)
    check(cluster, topic, writer)


def test_levels_of_loggers_stay_and_settings_travel(cluster: Cluster, topic: str) -> None:
    """One request for both, to a broker that is not the controller."""
    active = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    asked = next(node_id for node_id in cluster.running if node_id != active)
    request = IncrementalAlterConfigsRequest
    wanted = [
        request.AlterConfigsResource(8, str(asked), [request.AlterableConfig("penstock.log", 0, "DEBUG")]),
        request.AlterConfigsResource(2, topic, [request.AlterableConfig("retention.ms", 0, "1234567")]),
        request.AlterConfigsResource(8, str(active), [request.AlterableConfig("penstock.log", 0, "DEBUG")]),
    ]
    broker = cluster.brokers[asked]
    address = ("127.0.0.1", broker.port)
    response = broker.run(
        broker.node.peers.request(address, request(resources=wanted), IncrementalAlterConfigsResponse, 10_000)
    )
    codes = {(row.resource_type, row.resource_name): row.error_code for row in response.responses}
    assert codes == {(8, str(asked)): 0, (2, topic): 0, (8, str(active)): ErrorCode.INVALID_REQUEST}
    assert cluster.image().topic_config(topic)["retention.ms"] == "1234567"


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_all_of_them_go_and_come_back(cluster: Cluster, topic: str, fault: str) -> None:
    writer = Writer(cluster.bootstrap, topic)
    writer.write(60)
    if fault == "kill":
        for node_id in cluster.running:
            cluster.kill(node_id)
    else:
        cluster.stop()
    cluster.start()
    cluster.wait_until_in_sync(topic)
    writer.write(60)
    check(cluster, topic, writer)
