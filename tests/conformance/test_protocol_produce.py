"""Produce as frames: every version, acknowledgements, refusals and the sequence window of idempotent producers."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model.errors import ErrorCode
from penstock.records.batch import patch_crc
from penstock.records.reader import read_records
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.produce import ProduceRequest
from tests.conformance.clients import Confluent
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.raw import RawConnection, batch_of, produce_request, topic_id_of

VERSION = 12
MALFORMED = {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    with RawConnection(bootstrap) as opened:
        yield opened


def produce(connection: RawConnection, request: ProduceRequest, version: int = VERSION) -> Any:
    [topic] = connection.call(request, version).responses
    [partition] = topic.partition_responses
    return partition


@pytest.mark.parametrize("acks", [1, -1])
def test_every_version(connection: RawConnection, new_topic: NewTopicFunction, acks: int) -> None:
    topic = new_topic()
    topic_id = topic_id_of(connection, topic)
    for expected, version in enumerate(range(3, 14)):
        request = produce_request(topic, batch_of(b"v%d" % version), acks)
        if version >= 13:
            request.topic_data[0].name, request.topic_data[0].topic_id = "", topic_id
        answer = produce(connection, request, version)
        assert (answer.error_code, answer.base_offset) == (0, expected), version


def test_acks_0_is_not_answered(connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    for value in (b"one", b"two", b"three"):
        connection.send(produce_request(topic, batch_of(value), acks=0), VERSION)
    # The next answer on this connection belongs to the next request that has one.
    assert produce(connection, produce_request(topic, batch_of(b"four"))).base_offset == 3
    assert [r.value for r in Confluent().consume(bootstrap, topic)] == [b"one", b"two", b"three", b"four"]


def test_wrong_acks(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    answer = produce(connection, produce_request(new_topic(), batch_of(b"x"), acks=2))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_unknown_topics_and_partitions(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    answer = produce(connection, produce_request("never-was", batch_of(b"x")))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = produce(connection, produce_request(new_topic(), batch_of(b"x"), partition=9))
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = produce_request("", batch_of(b"x"))
    request.topic_data[0].topic_id = b"\x11" * 16
    assert produce(connection, request, 13).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def flipped(batch: bytes, position: int) -> bytes:
    changed = bytearray(batch)
    changed[position] ^= 1
    return bytes(changed)


def with_record_count(batch: bytes, count: int) -> bytes:
    changed = bytearray(batch)
    changed[57:61] = count.to_bytes(4, "big")
    patch_crc(changed, 0, len(changed))
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "errors"),
    [
        pytest.param(flipped(batch_of(b"payload"), -2), {ErrorCode.CORRUPT_MESSAGE}, id="flipped payload"),
        pytest.param(flipped(batch_of(b"payload"), 18), {ErrorCode.CORRUPT_MESSAGE}, id="flipped crc"),
        pytest.param(batch_of(b"payload")[:-3], MALFORMED, id="truncated"),
        pytest.param(with_record_count(batch_of(b"payload"), 7), MALFORMED, id="wrong count"),
    ],
)
def test_damaged_batches_are_refused(
    connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction, records: bytes, errors: set[ErrorCode]
) -> None:
    topic = new_topic()
    assert produce(connection, produce_request(topic, records)).error_code in errors
    assert produce(connection, produce_request(topic, batch_of(b"good"))).base_offset == 0
    assert [r.value for r in Confluent().consume(bootstrap, topic)] == [b"good"]


def test_a_batch_above_the_topics_limit_is_refused(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(max_message_bytes="2000")
    assert (
        produce(connection, produce_request(topic, batch_of(b"x" * 3000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    )
    assert produce(connection, produce_request(topic, batch_of(b"x" * 1000))).error_code == 0


def test_timestamps_outside_the_policy_are_refused(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(message_timestamp_before_max_ms="60000")
    answer = produce(connection, produce_request(topic, batch_of(b"from 2023")))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


def test_producer_ids_differ_in_every_version(connection: RawConnection) -> None:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    answers = [connection.call(request, version) for version in range(6) for _ in range(2)]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == len(answers)


class IdempotentProducer:
    def __init__(self, connection: RawConnection, topic: str) -> None:
        self._connection = connection
        self._topic = topic
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        self.producer_id = connection.call(request, 4).producer_id

    def send(self, sequence: int, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        """Error code and base offset."""
        values = [b"%d" % (sequence + i) for i in range(count)]
        records = batch_of(*values, producer_id=self.producer_id, producer_epoch=epoch, base_sequence=sequence)
        answer = produce(self._connection, produce_request(self._topic, records))
        return answer.error_code, answer.base_offset


def test_the_sequence_window(connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    producer = IdempotentProducer(connection, topic)
    sequences = range(0, 40, 2)
    assert [producer.send(sequence, count=2) for sequence in sequences] == [(0, offset) for offset in sequences]
    # The last batches are known, at least five: a retry is answered with the original offset.
    for sequence in sequences[-5:]:
        assert producer.send(sequence, count=2) == (0, sequence)
    # Where older ones are is not known any more; what skips ahead lost something.
    assert producer.send(0, count=2)[0] == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert producer.send(99)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # A new epoch starts at zero; the old one is fenced.
    assert producer.send(0, epoch=1) == (0, 40)
    assert producer.send(40, epoch=0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.send(5, epoch=2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(Confluent().consume(bootstrap, topic)) == 41


def test_sequences_wrap_around(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    """A producer that this log has never seen may begin anywhere: retention may have removed its past."""
    producer = IdempotentProducer(connection, new_topic())
    last = 2**31 - 1
    assert producer.send(last - 1, count=2)[0] == 0
    assert producer.send(0)[0] == 0
    assert producer.send(last - 1, count=2) == (0, 0)


def test_one_request_may_carry_many_partitions(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(3)
    request = produce_request(topic, batch_of(b"0"))
    data = ProduceRequest.PartitionProduceData
    request.topic_data[0].partition_data += [data(1, flipped(batch_of(b"1"), -2)), data(2, batch_of(b"2", b"2"))]
    [answer] = connection.call(request, VERSION).responses
    outcomes = {p.index: (p.error_code, p.base_offset) for p in answer.partition_responses}
    assert outcomes == {0: (0, 0), 1: (ErrorCode.CORRUPT_MESSAGE, -1), 2: (0, 0)}


def test_log_append_time_is_told(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    answer = produce(connection, produce_request(new_topic(message_timestamp_type="LogAppendTime"), batch_of(b"x")))
    assert answer.log_append_time_ms > 1_700_000_000_000
    answer = produce(connection, produce_request(new_topic(), batch_of(b"x")))
    assert answer.log_append_time_ms == -1


def test_own_batches_can_be_read_back() -> None:
    """The batches of these tests are what they claim to be."""
    assert [record.value for record in read_records(batch_of(b"a", b"b"))] == [b"a", b"b"]
