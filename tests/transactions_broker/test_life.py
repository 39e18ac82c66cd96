"""Transactions from the first request to the marker, over a socket, in both transaction versions."""

from collections.abc import Iterator

import pytest

from penstock.model.errors import ErrorCode
from penstock.testing import Broker
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.list_transactions import ListTransactionsRequest
from tests.transactions_broker.raw_producer import (
    RawProducer,
    all_values,
    committed_values,
    fetch,
    group_offset,
)
from tests.waiting import eventually


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "4"}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(broker.unused_topic_name(), 3)


@pytest.fixture(params=[1, 2], ids=["version1", "version2"])
def producer(broker: Broker, request: pytest.FixtureRequest) -> Iterator[RawProducer]:
    name = broker.unused_topic_name("id")
    with RawProducer(broker.bootstrap, name, request.param) as made:
        assert made.init() is ErrorCode.NONE
        yield made


def test_committed_records_are_seen_by_all(broker: Broker, topic: str, producer: RawProducer) -> None:
    for number in range(3):
        assert producer.send(topic, b"%d" % number) is ErrorCode.NONE
        assert producer.send(topic, b"p%d" % number, partition=1) is ErrorCode.NONE
        producer.commit()
    eventually(lambda: committed_values(broker.bootstrap, topic, 1) == [b"p0", b"p1", b"p2"])
    eventually(lambda: committed_values(broker.bootstrap, topic) == [b"0", b"1", b"2"])


def test_aborted_records_are_seen_by_uncommitted_readers_only(
    broker: Broker, topic: str, producer: RawProducer
) -> None:
    producer.send(topic, b"aborted")
    producer.abort()
    producer.send(topic, b"committed")
    producer.commit()
    eventually(lambda: committed_values(broker.bootstrap, topic) == [b"committed"])
    assert all_values(broker.bootstrap, topic) == [b"aborted", b"committed"]


def test_open_records_hold_the_last_stable_offset(broker: Broker, topic: str, producer: RawProducer) -> None:
    producer.send(topic, b"open", b"open too")
    reading = fetch(broker.bootstrap, topic)
    assert (reading.values, reading.last_stable_offset, reading.high_watermark) == ([], 0, 2)
    assert all_values(broker.bootstrap, topic) == [b"open", b"open too"]
    producer.commit()
    eventually(lambda: fetch(broker.bootstrap, topic).last_stable_offset == 3, message="behind the marker")


def test_offsets_count_with_the_commit(broker: Broker, topic: str, producer: RawProducer) -> None:
    group = f"group-of-{producer.transactional_id}"
    where = (broker.bootstrap, group, topic)
    assert producer.commit_offsets(group, topic, {0: 5}) == [0]
    assert group_offset(*where) == -1
    assert group_offset(*where, require_stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert group_offset(*where, partition=1, require_stable=True) == -1, "only that partition is unstable"
    producer.commit()
    eventually(lambda: group_offset(*where, require_stable=True) == 5)
    assert producer.commit_offsets(group, topic, {0: 9}) == [0]
    producer.abort()
    eventually(lambda: group_offset(*where, require_stable=True) == 5)


def test_records_and_offsets_go_together(broker: Broker, topic: str, producer: RawProducer) -> None:
    group = f"group-of-{producer.transactional_id}"
    for number in range(1, 6):
        producer.send(topic, b"%d" % number)
        assert producer.commit_offsets(group, topic, {0: number}) == [0]
        assert producer.end(number % 2 == 1) is ErrorCode.NONE
    eventually(lambda: committed_values(broker.bootstrap, topic) == [b"1", b"3", b"5"])
    eventually(lambda: group_offset(broker.bootstrap, group, topic, require_stable=True) == 5)


def test_a_new_producer_shuts_the_old_one_out(broker: Broker, topic: str, producer: RawProducer) -> None:
    producer.send(topic, b"of the zombie")
    with RawProducer(broker.bootstrap, producer.transactional_id, producer.version) as successor:
        assert successor.init() is ErrorCode.NONE
        fenced = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED}
        assert producer.send_unasked(topic, b"more") in fenced
        assert producer.end(True) in fenced
        successor.send(topic, b"of the successor")
        successor.commit()
    eventually(lambda: committed_values(broker.bootstrap, topic) == [b"of the successor"])


