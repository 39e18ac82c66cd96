"""The client's own record codecs against those of `records`: same bytes, same records."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.decoding import decode_batch
from penstock.client.producer.batch import ProducerBatch
from penstock.client.types import RecordMetadata
from penstock.records.batch import CorruptBatch, crc_is_valid, parse_header
from penstock.records.builder import BatchBuilder
from penstock.records.compression import Codec
from penstock.records.reader import read_records

small = st.one_of(st.none(), st.binary(max_size=40), st.integers(4080, 4100).map(bytes))
headers = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
Records = list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]]
records = st.lists(st.tuples(small, small, headers, st.integers(0, 2**42)), min_size=1, max_size=20)


def filled(batch: ProducerBatch, given_records: Records) -> ProducerBatch:
    loop = asyncio.new_event_loop()
    for key, value, heads, timestamp in given_records:
        batch.append(key, value, heads, timestamp, loop.create_future())
    loop.close()
    return batch


@settings(max_examples=80, deadline=None)
@given(given_records=records, codec=st.sampled_from(list(Codec)))
def test_a_producer_batch_is_what_the_builder_builds(given_records: Records, codec: Codec) -> None:
    batch = filled(ProducerBatch("t", 0, 0.0, 1.0), given_records)
    batch.close(codec)
    builder = BatchBuilder(codec)
    for key, value, heads, timestamp in given_records:
        builder.append(key, value, heads, timestamp)
    assert batch.data == builder.build()


@settings(max_examples=80, deadline=None)
@given(given_records=records, codec=st.sampled_from(list(Codec)), append_time=st.booleans())
def test_the_consumer_reads_what_the_reader_reads(given_records: Records, codec: Codec, append_time: bool) -> None:
    builder = BatchBuilder(codec, log_append_time=append_time)
    for key, value, heads, timestamp in given_records:
        builder.append(key, value, heads, timestamp)
    data = builder.build(base_offset=2**40, leader_epoch=3)
    expected = read_records(data)
    found = decode_batch("t", 5, memoryview(data), 0, parse_header(data))
    assert [(r.offset, r.timestamp_ms, r.key, r.value, list(r.headers)) for r in found] == [
        (r.offset, r.timestamp, r.key, r.value, r.headers) for r in expected
    ]
    assert {(r.topic, r.partition, r.leader_epoch, r.timestamp_type) for r in found} == {
        ("t", 5, 3, int(append_time))
    }


@settings(max_examples=200, deadline=None)
@given(given_records=records, where=st.integers(0), byte=st.integers(0, 255))
def test_damage_is_always_called_corruption(given_records: Records, where: int, byte: int) -> None:
    builder = BatchBuilder()
    for key, value, heads, timestamp in given_records:
        builder.append(key, value, heads, timestamp)
    data = builder.build()
    data[61 + where % (len(data) - 61)] = byte
    header = parse_header(data)
    try:
        decode_batch("t", 0, memoryview(data), 0, header, check_crc=False)
    except CorruptBatch:
        assert not crc_is_valid(data, 0, header)


def test_a_wrong_crc_is_corruption() -> None:
    builder = BatchBuilder()
    builder.append(None, b"value")
    data = builder.build()
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        decode_batch("t", 0, memoryview(data), 0, parse_header(data))


def test_stamping_makes_a_valid_idempotent_batch() -> None:
    batch = filled(ProducerBatch("t", 0, 0.0, 1.0), [(b"k", b"v", (), 7), (None, b"w", (), 9)])
    batch.close(Codec.NONE)
    batch.stamp(4000, 3, 17)
    assert batch.data is not None
    header = parse_header(batch.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4000, 3, 17)
    assert crc_is_valid(batch.data, 0, header)


def test_halves_of_a_split_batch_cover_the_same_sequence_numbers() -> None:
    batch = filled(ProducerBatch("t", 0, 0.0, 1.0), [(None, bytes([i]), (), i) for i in range(5)])
    batch.close(Codec.ZSTD)
    batch.stamp(1, 0, 2**31 - 2)
    first, second = batch.split(Codec.ZSTD)
    assert (first.sequence, first.record_count) == (2**31 - 2, 2)
    assert (second.sequence, second.record_count) == (0, 3)
    assert [r.value for half in (first, second) for r in read_records(half.data or b"")] == [
        bytes([i]) for i in range(5)
    ]


def test_completing_a_batch_numbers_its_records() -> None:
    async def scenario() -> list[RecordMetadata]:
        loop = asyncio.get_running_loop()
        batch = ProducerBatch("t", 3, 0.0, 1.0)
        futures = [loop.create_future() for _ in range(3)]
        for number, future in enumerate(futures):
            batch.append(None, b"", (), 100 + number, future)
        futures[1].cancel()
        batch.complete(40, -1)
        return [futures[0].result(), futures[2].result()]

    first, third = asyncio.run(scenario())
    assert (first.offset, first.timestamp_ms) == (40, 100)
    assert (third.offset, third.timestamp_ms) == (42, 102)
