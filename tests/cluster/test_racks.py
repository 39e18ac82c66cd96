"""Replicas are spread over racks. KIP-392: a consumer that names its rack reads from the follower there, and from the
leader when that is gone.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import penstock.client
from penstock.broker.fetch_readers import ConsumerReader
from penstock.testing import Broker, Cluster
from tests.cluster.traffic import Writer
from tests.waiting import eventually

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class RackedCluster(Cluster):
    """Broker n is in rack n."""

    def rack_of(self, node_id: int) -> str:
        return f"rack-{node_id}"

    def _member(self, node_id: int, listeners: str, **settings: str) -> Broker:
        return super()._member(node_id, listeners, **{**settings, "broker.rack": self.rack_of(node_id)})


class TwoRacks(RackedCluster):
    """Brokers 1 and 2 are in one, 3 is in the other."""

    def rack_of(self, node_id: int) -> str:
        return "right" if node_id == 3 else "left"


def test_replicas_are_in_different_racks() -> None:
    with TwoRacks(brokers=3) as cluster:
        cluster.create_topic("t", partitions=6, replication_factor=2)
        found = cluster.image().topic("t")
        assert found is not None
        replicas = [set(state.replicas) for state in found.partitions]
        assert Counter(map(frozenset, replicas)) == {frozenset({1, 3}): 3, frozenset({2, 3}): 3}


class Served:
    """Bytes of a topic that consumers were given, by broker."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[int] = Counter()
        self.sent_on: Counter[int] = Counter()
        self.lock = threading.Lock()
        plan_fetch = ConsumerReader.plan

        def plan(reader: ConsumerReader, *rest: Any) -> Any:
            plan = plan_fetch(reader, *rest)
            with self.lock:  # every broker has a thread of its own
                node_id = reader._broker.node_id
                self.bytes[node_id] += plan.data.length if plan.data is not None else 0
                self.sent_on[node_id] += plan.preferred_read_replica >= 0
            return plan

        patch.setattr(ConsumerReader, "plan", plan)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    settings = {"min.insync.replicas": "2", "replica.selector.class": SELECTOR}
    with RackedCluster(brokers=3, settings=settings) as running:
        yield running


def test_a_consumer_reads_in_its_rack(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.create_topic("t", replication_factor=3)
    writer = Writer(cluster.bootstrap, topic, partitions=1)
    writer.write(100)
    leader = cluster.leader_of(topic)
    near = next(node_id for node_id in cluster.brokers if node_id not in (leader, cluster.controller_id))
    served = Served(monkeypatch)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "g",
            "client.rack": f"rack-{near}",
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []

    def has_read(count: int) -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) >= count

    try:
        eventually(lambda: has_read(100), 30, interval=0)
        assert served.sent_on[leader] >= 1
        assert set(+served.bytes) == {near}
        writer.write(20)  # what is new comes from there as well
        eventually(lambda: has_read(120), 30, interval=0)
        assert set(+served.bytes) == {near}
        cluster.kill(near)
        writer.write(20)
        eventually(lambda: has_read(140), 60, interval=0)
        assert set(+served.bytes) == {near, cluster.leader_of(topic)}
    finally:
        consumer.close()
    assert found == [value for _, _, value in writer.acknowledged]


def test_penstocks_own_consumer_reads_in_its_rack(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.create_topic("t", replication_factor=3)
    writer = Writer(cluster.bootstrap, topic, partitions=1)
    writer.write(100)
    leader = cluster.leader_of(topic)
    near = next(node_id for node_id in cluster.brokers if node_id not in (leader, cluster.controller_id))
    served = Served(monkeypatch)
    found: list[bytes | None] = []

    async def read() -> None:
        async with penstock.client.Consumer(
            cluster.bootstrap, rack=f"rack-{near}", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(topic, 0)])
            for killed in (False, True):
                if killed:
                    cluster.kill(near)
                    await asyncio.to_thread(writer.write, 20)
                while len(found) < len(writer.acknowledged):
                    found.extend(record.value for record in await consumer.poll(500))
                assert set(+served.bytes) == ({near, cluster.leader_of(topic)} if killed else {near})

    asyncio.run(asyncio.wait_for(read(), 60))
    assert found == [value for _, _, value in writer.acknowledged]


def test_a_consumer_in_the_rack_of_the_leader_stays(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = cluster.create_topic("t", replication_factor=3)
    Writer(cluster.bootstrap, topic, partitions=1).write(10)
    leader = cluster.leader_of(topic)
    served = Served(monkeypatch)
    for rack in (f"rack-{leader}", "rack-of-nobody"):
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "client.rack": rack})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        try:
            eventually(lambda consumer=consumer: consumer.poll(0.2) is not None, 30, interval=0)  # type: ignore[misc]
        finally:
            consumer.close()
    assert set(+served.bytes) == {leader}
    assert not +served.sent_on
