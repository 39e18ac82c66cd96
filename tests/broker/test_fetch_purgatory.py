"""Fetches that wait for data are bounded: beyond the bound one is answered at once, with nothing."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, TopicPartition

from penstock.testing import Broker
from penstock.wire.generated.fetch import FetchRequest
from tests.conformance.raw import RawConnection, batch_of, produce_request
from tests.waiting import eventually

VERSION = 12
PATIENCE_MS = 600_000  # nobody waits that long: a fetch that was parked is answered by data, or never


@pytest.fixture
def open_connections() -> Iterator[ExitStack]:
    with ExitStack() as everything:
        yield everything


def fetch(topic: str, *partitions: int) -> FetchRequest:
    wanted = [FetchRequest.FetchPartition(index, partition_max_bytes=1 << 20) for index in partitions]
    topics = [FetchRequest.FetchTopic(topic, partitions=wanted)]
    return FetchRequest(max_wait_ms=PATIENCE_MS, min_bytes=1, max_bytes=1 << 20, topics=topics)


def waiting(broker: Broker) -> tuple[int, int]:
    handler = broker.node.broker.fetch
    return handler.parked_count, handler.parked_bytes


def ask(broker: Broker, connections: ExitStack, request: FetchRequest) -> tuple[RawConnection, int]:
    connection = connections.enter_context(RawConnection(broker.bootstrap))
    return connection, connection.send(request, VERSION)


def test_beyond_the_number_a_fetch_is_answered_with_nothing(open_connections: ExitStack) -> None:
    with Broker({"fetch.purgatory.max.requests": "3"}) as broker:
        topic = broker.create_topic("t")
        request = fetch(topic, 0)
        parked = [ask(broker, open_connections, request) for _ in range(3)]
        eventually(lambda: waiting(broker)[0] == 3)
        for _ in range(2):
            connection = open_connections.enter_context(RawConnection(broker.bootstrap))
            [answered] = connection.call(request, VERSION).responses[0].partitions
            assert (answered.error_code, answered.high_watermark, answered.records) == (0, 0, b"")
            assert waiting(broker)[0] == 3
        assert connection.call(produce_request(topic, batch_of(b"v")), 9)
        for each, number in parked:
            [answered] = each.receive(request, VERSION, number).responses[0].partitions
            assert len(answered.records) > 0
        assert waiting(broker) == (0, 0)


def test_beyond_the_memory_a_fetch_is_answered_with_nothing(open_connections: ExitStack) -> None:
    """One that looks at many partitions costs more: the small one still finds room."""
    with Broker({"fetch.purgatory.max.bytes": "5000"}) as broker:
        topic = broker.create_topic("t", partitions=20)
        connection = open_connections.enter_context(RawConnection(broker.bootstrap))
        large = connection.call(fetch(topic, *range(20)), VERSION)
        assert [len(row.records) for row in large.responses[0].partitions] == [0] * 20
        assert waiting(broker) == (0, 0)
        small = [ask(broker, open_connections, fetch(topic, 0)) for _ in range(3)]
        eventually(lambda: waiting(broker)[0] == 3)
        assert waiting(broker)[1] <= 5_000
        assert connection.call(fetch(topic, 1), VERSION).responses
        for each, _ in small:
            each.close()
        eventually(lambda: waiting(broker) == (0, 0), message="what hung up still counts")
        ask(broker, open_connections, fetch(topic, 1))
        eventually(lambda: waiting(broker)[0] == 1, message="the room is not given back")


def test_a_consumer_beyond_the_bound_is_served_all_the_same(open_connections: ExitStack) -> None:
    with Broker({"fetch.purgatory.max.requests": "1"}) as broker:
        topic = broker.create_topic("t", partitions=2)
        ask(broker, open_connections, fetch(topic, 1))
        eventually(lambda: waiting(broker)[0] == 1)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            assert consumer.poll(0.3) is None  # it asks, and asks again
            connection = open_connections.enter_context(RawConnection(broker.bootstrap))
            connection.call(produce_request(topic, batch_of(b"v")), 9)
            message = eventually(lambda: consumer.poll(0.2), 30, interval=0)
            assert message.value() == b"v"
            assert waiting(broker)[0] == 1
        finally:
            consumer.close()
