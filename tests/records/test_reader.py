"""Builder and reader are inverse; malformed batches raise `CorruptBatch` and nothing else."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records.batch import HEADER_BYTES, CorruptBatch, patch_crc
from penstock.records.builder import BatchBuilder, build_batch
from penstock.records.compression import Codec
from penstock.records.reader import Record, read_all_records, read_records
from penstock.records.varint import append_varint, read_varint, varint_size

_RECORD = st.tuples(
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3),
    st.integers(0, 2**45),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_RECORD, min_size=1, max_size=12), st.sampled_from(list(Codec)), st.integers(0, 2**60))
def test_what_is_built_is_read(records: list[tuple], codec: Codec, base_offset: int) -> None:  # type: ignore[type-arg]
    builder = BatchBuilder(codec)
    for key, value, headers, timestamp in records:
        builder.append(key, value, headers, timestamp)
    batch = builder.build(base_offset=base_offset)
    assert read_records(batch, check_crc=True) == [
        Record(base_offset + i, timestamp, key, value, headers)
        for i, (key, value, headers, timestamp) in enumerate(records)
    ]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120), st.sampled_from(list(Codec)))
def test_garbage_payloads_are_corrupt(payload: bytes, codec: Codec) -> None:
    batch = build_batch([(b"k", b"v")], codec=codec)
    del batch[HEADER_BYTES:]
    batch += payload
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    patch_crc(batch, 0, len(batch))
    with contextlib.suppress(CorruptBatch):
        assert len(read_records(batch)) == 1


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_flipped_bytes_never_escape_as_other_errors(data: st.DataObject) -> None:
    batch = build_batch([(b"key", b"value"), (None, None)], codec=data.draw(st.sampled_from(list(Codec))))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        read_records(batch)


def test_cut_off_batch_is_corrupt() -> None:
    batch = build_batch([(b"k", b"v" * 40)])
    with pytest.raises(CorruptBatch):
        read_records(batch[:-1])


def test_all_records_of_several_batches() -> None:
    data = build_batch([(b"a", b"1")], base_offset=0) + build_batch([(b"b", b"2"), (b"c", b"3")], base_offset=1)
    control = build_batch([(b"\0\0\0\1", b"")], base_offset=3, control=True)
    assert [(r.offset, r.key) for r in read_all_records(data + control)] == [(0, b"a"), (1, b"b"), (2, b"c")]


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    out = bytearray()
    append_varint(out, value)
    assert len(out) == varint_size(value)
    assert read_varint(out, 0) == (value, len(out))
