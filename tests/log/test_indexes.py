"""Offset and time index files: Kafka's bytes, lookups against brute force, entries in memory and on disk alike."""

import struct
from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.config import LogConfig
from penstock.log.offset_index import FLUSH_ENTRIES, IndexCache, OffsetIndex, decode_entries, encode_entries
from penstock.log.time_index import TimeIndex, decode_all, encode_entry, floor_offset, read_last_entry
from penstock.records.batch import iter_headers
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, append, new_log


def test_offset_entries_are_kafkas() -> None:
    content = encode_entries(array("i", [5, 9]), array("i", [0, 4100]))
    assert content == struct.pack(">iiii", 5, 0, 9, 4100)
    assert decode_entries(content + b"\0\0\0").offsets == array("i", [5, 9]), "a torn entry is left out"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 500)), max_size=40), st.sets(st.integers(0, 39)))
def test_lookups_agree_wherever_the_entries_are(steps: list[tuple[int, int]], flushes: set[int]) -> None:
    disk = CrashingDisk()
    cache = IndexCache(disk)
    index = OffsetIndex("/index")
    entries: list[tuple[int, int]] = [(-1, 0)]
    for number, (offset, position) in enumerate(steps):
        entries.append((entries[-1][0] + offset, entries[-1][1] + position))
        index.append(*entries[-1])
        if number in flushes:
            index.flush(disk, cache)
        for probe in (0, entries[-1][0], entries[len(entries) // 2][0] + 1):
            expected = max((p for o, p in entries if o <= probe), default=0)
            assert index.floor_by_offset(probe, cache) == expected
        for probe in (0, entries[-1][1], entries[len(entries) // 2][1] + 1):
            assert index.floor_by_position(probe, cache) == max(p for _, p in entries if p <= probe)
    assert len(index) == len(steps)
    index.flush(disk, cache)
    assert decode_entries(disk.open("/index").read_at(0, 10_000)) == decode_entries(
        b"".join(struct.pack(">ii", *entry) for entry in entries[1:])
    )


def test_time_index() -> None:
    disk = CrashingDisk()
    index = TimeIndex("/time")
    for timestamp, offset in [(100, 0), (90, 1), (100, 2), (250, 5), (300, 9)]:
        index.append_if_newer(timestamp, offset)
        if timestamp == 250:
            index.flush(disk)
    content = index.content(disk)
    assert decode_all(content) == [(100, 0), (250, 5), (300, 9)], "timestamps only ever grow"
    assert content[:12] == encode_entry(100, 0) == struct.pack(">qi", 100, 0)
    assert [floor_offset(content, t) for t in (50, 100, 101, 250, 251, 300, 999)] == [0, 0, 0, 0, 5, 5, 9]
    index.flush(disk)
    assert read_last_entry(disk, "/time") == (300, 9)
    assert read_last_entry(disk, "/none") is None


def test_entries_of_a_log_name_the_last_offset_of_the_batch_at_their_position() -> None:
    log = new_log(LogConfig(index_interval_bytes=300))
    for number in range(60):
        append(log, *["v"] * (1 + number % 3), timestamp_ms=NOW_MS + (number * 7) % 50)
    log.close()
    segment = log.segments[0]
    disk = log.directory.disk
    batches = dict(iter_headers(disk.open(segment.path + ".log").read_at(0, 1 << 20)))
    offsets, positions = segment.read_offset_entries(disk)
    assert len(offsets) > 5
    assert [batches[position].last_offset for position in positions] == list(offsets)
    gaps = [b - a for a, b in zip([0, *positions], positions, strict=False)]
    assert min(gaps) > 300, "one entry every index.interval.bytes"
    by_last_offset = {header.last_offset: header for header in batches.values()}
    times = decode_all(segment.read_time_entries(disk))
    assert [by_last_offset[offset].max_timestamp for _, offset in times] == [timestamp for timestamp, _ in times]
    assert times[-1][0] == NOW_MS + 49, "complete: the largest timestamp is in it"


def test_entries_reach_the_file_in_blocks_and_stay_findable() -> None:
    log = new_log(LogConfig(index_interval_bytes=0))
    for number in range(FLUSH_ENTRIES * 2 + 10):
        append(log, timestamp_ms=NOW_MS + number)
    disk = log.directory.disk
    assert disk.size(log.segments[0].path + ".index") == FLUSH_ENTRIES * 2 * 8
    for offset in (0, 1, 500, 513, 1024, 1030):
        log.segments[0].marks = None
        data = log.read_bytes(offset, 1)
        assert isinstance(data, bytes)
        assert next(iter_headers(data))[1].base_offset == offset
