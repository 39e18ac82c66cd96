"""The batch header: fields, CRC, and what a broker may patch."""

import pytest

from penstock.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    CorruptBatch,
    batch_size,
    crc_is_valid,
    iter_headers,
    parse_header,
    patch_log_append_time,
    patch_offset_and_epoch,
)
from penstock.records.builder import BatchBuilder, build_batch
from penstock.records.reader import read_records


def test_header_fields_are_those_given_to_the_builder() -> None:
    builder = BatchBuilder(producer_id=77, producer_epoch=3, base_sequence=2**31 - 1, transactional=True)
    builder.append(b"k", b"v", (), 1000)
    builder.append(b"k", b"v", (), 900)
    batch = builder.build(base_offset=40, leader_epoch=9)
    header = parse_header(batch)
    assert header.size_bytes == len(batch) == batch_size(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 41, 42)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1000)
    assert (header.producer_id, header.producer_epoch, header.record_count) == (77, 3, 2)
    assert header.last_sequence == 0, "sequences wrap to zero"
    assert header.is_transactional
    assert not header.is_control
    assert header.partition_leader_epoch == 9
    assert crc_is_valid(batch, 0, header)


def test_offset_and_epoch_are_not_under_the_crc() -> None:
    batch = build_batch([(b"k", b"v")], timestamp_ms=5)
    patch_offset_and_epoch(batch, 0, 123456789012, 17)
    header = parse_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (123456789012, 17)
    assert crc_is_valid(batch, 0, header)


def test_every_bit_behind_the_crc_is_protected() -> None:
    batch = build_batch([(b"key", b"value")], timestamp_ms=5)
    for position in range(17, len(batch)):
        flipped = bytearray(batch)
        flipped[position] ^= 0x10
        assert not crc_is_valid(flipped, 0, parse_header(flipped))


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = build_batch([(b"a", b"1"), (b"b", b"2")], timestamp_ms=5)
    patch_log_append_time(batch, 0, parse_header(batch), 7777)
    header = parse_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert header.timestamp_type == LOG_APPEND_TIME
    assert [r.timestamp for r in read_records(batch)] == [7777, 7777]


def test_iter_headers_stops_before_a_cut_off_batch() -> None:
    one = build_batch([(b"k", b"v" * 100)], base_offset=0)
    two = build_batch([(b"k", b"w" * 50)], base_offset=1)
    data = bytes(one + two)
    assert [(p, h.base_offset) for p, h in iter_headers(data)] == [(0, 0), (len(one), 1)]
    assert [h.base_offset for _, h in iter_headers(data[:-1])] == [0]
    assert list(iter_headers(data[: HEADER_BYTES - 1])) == []


@pytest.mark.parametrize(("position", "value"), [(16, 1), (8, 0xFF), (11, 3)])
def test_other_formats_and_impossible_lengths_are_corrupt(position: int, value: int) -> None:
    batch = build_batch([(b"k", b"v" * 300)])
    batch[position] = value
    if position == 11:
        batch[8:12] = bytes([0, 0, 0, 3])
    with pytest.raises(CorruptBatch):
        parse_header(batch)


def test_too_few_bytes_are_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        parse_header(b"\0" * (HEADER_BYTES - 1))
