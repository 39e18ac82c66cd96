"""Batches as Arrow columns equal what the plain reader reads, whatever is in them; malformed ones are refused."""

import pytest

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.raw import RawBatches
from penstock.pipeline.decode import BatchDecoder
from penstock.pipeline.fetching import _decode, _Fetched, _make_decoder
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import OffsetRange
from penstock.records.batch import CorruptBatch, iter_headers, parse_header
from penstock.records.builder import BatchBuilder
from penstock.records.reader import read_all_records

payloads = st.one_of(st.none(), st.binary(max_size=300))
headers = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=9))), max_size=3)
records = st.tuples(payloads, payloads, headers, st.integers(0, 2**40))
batches = st.lists(
    st.tuples(st.lists(records, min_size=1, max_size=20), st.integers(0, 4), st.integers(0, 50)),
    min_size=1,
    max_size=5,
)


def build(contents: list) -> bytes:  # type: ignore[type-arg]
    """Batches one behind the other, with gaps between them as compaction leaves them."""
    out = bytearray()
    offset = 0
    for rows, codec, gap in contents:
        builder = BatchBuilder(codec=codec, producer_id=7, producer_epoch=2, base_sequence=offset)
        for key, value, names, timestamp in rows:
            builder.append(key, value, names, timestamp)
        batch = builder.build()
        batch[:8] = (offset + gap).to_bytes(8, "big")
        offset += gap + len(rows)
        out += batch
    return bytes(out)


def decode(data: bytes, start: int = 0, end: int = 2**62) -> pa.RecordBatch | None:
    decoder = BatchDecoder("orders", 3, headers=True, batch_info=True)
    for pos, header in iter_headers(data):
        decoder.add(memoryview(data), pos, header)
    found = decoder.take(start, end)
    return found[0] if found else None


@settings(max_examples=150, deadline=None)
@given(batches, st.integers(0, 60), st.integers(0, 120))
def test_columns_equal_the_plain_reader(contents, start, length) -> None:  # type: ignore[no-untyped-def]
    data = build(contents)
    expected = [r for r in read_all_records(data) if start <= r.offset < start + length]
    table = decode(data, start, start + length)
    if table is None:
        assert not expected
        return
    table.validate(full=True)
    rows = table.to_pylist()
    assert [row["offset"] for row in rows] == [r.offset for r in expected]
    assert [row["key"] for row in rows] == [r.key for r in expected]
    assert [row["value"] for row in rows] == [r.value for r in expected]
    assert [int(row["timestamp"].timestamp() * 1000 + 0.5) for row in rows] == [r.timestamp for r in expected]
    got = [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in rows]
    assert got == [[(name, value) for name, value in r.headers] for r in expected]
    assert {row["topic"] for row in rows} == {"orders"}
    assert {row["partition"] for row in rows} == {3}
    assert {row["producerId"] for row in rows} == {7}


def test_a_damaged_batch_is_refused() -> None:
    data = bytearray(build([([(b"k", b"v", [], 1)], 0, 0)]))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="orders-3 at offset 0"):
        decode(bytes(data))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_lies_inside_a_batch_are_refused(data) -> None:  # type: ignore[no-untyped-def]
    """Any byte of a payload may lie while its checksum is right: a refusal or other rows, never a crash."""
    from crc32c import crc32c

    raw = bytearray(build([([(b"key", b"value", [("h", b"1")], 5)] * 3, 0, 0)]))
    at = data.draw(st.integers(61, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    raw[17:21] = crc32c(raw[21:]).to_bytes(4, "big")
    try:
        table = decode(bytes(raw))
    except CorruptBatch:
        return
    assert table is None or table.num_rows <= parse_header(raw).record_count


def test_damaged_batches_become_rows_where_that_is_asked_for() -> None:
    """One with a wrong checksum, one whose checksum is right and whose records are not; the others are read."""
    from crc32c import crc32c

    sound = [(b"k", b"v", [], 1)] * 2
    data = bytearray(build([(sound, 0, 0)] * 4))
    second, third = (pos for pos, header in iter_headers(data) if header.base_offset in (2, 4))
    size = third - second
    data[third - 2] ^= 1
    data[third + 61] = 0
    data[third + 17 : third + 21] = crc32c(data[third + 21 : third + size]).to_bytes(4, "big")
    options = SourceOptions("h:1", report_corrupt=True, batch_info=True)
    wanted = OffsetRange("orders", 3, 1, 8)
    fetched = _Fetched(wanted, RawBatches(memoryview(bytes(data)), 8, 8, 0, []))
    decoder = _make_decoder(options, wanted)
    tables = [*_decode(decoder, fetched, options), *decoder.take(1, 8)]
    rows = [row for table in tables for row in table.to_pylist()]
    assert [(row["offset"], row["value"]) for row in rows] == [(1, b"v"), (2, None), (4, None), (6, b"v"), (7, b"v")]
    assert [row["corrupt"] is None for row in rows] == [True, False, False, True, True]
    assert "does not match its checksum" in rows[1]["corrupt"]
    assert "malformed" in rows[2]["corrupt"]
    assert rows[2]["producerId"] == 7
    with pytest.raises(CorruptBatch):
        list(_decode(_make_decoder(options._replace(report_corrupt=False), wanted), fetched, SourceOptions("h:1")))