def test_a_transaction_over_its_time_is_aborted(broker: Broker, topic: str) -> None:
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), timeout_ms=300) as slow:
        slow.init()
        slow.send(topic, b"too slow")
        assert fetch(broker.bootstrap, topic).last_stable_offset == 0
        eventually(lambda: fetch(broker.bootstrap, topic).last_stable_offset == 2)
        assert slow.end(True) is ErrorCode.PRODUCER_FENCED
    assert committed_values(broker.bootstrap, topic) == []


def test_a_late_record_does_not_open_a_transaction(broker: Broker, topic: str) -> None:
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 1) as producer:
        producer.init()
        producer.send(topic, b"in time")
        producer.commit()
        assert producer.send_unasked(topic, b"late") is ErrorCode.INVALID_TXN_STATE
        assert producer.send_unasked(topic, b"late", api_version=11) is ErrorCode.TRANSACTION_ABORTABLE
        assert producer.send_unasked(topic, b"never added", partition=2) is ErrorCode.INVALID_TXN_STATE
    eventually(lambda: committed_values(broker.bootstrap, topic) == [b"in time"])


def test_a_new_epoch_comes_with_each_end_of_version_2(broker: Broker, topic: str) -> None:
    with RawProducer(broker.bootstrap, broker.unused_topic_name("id"), 2) as producer:
        producer.init()
        first = producer.epoch
        producer.send(topic, b"a")
        producer.commit()
        assert producer.epoch == first + 1
        producer.abort()  # of nothing
        assert producer.epoch == first + 2
        producer.epoch = first
        assert producer.end(True) is ErrorCode.PRODUCER_FENCED


def test_many_transactions_in_a_row(broker: Broker, topic: str, producer: RawProducer) -> None:
    expected = [b"%d" % number for number in range(50)]
    for value in expected:
        producer.send(topic, value)
        producer.commit()
    eventually(lambda: committed_values(broker.bootstrap, topic) == expected)


def test_an_end_that_arrives_late_does_not_end_the_next_transaction(broker: Broker, topic: str) -> None:
    """Version 1: it got stuck on a connection that its client gave up. (docs/transactions.md)"""
    name = broker.unused_topic_name("id")
    with RawProducer(broker.bootstrap, name, 1) as stuck, RawProducer(broker.bootstrap, name, 1) as client:
        stuck.init()
        stuck.send(topic, b"first")
        client.producer_id, client.epoch = stuck.producer_id, stuck.epoch
        client.commit()  # over the new connection
        assert client.add(topic, 1) == [0]
        assert client.send_unasked(topic, b"second", partition=1) is ErrorCode.NONE
        late = EndTxnRequest(name, stuck.producer_id, stuck.epoch, False)
        assert stuck.connection.call(late, 3).error_code == ErrorCode.NOT_COORDINATOR
        client.commit()
    eventually(lambda: committed_values(broker.bootstrap, topic, 1) == [b"second"])
    assert committed_values(broker.bootstrap, topic) == [b"first"]


def test_transactional_ids_that_nobody_uses_are_forgotten() -> None:
    settings = {
        "transactional.id.expiration.ms": "200",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "50",
    }
    with Broker(settings) as broker, RawProducer(broker.bootstrap, "idle") as idle:
        idle.init()
        with RawProducer(broker.bootstrap, "busy") as busy:
            busy.init()
            busy.send(broker.create_topic("t"), b"open")

            def listed() -> list[str]:
                answer = busy.connection.call(ListTransactionsRequest(), 2)
                return [each.transactional_id for each in answer.transaction_states]

            eventually(lambda: listed() == ["busy"], message="an open transaction is in use")
            assert idle.end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            broker.restart()
        with RawProducer(broker.bootstrap, "idle") as again:
            assert again.init() is ErrorCode.NONE
            assert again.producer_id != idle.producer_id
