"""Fetch and ListOffsets as frames: every version, sessions, long polls, limits, positions."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.reader import read_records
from penstock.wire.generated.delete_records import DeleteRecordsRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.list_offsets import ListOffsetsRequest
from penstock.wire.generated.offset_for_leader_epoch import OffsetForLeaderEpochRequest
from tests.conformance.conftest import NewTopicFunction
from tests.conformance.raw import RawConnection, batch_of, produce_request, topic_id_of

VERSION = 12
LONG_WAIT_MS = 20_000


@pytest.fixture
def connection(bootstrap: str) -> Iterator[RawConnection]:
    with RawConnection(bootstrap) as opened:
        yield opened


def write(connection: RawConnection, topic: str, *batches: bytes, partition: int = 0) -> None:
    for batch in batches:
        [answer] = connection.call(produce_request(topic, batch, partition=partition), 12).responses
        assert answer.partition_responses[0].error_code == 0


def fetch_request(topic: str, *offsets: int, max_wait_ms: int = 0, min_bytes: int = 1, **fields: Any) -> FetchRequest:
    """One partition per offset."""
    partitions = [
        FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1_000_000)
        for index, offset in enumerate(offsets)
    ]
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=partitions)]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics, **fields)


def values_of(records: Any) -> list[bytes | None]:
    data = bytes(records or b"")
    return [record.value for position, _ in iter_headers(data) for record in read_records(data, position)]


def fetch_one(connection: RawConnection, request: FetchRequest, version: int = VERSION) -> Any:
    [topic] = connection.call(request, version).responses
    [partition] = topic.partitions
    return partition


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version(connection: RawConnection, new_topic: NewTopicFunction, version: int) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"a", b"b"), batch_of(b"c"))
    request = fetch_request(topic, 0)
    if version >= 13:
        request.topics[0].topic, request.topics[0].topic_id = "", topic_id_of(connection, topic)
    answer = fetch_one(connection, request, version)
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 3, 3)
    assert values_of(answer.records) == [b"a", b"b", b"c"]
    if version >= 5:
        assert answer.log_start_offset == 0


def test_a_batch_is_sent_whole_from_its_middle(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"a"), batch_of(b"b", b"c", b"d"), batch_of(b"e"))
    answer = fetch_one(connection, fetch_request(topic, 2))
    assert values_of(answer.records) == [b"b", b"c", b"d", b"e"]


def test_positions_outside_the_log(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"a"), batch_of(b"b"), batch_of(b"c"))
    assert fetch_one(connection, fetch_request(topic, 3)).error_code == 0
    answer = fetch_one(connection, fetch_request(topic, 4))
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    partition = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=2)
    topics = [DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])]
    connection.call(DeleteRecordsRequest(topics=topics, timeout_ms=10_000), 2)
    assert fetch_one(connection, fetch_request(topic, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    answer = fetch_one(connection, fetch_request(topic, 2))
    assert (answer.error_code, answer.log_start_offset, values_of(answer.records)) == (0, 2, [b"c"])


def test_unknown_topics(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    assert fetch_one(connection, fetch_request("never-was", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = fetch_request("", 0)
    request.topics[0].topic_id = b"\x22" * 16
    assert fetch_one(connection, request, 13).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    topic = new_topic()
    [answer] = connection.call(fetch_request(topic, 0, 0), VERSION).responses
    codes = {p.partition_index: p.error_code for p in answer.partitions}
    assert codes == {0: 0, 1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_limits_still_let_the_first_batch_through(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(2)
    for partition in (0, 1):
        write(connection, topic, batch_of(b"x" * 5000), batch_of(b"y" * 5000), partition=partition)
    request = fetch_request(topic, 0, 0, max_bytes=100)
    [answer] = connection.call(request, VERSION).responses
    sizes = sorted(len(p.records or b"") for p in answer.partitions)
    assert sizes[0] == 0, "the limit of the request holds for all but the first batch"
    assert 5000 < sizes[1] < 6000
    request = fetch_request(topic, 0)
    request.topics[0].partitions[0].partition_max_bytes = 6000
    assert len(fetch_one(connection, request).records) <= 6000


def test_a_long_poll_ends_when_data_arrives(
    connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction
) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"old"))
    request = fetch_request(topic, 1, max_wait_ms=LONG_WAIT_MS)
    started = time.monotonic()
    waiting = connection.send(request, VERSION)
    with RawConnection(bootstrap) as other:
        write(other, topic, batch_of(b"new"))
    [answer] = connection.receive(request, VERSION, waiting).responses
    assert values_of(answer.partitions[0].records) == [b"new"]
    assert time.monotonic() - started < LONG_WAIT_MS / 2000


def test_a_long_poll_waits_for_enough_bytes_but_not_for_ever(
    connection: RawConnection, bootstrap: str, new_topic: NewTopicFunction
) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"little"))
    started = time.monotonic()
    answer = fetch_one(connection, fetch_request(topic, 0, max_wait_ms=300, min_bytes=1_000_000))
    assert values_of(answer.records) == [b"little"]
    assert 0.28 <= time.monotonic() - started < 10

    request = fetch_request(topic, 0, max_wait_ms=LONG_WAIT_MS, min_bytes=10_000)
    started = time.monotonic()
    waiting = connection.send(request, VERSION)
    with RawConnection(bootstrap) as other:
        write(other, topic, batch_of(b"x" * 5000), batch_of(b"y" * 6000))
    [response] = connection.receive(request, VERSION, waiting).responses
    assert len(values_of(response.partitions[0].records)) == 3
    assert time.monotonic() - started < LONG_WAIT_MS / 2000


def test_an_error_ends_a_long_poll_at_once(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    started = time.monotonic()
    answer = fetch_one(connection, fetch_request(new_topic(), 77, max_wait_ms=LONG_WAIT_MS, min_bytes=1000))
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert time.monotonic() - started < LONG_WAIT_MS / 2000


class Session:
    """An incremental fetch session (KIP-227)."""

    def __init__(self, connection: RawConnection, topic: str, *offsets: int) -> None:
        self._connection = connection
        self.topic = topic
        self.opened = connection.call(fetch_request(topic, *offsets, session_id=0, session_epoch=0), VERSION)
        self.session_id = self.opened.session_id
        self.epoch = 0

    def fetch(
        self, changed: dict[int, int] | None = None, forgotten: list[int] | None = None, epoch: int = -2
    ) -> Any:
        self.epoch += 1
        request = FetchRequest(
            session_id=self.session_id, session_epoch=self.epoch if epoch == -2 else epoch, min_bytes=0
        )
        if changed:
            partitions = [
                FetchRequest.FetchPartition(partition=p, fetch_offset=o, partition_max_bytes=1_000_000)
                for p, o in changed.items()
            ]
            request.topics = [FetchRequest.FetchTopic(topic=self.topic, partitions=partitions)]
        if forgotten:
            request.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic=self.topic, partitions=forgotten)]
        return self._connection.call(request, VERSION)

    def partitions(self, **changes: Any) -> dict[int, list[bytes | None]]:
        answer = self.fetch(**changes)
        assert answer.error_code == 0
        return {p.partition_index: values_of(p.records) for topic in answer.responses for p in topic.partitions}


def test_a_session_sends_only_what_changed(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic(3)
    write(connection, topic, batch_of(b"first"))
    session = Session(connection, topic, 0, 0, 0)
    assert session.session_id > 0
    assert {p.partition_index for t in session.opened.responses for p in t.partitions} == {0, 1, 2}
    assert session.partitions(changed={0: 1}) == {}
    write(connection, topic, batch_of(b"second"), partition=1)
    assert session.partitions() == {1: [b"second"]}
    assert session.partitions() == {1: [b"second"]}, "its position has not moved"
    assert session.partitions(forgotten=[1]) == {}
    write(connection, topic, batch_of(b"third"), partition=1)
    assert session.partitions() == {}
    assert session.partitions(changed={1: 1}) == {1: [b"third"]}


def test_lost_sessions_are_told(connection: RawConnection, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    session = Session(connection, topic, 0)
    assert session.fetch(epoch=9).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    session.session_id += 12345
    assert session.fetch(epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    session = Session(connection, topic, 0)
    closed = session.fetch(epoch=-1)
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert session.fetch(epoch=1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", range(1, 12))
def test_list_offsets_in_every_version(connection: RawConnection, new_topic: NewTopicFunction, version: int) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"a", b"b"), batch_of(b"c"))

    def offset(timestamp: int) -> tuple[int, int]:
        partition = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])]
        [answer] = connection.call(ListOffsetsRequest(replica_id=-1, topics=topics), version).topics
        return answer.partitions[0].error_code, answer.partitions[0].offset

    assert offset(-1) == (0, 3)
    assert offset(-2) == (0, 0)
    assert offset(1_600_000_000_000) == (0, 0)
    assert offset(1_800_000_000_000) == (0, -1)
    if version >= 7:
        assert offset(-3) == (0, 0)
    if version >= 8:
        assert offset(-4) == (0, 0)
    if version >= 9:
        assert offset(-5)[0] == 0


@pytest.mark.parametrize("version", [2, 3, 4])
def test_offset_for_leader_epoch(connection: RawConnection, new_topic: NewTopicFunction, version: int) -> None:
    topic = new_topic()
    write(connection, topic, batch_of(b"a", b"b"))

    def end_of(epoch: int) -> tuple[int, int, int]:
        partition = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[partition])]
        [answer] = connection.call(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version).topics
        found = answer.partitions[0]
        return found.error_code, found.leader_epoch, found.end_offset

    _, header = next(iter_headers(bytes(fetch_one(connection, fetch_request(topic, 0)).records)))
    epoch = header.partition_leader_epoch
    assert end_of(epoch) == (0, epoch, 2)
    assert end_of(epoch + 5) == (0, -1, -1)
