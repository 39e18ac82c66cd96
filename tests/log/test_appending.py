"""What an append accepts, refuses and assigns; and when a segment rolls."""

from typing import Any

import pytest

from penstock.log.appending import AppendResult
from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.producers import BATCHES_KEPT
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import LOG_APPEND_TIME, crc_is_valid, parse_header, patch_crc
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.reader import read_records
from tests.log.logs import NOW_MS, all_records, append, batch, code_of, new_log, values

_MAX_SEQUENCE = 2**31 - 1


def send(log: PartitionLog, data: bytearray, epoch: int = 0) -> AppendResult | Refusal:
    return log.append_as_leader(data, epoch, NOW_MS)


def produce(log: PartitionLog, sequence: int, count: int = 1, producer_id: int = 7, epoch: int = 0) -> Any:
    fields = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return send(log, batch(*["v"] * count, **fields))


def test_offsets_and_epoch_are_assigned_in_place() -> None:
    log = new_log()
    append(log, "a", "b")
    data = batch("c", "d", "e")
    result = send(log, data, epoch=4)
    assert result == (2, 5, -1, NOW_MS, len(data), False)
    header = parse_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (2, 4)
    assert values(log) == [b"a", b"b", b"c", b"d", b"e"]
    assert log.epoch_end_offset(4) == (4, 5)
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)


def test_a_writable_view_is_enough() -> None:
    log = new_log()
    frame = bytearray(b"....") + batch("x")
    result = log.append_as_leader(memoryview(frame)[4:], 0, NOW_MS)
    assert isinstance(result, AppendResult)
    assert values(log) == [b"x"]


def _flip(data: bytearray) -> bytearray:
    data[-1] ^= 1
    return data


