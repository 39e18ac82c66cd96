"""A restart in every state of a transaction: open, decided with none or some of its markers, ended, kept prepared."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.metadata.image import OFFSETS_TOPIC
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.markers import EndMarker
from penstock.testing import Broker
from tests.transactions_broker.raw_producer import (
    RawProducer,
    all_values,
    committed_values,
    fetch,
    group_offset,
)
from tests.waiting import eventually

SETTINGS = {
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
    "transaction.two.phase.commit.enable": "true",
}
TOPIC, GROUP = "t", "g"


@pytest.fixture(params=["os", "ack"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker({**SETTINGS, "flush.mode": request.param}) as running:
        running.create_topic(TOPIC, 3)
        yield running


@pytest.fixture(params=[1, 2], ids=["version1", "version2"])
def producer(broker: Broker, request: pytest.FixtureRequest) -> RawProducer:
    made = RawProducer(broker.bootstrap, "id", request.param)
    assert made.init() is ErrorCode.NONE
    return made


def reconnected(producer: RawProducer, broker: Broker) -> RawProducer:
    """The same client after the broker came back."""
    again = RawProducer(broker.bootstrap, producer.transactional_id, producer.version)
    again.producer_id, again.epoch = producer.producer_id, producer.epoch
    again._sequences = producer._sequences
    producer.connection.close()
    return again


def hold_markers(broker: Broker, holds: Callable[[TopicPartition], bool]) -> list[TopicPartition]:
    """From now on these markers are not written; returns where they would have gone."""
    held: list[TopicPartition] = []
    markers: Any = broker.node.broker.markers
    write = markers.write

    def write_or_hold(marker: EndMarker, where: TopicPartition, done: Callable[[ErrorCode], None]) -> None:
        if holds(where):
            held.append(where)
        else:
            write(marker, where, done)

    markers.write = write_or_hold
    return held


def transact(producer: RawProducer) -> None:
    """One transaction over three partitions and a group, not ended yet."""
    for partition in range(3):
        assert producer.send(TOPIC, b"v%d" % partition, partition=partition) is ErrorCode.NONE
    assert producer.commit_offsets(GROUP, TOPIC, {0: 7}) == [0]


def sees_everything(broker: Broker) -> bool:
    return [committed_values(broker.bootstrap, TOPIC, p) for p in range(3)] == [[b"v0"], [b"v1"], [b"v2"]]


def sees_nothing(broker: Broker) -> bool:
    return all(
        fetch(broker.bootstrap, TOPIC, p).last_stable_offset >= 2 and not committed_values(broker.bootstrap, TOPIC, p)
        for p in range(3)
    )


def stable_offset(broker: Broker) -> int | ErrorCode:
    return group_offset(broker.bootstrap, GROUP, TOPIC, require_stable=True)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_open(broker: Broker, producer: RawProducer, commit: bool) -> None:
    transact(producer)
    broker.restart()
    assert [fetch(broker.bootstrap, TOPIC, p).last_stable_offset for p in range(3)] == [0, 0, 0]
    assert stable_offset(broker) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert group_offset(broker.bootstrap, GROUP, TOPIC) == -1
    with reconnected(producer, broker) as again:
        assert again.send(TOPIC, b"more", partition=1) is ErrorCode.NONE
        assert again.end(commit) is ErrorCode.NONE
    eventually(lambda: committed_values(broker.bootstrap, TOPIC, 1) == ([b"v1", b"more"] if commit else []))
    eventually(lambda: stable_offset(broker) == (7 if commit else -1))
    assert all_values(broker.bootstrap, TOPIC, 1) == [b"v1", b"more"]


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("written", ["none", "one", "offsets", "data"])
def test_decided(broker: Broker, producer: RawProducer, commit: bool, written: str) -> None:
    transact(producer)
    passes = {
        "none": lambda where: False,
        "one": lambda where: where == (TOPIC, 1),
        "offsets": lambda where: where.topic == OFFSETS_TOPIC,
        "data": lambda where: where.topic != OFFSETS_TOPIC,
    }[written]
    held = hold_markers(broker, lambda where: not passes(where))
    assert producer.end(commit) is ErrorCode.NONE
    assert len(held) == {"none": 4, "one": 3, "offsets": 3, "data": 1}[written]
    broker.restart()
    eventually(lambda: sees_everything(broker) if commit else sees_nothing(broker))
    eventually(lambda: stable_offset(broker) == (7 if commit else -1))
    with reconnected(producer, broker) as again:
        assert again.send(TOPIC, b"next") is ErrorCode.NONE
        again.commit()
    eventually(lambda: committed_values(broker.bootstrap, TOPIC)[-1:] == [b"next"])


def test_ended(broker: Broker, producer: RawProducer) -> None:
    transact(producer)
    before = producer.epoch
    producer.commit()
    eventually(lambda: sees_everything(broker) and stable_offset(broker) == 7)
    broker.restart()
    with reconnected(producer, broker) as again:
        after = again.epoch
        again.epoch = before
        assert again.end(True) is ErrorCode.NONE, "the answer got lost: the same again"
        assert again.epoch == after
        assert again.end(True) is (ErrorCode.NONE if producer.version == 1 else ErrorCode.INVALID_TXN_STATE)
        again.send(TOPIC, b"next")
        again.commit()
    eventually(lambda: committed_values(broker.bootstrap, TOPIC) == [b"v0", b"next"])
    assert stable_offset(broker) == 7


def test_open_and_out_of_time(broker: Broker) -> None:
    with RawProducer(broker.bootstrap, "slow", timeout_ms=700) as slow:
        slow.init()
        transact(slow)
    broker.restart()
    eventually(lambda: sees_nothing(broker))
    assert stable_offset(broker) == -1


def test_offsets_of_two_transactions_and_a_plain_commit(broker: Broker) -> None:
    """What was written last counts, whichever marker came first; also after a restart in between."""
    producers = [RawProducer(broker.bootstrap, f"id-{n}") for n in range(3)]
    for offset, each in enumerate(producers, 10):
        each.init()
        assert each.commit_offsets(GROUP, TOPIC, {0: offset, 1 + offset % 2: offset}) == [0, 0]
    producers[1].commit()
    eventually(lambda: group_offset(broker.bootstrap, GROUP, TOPIC) == 11)
    broker.restart()
    assert group_offset(broker.bootstrap, GROUP, TOPIC) == 11
    assert stable_offset(broker) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    first, last = reconnected(producers[0], broker), reconnected(producers[2], broker)
    first.commit()
    first.init()  # waits for the markers
    assert group_offset(broker.bootstrap, GROUP, TOPIC) == 11, "10 was written before 11"
    assert group_offset(broker.bootstrap, GROUP, TOPIC, 1) == 10
    last.abort()
    last.init()
    broker.restart()
    assert stable_offset(broker) == 11
    assert group_offset(broker.bootstrap, GROUP, TOPIC, 1) == 10
    for each in (first, producers[1], last):
        each.connection.close()


def test_prepared_for_a_coordinator_outside(broker: Broker) -> None:
    """KIP-939: no timeout, kept over restarts and takeovers, then decided by another instance."""
    with RawProducer(broker.bootstrap, "two-phase", timeout_ms=1) as first:
        assert first.init(two_phase=True) is ErrorCode.NONE
        transact(first)
        prepared = (first.producer_id, first.epoch)
    broker.restart()
    with RawProducer(broker.bootstrap, "two-phase", timeout_ms=1) as second:
        assert second.init(two_phase=True, keep=True) is ErrorCode.NONE
        assert second.ongoing == prepared
        assert second.send_unasked(TOPIC, b"not any more") is ErrorCode.TRANSACTION_ABORTABLE
    broker.restart()
    with RawProducer(broker.bootstrap, "two-phase", timeout_ms=1) as third:
        assert third.init(two_phase=True, keep=True) is ErrorCode.NONE
        assert third.ongoing == prepared
        assert [fetch(broker.bootstrap, TOPIC, p).last_stable_offset for p in range(3)] == [0, 0, 0]
        third.commit()
        eventually(lambda: sees_everything(broker))
        eventually(lambda: stable_offset(broker) == 7)
        assert third.send(TOPIC, b"next") is ErrorCode.NONE
        third.commit()
    eventually(lambda: committed_values(broker.bootstrap, TOPIC) == [b"v0", b"next"])


def test_two_phase_commit_is_off_until_asked_for() -> None:
    settings = {**SETTINGS, "transaction.two.phase.commit.enable": "false"}
    with Broker(settings) as broker, RawProducer(broker.bootstrap, "two-phase") as producer:
        assert producer.init(two_phase=True) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert producer.init(keep=True) is ErrorCode.NONE, "there is nothing to keep"
        assert producer.ongoing == (-1, -1)


def test_an_open_transaction_whose_topic_is_deleted(broker: Broker, producer: RawProducer) -> None:
    from penstock.wire.generated.delete_topics import DeleteTopicsRequest

    other = broker.create_topic("other")
    producer.send(other, b"gone")
    producer.send(TOPIC, b"stays")
    producer.connection.call(DeleteTopicsRequest(topic_names=[other], timeout_ms=10_000), 5)
    producer.commit()
    eventually(lambda: committed_values(broker.bootstrap, TOPIC) == [b"stays"])
    assert producer.send(TOPIC, b"next") is ErrorCode.NONE
    producer.commit()
    eventually(lambda: committed_values(broker.bootstrap, TOPIC) == [b"stays", b"next"])
    producer.connection.close()
