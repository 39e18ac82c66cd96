"""The hand-written loops over records, against the reader that builds them."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.compaction.record_scan import append_rebased, scan_bounds, scan_keys
from penstock.records.batch import HEADER_BYTES, CorruptBatch
from penstock.records.builder import build_batch
from penstock.records.reader import read_records

NOW_MS = 1_700_000_000_000

# Lengths around every place where the length of a length changes.
LENGTHS = st.sampled_from([0, 1, 50, 63, 64, 65, 127, 128, 8100, 8191, 8192, 20_000]) | st.integers(0, 300)
KEYS = st.none() | LENGTHS.map(lambda length: b"k" * length)
VALUES = st.none() | LENGTHS.map(lambda length: b"v" * length)
RECORDS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=12)


def payload(records: list[tuple[bytes | None, bytes | None]]) -> tuple[bytes, bytes]:
    batch = bytes(build_batch(records, timestamp_ms=NOW_MS))
    return batch, batch[HEADER_BYTES:]


@settings(max_examples=150, deadline=None)
@given(RECORDS)
def test_keys_tombstones_and_bounds_are_those_of_the_records(
    records: list[tuple[bytes | None, bytes | None]],
) -> None:
    batch, body = payload(records)
    scanned = scan_keys(body, len(records))
    expected = read_records(batch)
    assert scanned.keys == [record.key or b"" for record in expected]
    assert scanned.tombstones == [number for number, record in enumerate(expected) if record.value is None]
    assert scanned.keyless == [number for number, record in enumerate(expected) if record.key is None]
    bounds = scan_bounds(body, len(records))
    assert (bounds.starts[0], bounds.starts[-1]) == (0, len(body))
    copied = bytearray()
    for start, delta in zip(bounds.starts, bounds.timestamp_deltas, strict=False):
        append_rebased(copied, body, start, delta)
    assert copied == body


@settings(max_examples=300, deadline=None)
@given(RECORDS, st.data())
def test_damage_is_told_and_nothing_else_happens(
    records: list[tuple[bytes | None, bytes | None]], data: st.DataObject
) -> None:
    body = bytearray(payload(records)[1])
    body[data.draw(st.integers(0, min(len(body), 40) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(CorruptBatch):
        scan_keys(bytes(body), len(records))
        assert scan_bounds(bytes(body), len(records)).starts[-1] == len(body), "what one accepts the other can walk"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_count_is_damage(count: int) -> None:
    body = payload([(b"a", b"1"), (b"b", b"2" * 100)])[1]
    with pytest.raises(CorruptBatch):
        scan_keys(body, count)