def _with(data: bytearray, position: int, content: bytes) -> bytearray:
    data[position : position + len(content)] = content
    patch_crc(data, 0, len(data))
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (bytearray(b""), ErrorCode.CORRUPT_MESSAGE),
        (bytearray(20), ErrorCode.CORRUPT_MESSAGE),
        (_flip(batch("v")), ErrorCode.CORRUPT_MESSAGE),
        (batch("v")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch("v") + batch("w"), ErrorCode.INVALID_RECORD),
        (_with(batch("v"), 16, b"\x01"), ErrorCode.INVALID_RECORD),
        (_with(batch("v"), 21, b"\x00\x05"), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (batch("v", control=True), ErrorCode.INVALID_RECORD),
        (_with(batch("v"), 57, bytes(4)), ErrorCode.INVALID_RECORD),
        (_with(batch("v", "w"), 23, bytes(4)), ErrorCode.INVALID_RECORD),
        (batch("v" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
        (batch("v" * 800), ErrorCode.RECORD_LIST_TOO_LARGE),
        (batch("v", timestamp_ms=NOW_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
        (batch("v", timestamp_ms=NOW_MS - 10_001), ErrorCode.INVALID_TIMESTAMP),
        (batch("v", producer_id=3, producer_epoch=0), ErrorCode.INVALID_RECORD),
    ],
)
def test_bad_batches_are_refused_and_leave_no_trace(data: bytearray, code: ErrorCode) -> None:
    config = LogConfig(max_message_bytes=1000, segment_bytes=700, message_timestamp_before_max_ms=10_000)
    log = new_log(config)
    append(log, "good")
    assert code_of(send(log, data)) is code
    assert log.end_offset == 1
    assert append(log, "next") == 1
    assert values(log) == [b"good", b"next"]


def test_an_epoch_that_is_over_is_refused() -> None:
    log = new_log()
    append(log, epoch=5)
    assert code_of(send(log, batch("v"), epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH


def test_log_append_time_stamps_the_batch() -> None:
    log = new_log(LogConfig(message_timestamp_type="LogAppendTime", message_timestamp_after_max_ms=0))
    data = batch("v", timestamp_ms=NOW_MS + 999_999)
    result = send(log, data)
    assert isinstance(result, AppendResult)
    assert result.log_append_time_ms == NOW_MS
    header = parse_header(data)
    assert (header.timestamp_type, header.max_timestamp) == (LOG_APPEND_TIME, NOW_MS)
    assert crc_is_valid(data, 0, header)
    assert all_records(log)[0].timestamp == NOW_MS


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", list(Codec))
def test_another_codec_is_applied_and_nothing_else_changes(wanted: str, sent: Codec) -> None:
    log = new_log(LogConfig(compression_type=wanted))
    fields = {"producer_id": 9, "producer_epoch": 2, "base_sequence": 0, "codec": sent, "timestamp_ms": NOW_MS - 5}
    data = build_batch([(b"k", b"v" * 50), (None, None)], **fields)
    original = parse_header(data)
    assert isinstance(send(log, data), AppendResult)
    stored = log.read_bytes(0, 10_000)
    assert isinstance(stored, bytes)
    header = parse_header(stored)
    assert header.codec == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[wanted]
    assert header[7:] == original[7:], "timestamps, producer, sequence and count stay"
    assert crc_is_valid(stored, 0, header)
    assert [(r.key, r.value, r.timestamp) for r in read_records(stored)] == [
        (b"k", b"v" * 50, NOW_MS - 5),
        (None, None, NOW_MS - 5),
    ]


def test_compacted_topics_need_keys() -> None:
    log = new_log(LogConfig(cleanup_policy=frozenset({"compact"})))
    assert (
        code_of(send(log, build_batch([(b"k", b"v"), (None, b"v")], timestamp_ms=NOW_MS))) is ErrorCode.INVALID_RECORD
    )
    assert append(log, "with key") == 0


# Idempotent producers --------------------------------------------------------------------------------------------


def test_duplicates_are_answered_with_their_first_offset() -> None:
    log = new_log()
    end = 2 * BATCHES_KEPT + 4
    for sequence in range(0, end, 2):
        assert produce(log, sequence, count=2).base_offset == sequence
    for sequence in range(4, end, 2):  # the last batches: more than a producer has in flight to one leader
        again = produce(log, sequence, count=2)
        assert (again.duplicate, again.base_offset, again.end_offset) == (True, sequence, sequence + 2)
    for sequence in (0, 2):  # in the log, but nobody knows where
        assert code_of(produce(log, sequence, count=2)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert code_of(produce(log, end - 2, count=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(produce(log, end + 2, count=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == end


def test_old_duplicates_are_known_across_the_wrap_of_sequences() -> None:
    log = new_log()
    first = 2**31 - 3
    for at in range(BATCHES_KEPT + 2):
        assert produce(log, (first + at) % 2**31).base_offset == at
    assert code_of(produce(log, first)) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert produce(log, (first + 2) % 2**31).base_offset == 2
    assert code_of(produce(log, (first + BATCHES_KEPT + 3) % 2**31)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_are_refused() -> None:
    log = new_log()
    produce(log, 0)
    assert code_of(produce(log, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 1).base_offset == 1


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert produce(new_log(), 1234).base_offset == 0


def test_epochs_of_a_producer() -> None:
    log = new_log()
    produce(log, 0, epoch=3)
    assert code_of(produce(log, 1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(produce(log, 1, epoch=4)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(log, 0, epoch=4).base_offset == 1
    assert code_of(produce(log, 1, epoch=3)) is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("first", [_MAX_SEQUENCE, _MAX_SEQUENCE - 1])
def test_sequences_wrap(first: int) -> None:
    log = new_log()
    assert produce(log, first, count=2).base_offset == 0
    following = 0 if first == _MAX_SEQUENCE - 1 else 1
    assert produce(log, following).base_offset == 2
    assert produce(log, first, count=2).duplicate


def test_silent_producers_are_forgotten() -> None:
    log = new_log(LogConfig(producer_id_expiration_ms=1000))
    produce(log, 0)
    assert log.expire_producers(NOW_MS + 999) == 0
    assert log.expire_producers(NOW_MS + 1000) == 1
    assert produce(log, 77).base_offset == 1


def test_who_writes_old_records_now_is_not_forgotten_before_a_retry_can_come() -> None:
    log = new_log(LogConfig(producer_id_expiration_ms=1000))
    old = batch("v", timestamp_ms=NOW_MS - 10_000, producer_id=7, producer_epoch=0, base_sequence=0)
    log.append_as_leader(old, 0, NOW_MS)
    assert log.expire_producers(NOW_MS) == 0
    retry = log.append_as_leader(old, 0, NOW_MS)
    assert isinstance(retry, AppendResult)
    assert retry.duplicate
    assert log.expire_producers(NOW_MS) == 1  # silent since the last look


# Coordinators and followers --------------------------------------------------------------------------------------


def test_coordinators_append_several_batches_and_control_batches() -> None:
    log = new_log()
    data = batch("a", "b") + batch(b"\0\0\0\0", control=True) + batch("c")
    result = log.append_as_leader(data, 2, NOW_MS, origin="coordinator")
    assert isinstance(result, AppendResult)
    assert (result.base_offset, result.end_offset) == (0, 4)
    assert [r.offset for r in all_records(log)] == [0, 1, 3]
    cut = log.append_as_leader(batch("x")[:-3], 2, NOW_MS, origin="coordinator")
    assert code_of(cut) is ErrorCode.CORRUPT_MESSAGE


def test_followers_take_what_the_leader_wrote() -> None:
    leader = new_log(LogConfig(segment_bytes=600))
    for number in range(30):
        append(leader, f"value {number}", epoch=number // 10, producer_id=1, producer_epoch=0, base_sequence=number)
    follower = new_log(LogConfig(segment_bytes=900))
    while follower.end_offset < leader.end_offset:
        data = leader.read_bytes(follower.end_offset, 500)
        assert isinstance(data, bytes)
        assert isinstance(follower.append_as_follower(data + b"\0" * 30), AppendResult), "a cut-off batch is left out"
    assert all_records(follower) == all_records(leader)
    assert follower.leader_epochs.entries() == leader.leader_epochs.entries() == [(0, 0), (1, 10), (2, 20)]
    assert follower.producers.get(1).last_sequence == 29  # type: ignore[union-attr]


def test_followers_refuse_what_does_not_follow() -> None:
    log = new_log()
    append(log, "a", "b", epoch=3)
    assert code_of(log.append_as_follower(batch("x", base_offset=1, leader_epoch=3))) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert code_of(log.append_as_follower(batch("x", base_offset=2, leader_epoch=2))) is ErrorCode.FENCED_LEADER_EPOCH
    assert code_of(log.append_as_follower(_flip(batch("x", base_offset=2)))) is ErrorCode.CORRUPT_MESSAGE
    result = log.append_as_follower(batch("x", base_offset=9, leader_epoch=3))
    assert isinstance(result, AppendResult), "a compacted leader leaves gaps"
    assert log.end_offset == 10


# Rolling ---------------------------------------------------------------------------------------------------------


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_rolls_by_size() -> None:
    log = new_log(LogConfig(segment_bytes=250))
    for _ in range(7):
        append(log, "v")
    assert len(batch("v")) == 70
    assert bases(log) == [0, 3, 6]


def test_rolls_by_the_time_of_the_records() -> None:
    log = new_log(LogConfig(segment_ms=1000))
    for delta in (0, 1000, 1001, 1500, 2002):
        append(log, timestamp_ms=NOW_MS + delta)
    assert bases(log) == [0, 2, 4]


def test_records_without_time_roll_by_the_clock() -> None:
    log = new_log(LogConfig(segment_ms=1000))
    log.append_as_leader(batch("v", timestamp_ms=-1), 0, NOW_MS)
    log.append_as_leader(batch("v", timestamp_ms=-1), 0, NOW_MS + 1000)
    log.append_as_leader(batch("v", timestamp_ms=-1), 0, NOW_MS + 1001)
    assert bases(log) == [0, 2]


def test_rolls_when_an_index_is_full() -> None:
    log = new_log(LogConfig(index_interval_bytes=0, segment_index_bytes=36))
    for number in range(12):
        append(log, timestamp_ms=NOW_MS + number)
    assert bases(log) == [0, 3, 6, 9], "two time index entries of 12 bytes, one place kept free as Kafka does"


def test_rolls_before_relative_offsets_overflow() -> None:
    log = new_log()
    append(log)
    log.append_as_follower(batch("far", base_offset=2**31 - 1))
    assert bases(log) == [0]
    log.append_as_follower(batch("farther", base_offset=2**31 + 5))
    assert bases(log) == [0, 2**31]
    assert [r.offset for r in all_records(log)] == [0, 2**31 - 1, 2**31 + 5]


def test_settings_change_between_appends() -> None:
    log = new_log()
    append(log)
    log.config = LogConfig(segment_bytes=100)
    append(log)
    assert bases(log) == [0, 1]


def test_a_follower_takes_what_its_leader_took_before_segments_became_smaller() -> None:
    """Else it would never be in sync again."""
    leader, follower = new_log(), new_log(LogConfig(segment_bytes=150))
    for number in range(3):
        append(leader, f"small {number}")
    append(leader, *["x" * 40] * 10)
    append(leader, "behind")
    data = leader.read_bytes(0, 10_000)
    assert not isinstance(data, ErrorCode)
    assert not isinstance(follower.append_as_follower(data), Refusal)
    assert values(follower) == values(leader)
    assert 3 in [segment.base_offset for segment in follower.segments], "in a segment of its own"
    assert code_of(follower.append_as_leader(batch("x" * 200), 0, NOW_MS)) is ErrorCode.RECORD_LIST_TOO_LARGE
