"""What goes: by time, by size, by DeleteRecords; when files go; who may still read them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.log.config import LogConfig
from penstock.log.disk import OsDisk
from penstock.log.partition_log import PartitionLog
from penstock.log.reading import FileSpan
from penstock.model.errors import ErrorCode
from penstock.records.reader import read_all_records
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, append, code_of, new_log, open_log, open_store, values
from tests.waiting import eventually_async

_SMALL = {"segment_bytes": 200, "file_delete_delay_ms": 0}
"""Two batches of 70 bytes to a segment."""


def filled(config: LogConfig, count: int = 10, disk: CrashingDisk | None = None) -> PartitionLog:
    log = new_log(config, disk)
    for number in range(count):
        append(log, f"{number}", timestamp_ms=NOW_MS + number * 1000)
    log.flush()
    return log


def files(log: PartitionLog, suffix: str = ".log") -> list[int]:
    names = log.directory.disk.list_dir(log.path)
    return sorted(int(name[:20]) for name in names if name.endswith(suffix))


def test_by_time() -> None:
    log = filled(LogConfig(retention_ms=60_000, **_SMALL))
    assert log.apply_retention(NOW_MS + 61_000) == 0, "the first segment reaches to second 1"
    assert log.apply_retention(NOW_MS + 61_001) == 1
    assert (log.log_start_offset, log.local_log_start_offset) == (2, 2)
    assert log.apply_retention(NOW_MS + 65_001) == 2
    assert files(log) == [6, 8]
    assert files(log, ".index") == files(log, ".timeindex") == [6], "those of the active segment come when it closes"
    assert values(log) == [b"6", b"7", b"8", b"9"]
    assert log.read(5, 1000, 10) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_even_the_active_segment_expires() -> None:
    disk = CrashingDisk()
    config = LogConfig(retention_ms=60_000, **_SMALL)
    log = filled(config, disk=disk)
    log.apply_retention(NOW_MS + 1_000_000)
    log.flush()
    log.apply_retention(NOW_MS + 1_000_000)
    assert (log.log_start_offset, log.end_offset, log.size_bytes) == (10, 10, 0)
    assert files(log) == [10]
    again = new_log(config, disk)
    assert (again.log_start_offset, again.end_offset) == (10, 10), "offsets go on where they were"
    assert append(again, "next") == 10


def test_records_without_time_age_by_their_file() -> None:
    disk = CrashingDisk(now_ms=lambda: NOW_MS)
    log = new_log(LogConfig(retention_ms=1000, **_SMALL), disk)
    for _ in range(5):
        append(log, timestamp_ms=-1)
    log.flush()
    assert log.apply_retention(NOW_MS + 1000) == 0
    assert log.apply_retention(NOW_MS + 1001) == 2
    assert log.log_start_offset == 5


def test_by_size() -> None:
    log = filled(LogConfig(retention_bytes=300, retention_ms=-1, **_SMALL))
    assert log.size_bytes == 700
    assert log.apply_retention(NOW_MS) == 2, "what is left must not fall below the limit"
    assert (log.size_bytes, log.log_start_offset) == (420, 4)
    assert log.apply_retention(NOW_MS) == 0


def test_what_is_not_committed_stays() -> None:
    log = filled(LogConfig(retention_ms=0, **_SMALL))
    log.apply_retention(NOW_MS + 10**9, committed_end_offset=5)
    assert log.log_start_offset == 4


def test_whichever_comes_first() -> None:
    log = filled(LogConfig(retention_bytes=300, retention_ms=60_000, **_SMALL))
    log.apply_retention(NOW_MS + 66_500)
    assert log.log_start_offset == 6


@pytest.mark.parametrize("policy", [{"compact"}, {"compact", "delete"}])
def test_a_compacted_log_keeps_all_unless_delete_is_named_too(policy: set[str]) -> None:
    log = filled(LogConfig(retention_ms=1, cleanup_policy=frozenset(policy), **_SMALL))
    log.apply_retention(NOW_MS + 10_000_000)
    assert (log.log_start_offset > 0) == ("delete" in policy)


def test_unlimited_retention() -> None:
    log = filled(LogConfig(retention_ms=-1, retention_bytes=-1, **_SMALL))
    assert log.apply_retention(NOW_MS + 10**12) == 0


def test_delete_records() -> None:
    disk = CrashingDisk()
    config = LogConfig(**_SMALL)
    log = filled(config, disk=disk)
    assert log.delete_records_before(5) is None
    assert log.log_start_offset == 5
    assert files(log) == [4, 6, 8], "only whole segments go"
    assert values(log) == [b"5", b"6", b"7", b"8", b"9"]
    assert log.delete_records_before(3) is None
    assert log.log_start_offset == 5, "never backwards"
    assert code_of(log.delete_records_before(11)) is ErrorCode.OFFSET_OUT_OF_RANGE
    log.directory.write_checkpoints()
    disk.crash()
    again = new_log(config, disk)
    assert again.log_start_offset == 5, "the checkpoint keeps it"
    assert again.find_by_timestamp(0) == (NOW_MS + 5000, 5, 0)


def test_delete_all_records() -> None:
    log = filled(LogConfig(**_SMALL))
    assert log.delete_records_before(10) is None
    assert (log.log_start_offset, log.end_offset) == (10, 10)
    span = log.read(10, 1000, 10)
    assert isinstance(span, FileSpan)
    assert span.length == 0
    assert append(log) == 10


def test_segments_wait_for_the_snapshot_that_replaces_them() -> None:
    log = new_log(LogConfig(**_SMALL))
    for number in range(6):
        append(log, producer_id=1, producer_epoch=0, base_sequence=number)
    assert log.delete_records_before(6) is None
    assert files(log) == [0, 2, 4], "nothing is synced yet"
    log.flush()
    assert files(log) == [4]
    assert 4 in files(log, ".snapshot")


def expired_without_snapshot(config: LogConfig, disk: CrashingDisk, more: int = 0) -> PartitionLog:
    """All that was synced has expired, and the start is durable before the snapshot that replaces the segment is."""
    log = new_log(config, disk)
    append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0, timestamp_ms=NOW_MS + 5000)
    log.flush()
    log.apply_retention(NOW_MS + 100_000)
    for number in range(more):
        append(log, f"{number + 1}")
    assert (log.log_start_offset, files(log)) == (1, [0, 1])
    assert log.unsynced.waits(f"{1:020d}.snapshot")
    log.directory.write_log_start_offsets()
    return log


@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_segments_wait_for_that_snapshot_over_a_crash(how: str) -> None:
    disk = CrashingDisk()
    config = LogConfig(retention_ms=60_000, file_delete_delay_ms=0)
    expired_without_snapshot(config, disk)
    for _ in range(3):
        if how == "power loss":
            disk.crash()
        again = new_log(config, disk)
        assert (again.log_start_offset, again.end_offset) == (1, 1)
        assert again.producers.get(7) is not None
        again.apply_retention(NOW_MS + 100_000)
    again.flush()
    assert files(again) == [1]
    disk.crash()
    assert new_log(config, disk).producers.get(7) is not None


def test_a_segment_that_waited_over_a_crash_is_not_seen_and_goes() -> None:
    disk = CrashingDisk()
    config = LogConfig(retention_ms=60_000, file_delete_delay_ms=0)
    expired_without_snapshot(config, disk, more=2)
    log = new_log(config, disk)
    assert (log.log_start_offset, log.local_log_start_offset, log.end_offset) == (1, 1, 3)
    assert files(log) == [0, 1]
    assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)
    assert log.read(0, 1000, 3) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert values(log) == [b"1", b"2"]
    assert log.find_by_timestamp(0) == log.max_timestamp_offset() == (NOW_MS, 1, 0)
    assert log.find_by_timestamp(NOW_MS + 1) is None, "what is below the start has later times"
    assert log.leader_epochs.entries() == [(0, 1)]
    assert log.apply_retention(NOW_MS) == 1
    assert files(log) == [1]
    assert log.size_bytes == log.segments[0].size_bytes
    assert new_log(config, disk).producers.get(7) is not None


def test_a_start_finds_the_newest_snapshot_that_replaces_segments() -> None:
    """What lies before it goes, whichever other snapshots are missing."""
    disk = CrashingDisk()
    config = LogConfig(**_SMALL)
    log = filled(config, disk=disk)
    for base_offset in (2, 6):
        disk.remove(f"{log.path}/{base_offset:020d}.snapshot")
    log.log_start_offset = 7  # and it is killed before any file goes
    log.directory.write_checkpoints()
    again = new_log(config, disk)
    assert (again.log_start_offset, again.end_offset) == (7, 10)
    assert files(again) == [4, 6, 8]


def test_spans_outlive_their_segment(tmp_path: object) -> None:
    disk = OsDisk()
    store = open_store(disk, str(tmp_path), max_open_files=1)
    log = open_log(store, LogConfig(**_SMALL))
    for number in range(6):
        append(log, f"{number}")
    log.flush()
    spans = [log.read(offset, 1000, 6) for offset in (0, 2, 4)]
    log.delete_records_before(6)
    assert files(log) == [4]
    read = [record.value for span in spans if isinstance(span, FileSpan) for record in read_all_records(span.read())]
    assert read == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_files_go_late() -> None:
    async def scenario() -> None:
        disk = CrashingDisk()
        store = open_store(disk)
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            log = open_log(store, LogConfig(segment_bytes=200, file_delete_delay_ms=60_000))
            for number in range(6):
                append(log, f"{number}")
            await store.drain()
            log.delete_records_before(4)
            await eventually_async(lambda: files(log) == [4])
            deleted = [name for name in disk.list_dir(log.path) if name.endswith(".deleted")]
            assert sorted(name for name in deleted if ".log" in name) == [
                "00000000000000000000.log.deleted",
                "00000000000000000002.log.deleted",
            ]
            log.config = LogConfig(segment_bytes=200, file_delete_delay_ms=5)
            append(log, "6")
            await store.drain()
            log.delete_records_before(6)
            await eventually_async(
                lambda: len([n for n in disk.list_dir(log.path) if n.endswith(".log.deleted")]) == 2
            )
            await store.stop()
            store.close()
            assert not [name for name in disk.list_dir(log.path) if name.endswith(".deleted")]

    asyncio.run(scenario())
