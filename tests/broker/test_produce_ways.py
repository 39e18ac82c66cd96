"""Produce has a short way for the usual request and a general one: both answer alike and leave the same log."""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from penstock.broker.handlers import produce
from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.testing import Broker
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.list_offsets import ListOffsetsRequest
from penstock.wire.generated.produce import ProduceRequest
from tests.conformance.raw import (
    ConnectionClosed,
    RawConnection,
    batch_of,
    encode_frame,
    produce_request,
    topic_id_of,
)
from tests.waiting import eventually

VERSIONS = range(3, 14)
IDS_FROM = 13
CLOSED = "the connection was closed"
SHORT, GENERAL = "short", "general"


@pytest.fixture(scope="module", params=["os", "ack"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker({"flush.mode": request.param}) as running:
        yield running


class Ways:
    """Sends the same to two topics, one on each way; counts what really took the short one."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self._broker = broker
        self._connection = RawConnection(broker.bootstrap)
        config = {"max.message.bytes": "2000"}
        self.topics = {way: broker.create_topic(f"{way}-{number}", config=config) for way in (SHORT, GENERAL)}
        self.ids = {way: topic_id_of(self._connection, topic) for way, topic in self.topics.items()}
        self.shortened = 0
        self._way = SHORT
        decode: Callable[..., Any] = produce.decode_one_batch
        append: Callable[..., None] = produce.ProduceHandler._append_one

        def counting(*arguments: Any) -> None:
            self.shortened += 1
            append(*arguments)

        monkeypatch.setattr(produce, "decode_one_batch", lambda *a: decode(*a) if self._way == SHORT else None)
        monkeypatch.setattr(produce.ProduceHandler, "_append_one", counting)

    def send(self, records: bytes, acks: int, version: int, partition: int = 0) -> Any:
        """What both ways answered."""
        short, general = (self._send(way, records, acks, version, partition) for way in (SHORT, GENERAL))
        assert short == general
        return short

    def _send(self, way: str, records: bytes, acks: int, version: int, partition: int) -> Any:
        self._way = way
        request = produce_request(self.topics[way], records, acks, partition)
        if version >= IDS_FROM:
            request.topic_data[0].name, request.topic_data[0].topic_id = "", self.ids[way]
        if acks:
            return self._without_names(self._connection.call(request, version), way, version)
        self._connection.send(request, version)
        return self._unanswered()

    def _unanswered(self) -> str | None:
        """Nothing is said to acks=0: either the next request is answered, or the connection is closed."""
        try:
            topic_id_of(self._connection, self.topics[SHORT])
        except (ConnectionClosed, ConnectionError):
            self._connection = RawConnection(self._broker.bootstrap)
            return CLOSED
        return None

    def _without_names(self, response: Any, way: str, version: int) -> Any:
        [topic] = response.responses
        assert topic.topic_id == self.ids[way] if version >= IDS_FROM else topic.name == self.topics[way]
        topic.name, topic.topic_id = "", bytes(16)
        return response

    def logs(self) -> list[bytes]:
        return [self._log(topic) for topic in self.topics.values()]

    def _log(self, topic: str) -> bytes:
        wanted = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 24,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
        )
        [found] = self._connection.call(request, 12).responses[0].partitions
        assert found.error_code == 0
        return bytes(found.records or b"")

    def producer_id(self) -> int:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        found: int = self._connection.call(request, 4).producer_id
        return found

    def close(self) -> None:
        self._connection.close()


_numbers = iter(range(1_000_000))


@pytest.fixture
def ways(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    both = Ways(broker, monkeypatch, next(_numbers))
    yield both
    both.close()


def same_log(ways: Ways, batches: int) -> None:
    short, general = ways.logs()
    assert short == general
    assert len(list(iter_headers(short))) == batches


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_good_batches(ways: Ways, acks: int) -> None:
    for number, version in enumerate(VERSIONS):
        answer = ways.send(batch_of(b"%d" % version, b"twice"), acks, version)
        if acks:
            [partition] = answer.responses[0].partition_responses
            assert (partition.error_code, partition.base_offset) == (0, 2 * number)
        else:
            assert answer is None
    assert ways.shortened == len(VERSIONS)
    if acks == 0:
        ways.send(batch_of(b"the last of them is there before this one is answered"), -1, 12)
    same_log(ways, len(VERSIONS) + (acks == 0))


def changed(batch: bytes, position: int, value: int) -> bytes:
    found = bytearray(batch)
    found[position] = value
    return bytes(found)


class Refused(NamedTuple):
    records: bytes
    errors: set[ErrorCode]
    partition: int = 0


GOOD = batch_of(b"payload")
REFUSED = {
    "bad crc": Refused(changed(GOOD, 17, GOOD[17] ^ 1), {ErrorCode.CORRUPT_MESSAGE}),
    "flipped payload": Refused(changed(GOOD, len(GOOD) - 2, GOOD[-2] ^ 1), {ErrorCode.CORRUPT_MESSAGE}),
    "wrong magic": Refused(
        changed(GOOD, 16, 1),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD},
    ),
    "truncated": Refused(GOOD[:-3], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    "empty": Refused(b"", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    "two batches": Refused(GOOD + GOOD, {ErrorCode.INVALID_RECORD}),
    "too large": Refused(batch_of(b"x" * 3_000), {ErrorCode.MESSAGE_TOO_LARGE}),
    "unknown partition": Refused(GOOD, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}, partition=9),
}


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED.keys())
def test_refused_batches(ways: Ways, refused: Refused, acks: int) -> None:
    ways.send(GOOD, -1, 12)
    for version in VERSIONS:
        answer = ways.send(refused.records, acks, version, refused.partition)
        if acks:
            [partition] = answer.responses[0].partition_responses
            assert partition.error_code in refused.errors
            assert partition.base_offset == -1
        else:
            assert answer == CLOSED
    ways.send(GOOD, -1, 12)
    same_log(ways, 2)


@pytest.mark.parametrize("acks", [-1, 1])
def test_idempotent_producers(ways: Ways, acks: int) -> None:
    """Retries are answered with the first offset; gaps and old epochs are refused."""
    producer_id = ways.producer_id()

    def send(sequence: int, epoch: int, version: int) -> tuple[int, int]:
        records = batch_of(b"%d" % sequence, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        [partition] = ways.send(records, acks, version).responses[0].partition_responses
        return partition.error_code, partition.base_offset

    for sequence, version in enumerate(VERSIONS):
        assert send(sequence, 0, version) == (0, sequence)
        assert send(sequence, 0, version) == (0, sequence)
    assert send(99, 0, 9)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(0, 1, 9) == (0, len(VERSIONS))
    assert send(len(VERSIONS), 0, 9)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert ways.shortened == 2 * len(VERSIONS) + 3
    same_log(ways, len(VERSIONS) + 1)


def test_acks_that_do_not_exist(ways: Ways) -> None:
    for version in VERSIONS:
        [partition] = ways.send(GOOD, 2, version).responses[0].partition_responses
        assert partition.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert not ways.shortened


def test_a_request_of_another_shape_takes_the_general_way(ways: Ways, broker: Broker) -> None:
    topic = broker.create_topic(f"wide-{next(_numbers)}", partitions=2)
    request = produce_request(topic, GOOD)
    request.topic_data[0].partition_data.append(ProduceRequest.PartitionProduceData(1, GOOD))
    with RawConnection(broker.bootstrap) as connection:
        answers = connection.call(request, 12).responses[0].partition_responses
    assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [(0, 0, 0), (1, 0, 0)]
    assert not ways.shortened


@pytest.mark.parametrize("way", [SHORT, GENERAL])
def test_nobody_but_coordinators_writes_what_they_keep(broker: Broker, way: str) -> None:
    """A record that no coordinator made would be read by the next one that loads this partition."""
    with RawConnection(broker.bootstrap) as connection:
        find = FindCoordinatorRequest(coordinator_keys=["g"])  # makes the topic
        eventually(lambda: connection.call(find, 4).coordinators[0].error_code == 0, 30)
        for index in range(50):
            request = produce_request("__consumer_offsets", batch_of(b"junk"), -1, index)
            if way == GENERAL:
                request.topic_data[0].partition_data *= 2
            for row in connection.call(request, 9).responses[0].partition_responses:
                assert row.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
                assert "coordinators" in row.error_message


def _records_in(connection: RawConnection, topic: str) -> int:
    latest = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(topics=[ListOffsetsRequest.ListOffsetsTopic(topic, [latest])])
    [found] = connection.call(request, 7).topics[0].partitions
    offset: int = found.offset
    return offset


def test_who_wants_no_answer_may_leave_before_it_is_handled(broker: Broker) -> None:
    """Nobody has touched the partition: it is opened for the first of them, and the others wait behind that."""
    topic = broker.create_topic("left-at-once")
    with RawConnection(broker.bootstrap) as connection:
        for number in range(5):
            connection.send(produce_request(topic, batch_of(b"%d" % number), acks=0), 9)
    with RawConnection(broker.bootstrap) as connection:
        eventually(lambda: _records_in(connection, topic) == 5)


def test_what_waits_behind_a_batch_that_is_refused_goes_with_its_connection(broker: Broker) -> None:
    topic = broker.create_topic("turned-away")
    refused = bytearray(batch_of(b"damaged"))
    refused[-1] ^= 1
    frames = [
        encode_frame(produce_request(topic, records, acks=0), 9) for records in (bytes(refused), batch_of(b"next"))
    ]
    with RawConnection(broker.bootstrap) as connection:
        connection.send_bytes(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
        assert connection.is_closed_by_broker()
    with RawConnection(broker.bootstrap) as connection:
        connection.call(produce_request(topic, batch_of(b"later"), acks=1), 9)
        assert _records_in(connection, topic) == 1


def test_what_waited_behind_the_opening_of_a_partition_waits_for_nothing_else(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is never idle would have one request after the other prepared for good."""
    prepared = 0
    prepare = produce.ProduceHandler.prepare

    async def counting(*arguments: Any) -> Any:
        nonlocal prepared
        prepared += 1
        return await prepare(*arguments)

    monkeypatch.setattr(produce.ProduceHandler, "prepare", counting)
    topic = broker.create_topic("not-open-yet")
    request = produce_request(topic, batch_of(b"one of five"), acks=1)
    frame = encode_frame(request, 9)
    with RawConnection(broker.bootstrap) as connection:
        connection.send_bytes((struct.pack(">i", len(frame)) + frame) * 5)
        for _ in range(5):
            connection.receive(request, 9, 1)
        assert _records_in(connection, topic) == 5
    assert prepared == 1
