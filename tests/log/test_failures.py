"""Disks that are full, nearly full, or broken."""

import contextlib
import errno

import pytest

from penstock.log.config import LogConfig
from penstock.log.errors import NoRoom
from penstock.model.errors import ErrorCode, Refusal
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, TOPIC_ID, append, batch, code_of, new_log, open_log, open_store, values


def test_a_full_disk_refuses_the_append_and_nothing_else_happens() -> None:
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log, "a")
    path = log.segments[0].path + ".log"
    size = disk.size(path)
    disk.capacity_bytes = disk.used_bytes() + 30
    refusal = log.append_as_leader(batch("too much"), 0, NOW_MS)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.code.retriable) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
    assert "no space" in refusal.message
    assert disk.size(path) == size, "what was half written is gone"
    assert values(log) == [b"a"], "reading goes on"
    disk.capacity_bytes = None
    assert append(log, "b") == 1
    log.flush()
    disk.crash()
    assert values(new_log(disk=disk)) == [b"a", b"b"]


@pytest.mark.parametrize("room", range(0, 120, 7))
def test_a_disk_that_fills_up_anywhere_in_first_append_or_roll(room: int) -> None:
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=150, index_interval_bytes=0)
    log = new_log(config, disk)
    for number in range(4):
        disk.capacity_bytes = disk.used_bytes() + room
        refused = log.append_as_leader(batch(f"{number}"), 0, NOW_MS)
        disk.capacity_bytes = None
        if isinstance(refused, Refusal):
            assert append(log, f"{number}") == number
    assert values(log) == [b"0", b"1", b"2", b"3"]
    log.flush()
    assert log.synced_end_offset == 4
    assert values(new_log(config, disk)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("room", range(0, 700, 35))
def test_recovery_on_a_full_disk_breaks_nothing(room: int) -> None:
    """It does with what room there is, or is tried again; nothing is lost, and the directory has not failed."""
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=300, index_interval_bytes=0)
    log = new_log(config, disk)
    for number in range(12):
        append(log, f"{number}", epoch=number // 5)
    log.flush()
    expected = values(log)
    disk.crash()
    disk.capacity_bytes = disk.used_bytes() + room
    log = new_log(config, disk)
    with contextlib.suppress(NoRoom):
        log.load()
        assert values(log) == expected, "what could be recovered can be read"
    assert log.directory.failure is None
    disk.capacity_bytes = None
    assert values(log) == expected
    assert append(log, "after", epoch=3) == 12
    log.flush()
    disk.crash()
    again = new_log(config, disk)
    assert values(again) == [*expected, b"after"]
    assert again.leader_epochs.entries() == log.leader_epochs.entries()


@pytest.mark.parametrize("room", range(-40, 300, 10))
def test_a_snapshot_that_found_no_room_in_recovery_is_written_later(room: int) -> None:
    """Retention takes away what else tells of the producers."""
    disk = CrashingDisk()
    config = LogConfig(file_delete_delay_ms=0)
    log = new_log(config, disk)
    append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
    log.roll()
    append(log, "1")
    log.flush()
    disk.crash()
    disk.capacity_bytes = disk.used_bytes() + room
    log = new_log(config, disk)
    with contextlib.suppress(NoRoom):
        log.load()
    disk.capacity_bytes = None
    append(log, "2")
    log.flush()
    assert log.delete_records_before(1) is None
    assert [segment.base_offset for segment in log.segments] == [1]
    log.directory.write_checkpoints()
    disk.crash()
    again = new_log(config, disk)
    assert (again.log_start_offset, again.end_offset) == (1, 3)
    assert again.producers.get(7) is not None


@pytest.mark.parametrize("room", range(-200, 300, 20))
@pytest.mark.parametrize("then", ["power loss", "another attempt"])
def test_recovery_on_a_full_disk_keeps_the_snapshot_that_alone_tells_of_a_producer(room: int, then: str) -> None:
    disk = CrashingDisk()
    config = LogConfig(file_delete_delay_ms=0, index_interval_bytes=1)
    log = new_log(config, disk)
    append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
    log.roll()
    for number in range(1, 20):
        append(log, f"{number}")
    log.flush()
    assert log.delete_records_before(1) is None
    assert [segment.base_offset for segment in log.segments] == [1]
    log.directory.write_checkpoints()
    disk.crash()
    disk.capacity_bytes = disk.used_bytes() + room
    log = new_log(config, disk)
    with contextlib.suppress(NoRoom):
        log.load()
    disk.capacity_bytes = None
    if then == "power loss":
        disk.crash()
        log = new_log(config, disk)
    assert (log.log_start_offset, log.end_offset) == (1, 20)
    assert log.producers.get(7) is not None


@pytest.mark.parametrize("room", range(0, 300, 30))
@pytest.mark.parametrize("offset", [0, 1, 2, 5])
def test_a_log_on_a_full_disk_is_cut_or_stays_as_it_was(room: int, offset: int) -> None:
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=150)
    log = new_log(config, disk)
    for number in range(6):
        append(log, f"{number}")
    log.flush()
    disk.capacity_bytes = disk.used_bytes() + room
    refusal = log.truncate_full_and_start_at(7) if offset == 0 else log.truncate_to(offset)
    assert log.directory.failure is None
    expected = [b"%d" % number for number in range(6)]
    if refusal is None:
        expected = expected[:offset]
    assert values(log) == expected
    disk.capacity_bytes = None
    assert append(log, "next") == (7 if offset == 0 and refusal is None else len(expected))
    log.flush()
    disk.crash()
    assert values(new_log(config, disk)) == [*expected, b"next"]


def test_a_close_without_room_is_not_a_clean_one() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store)
    append(log, "a")
    log.flush()
    disk.capacity_bytes = disk.used_bytes()
    store.close()
    disk.capacity_bytes = None
    again = open_store(disk)
    assert not again.directories[0].was_clean
    assert values(open_log(again)) == [b"a"]


def test_a_broken_disk_fails_the_directory() -> None:
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log)
    disk.write_error = errno.EIO
    assert code_of(log.append_as_leader(batch("v"), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.write_error = None
    refusal = log.append_as_leader(batch("v"), 0, NOW_MS)
    assert code_of(refusal) is ErrorCode.KAFKA_STORAGE_ERROR, "never again until a restart"
    assert "Repair the disk and restart" in refusal.message  # type: ignore[union-attr]


def test_a_failed_flush_fails_the_directory() -> None:
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log)
    disk.sync_error = errno.EIO
    log.flush()
    assert log.synced_end_offset == 0
    assert log.directory.failure is not None


def test_a_directory_that_cannot_be_read_leaves_the_others_alone() -> None:
    disk = CrashingDisk()
    disk.make_dirs("/")
    disk.open("/bad", create=True)  # a file where a directory must be
    store = open_store(disk, "/bad", "/good")
    assert [directory.failure is None for directory in store.directories] == [False, True]
    log = open_log(store)
    assert log.directory.path == "/good"
    assert append(log) == 0


def test_appends_are_refused_above_the_usage_limit_until_there_is_room() -> None:
    disk = CrashingDisk()
    store = open_store(disk, max_usage=0.9)
    log = open_log(store)
    append(log, "x" * 500)
    disk.capacity_bytes = disk.used_bytes() + 10
    store.check_usage()
    refusal = log.append_as_leader(batch("v"), 0, NOW_MS)
    assert code_of(refusal) is ErrorCode.KAFKA_STORAGE_ERROR
    assert "log.dir.max.usage" in refusal.message  # type: ignore[union-attr]
    assert values(log) == [b"x" * 500]
    disk.capacity_bytes = disk.used_bytes() * 10
    store.check_usage()
    assert append(log) == 1


def test_retention_works_on_a_full_disk() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store, LogConfig(segment_bytes=200, retention_ms=1000))
    for number in range(8):
        append(log, timestamp_ms=NOW_MS - 100_000 + number)
    log.flush()
    disk.capacity_bytes = disk.used_bytes()
    assert log.apply_retention(NOW_MS) > 0
    assert disk.used_bytes() < disk.capacity_bytes
    assert store.directories[0].failure is None
    assert len(log.segments) <= 2


def test_checkpoints_wait_for_room() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    append(store.open("t", 0, TOPIC_ID, LogConfig()))
    disk.capacity_bytes = disk.used_bytes()
    store.write_checkpoints()
    assert store.directories[0].failure is None
    disk.capacity_bytes = None
    store.write_checkpoints()
    assert disk.exists("/data/recovery-point-offset-checkpoint")


@pytest.mark.parametrize("offset", [1, 2])
def test_a_log_that_is_damaged_where_it_is_to_be_cut_is_given_up(offset: int) -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store)
    for number in range(3):
        append(log, f"{number}")
    assert log.roll()
    append(log, "behind")
    store.close()
    log = open_log(open_store(disk))  # which does not remember where its batches begin
    assert log.end_offset == 4
    disk.flip_bit(f"{log.path}/{0:020d}.log", len(batch("0")) + 16)  # the format version of the second batch
    assert code_of(log.truncate_to(offset)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.fault is not None
    assert log.directory.failure is None
    assert log.end_offset == 4, "nothing was cut"
    assert code_of(log.read(0, 1, 1)) is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("origin", ["leader", "coordinator"])
@pytest.mark.parametrize("room", range(0, 500, 20))
def test_batches_that_come_together_are_written_together(room: int, origin: str) -> None:
    """Who is told that there was no room takes none of them for written."""
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=300, index_interval_bytes=0)
    log = new_log(config, disk)
    append(log, "0")
    append(log, "1")
    log.flush()
    both = batch("2", base_offset=2, leader_epoch=0) + batch("3" * 40, base_offset=3, leader_epoch=0)
    disk.capacity_bytes = disk.used_bytes() + room
    if origin == "leader":
        refused = log.append_as_follower(both)
    else:
        refused = log.append_as_leader(both, 0, NOW_MS, origin="coordinator")
    disk.capacity_bytes = None
    if isinstance(refused, Refusal):
        assert (log.end_offset, values(log)) == (2, [b"0", b"1"])
    else:
        assert (log.end_offset, values(log)) == (4, [b"0", b"1", b"2", b"3" * 40])


@pytest.mark.parametrize("room", range(0, 500, 20))
def test_a_follower_is_told_how_much_found_room(room: int) -> None:
    """Where not even a segment holds all that came."""
    disk = CrashingDisk()
    log = new_log(LogConfig(segment_bytes=100), disk)
    append(log, "0")
    log.flush()
    sent = b"".join(bytes(batch(f"{n}", base_offset=n, leader_epoch=0)) for n in (1, 2, 3))
    disk.capacity_bytes = disk.used_bytes() + room
    result = log.append_as_follower(sent)
    disk.capacity_bytes = None
    assert log.end_offset == (1 if isinstance(result, Refusal) else result.end_offset)


@pytest.mark.parametrize("room", range(0, 600, 20))
def test_what_a_coordinator_writes_is_whole_though_no_segment_holds_it(room: int) -> None:
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=200, index_interval_bytes=0)
    log = new_log(config, disk)
    append(log, "0")
    log.flush()
    sent = batch("1" * 60) + batch("2" * 60) + batch("3" * 60)
    disk.capacity_bytes = disk.used_bytes() + room
    refused = log.append_as_leader(sent, 0, NOW_MS, origin="coordinator")
    disk.capacity_bytes = None
    expected = [b"0"] if isinstance(refused, Refusal) else [b"0", b"1" * 60, b"2" * 60, b"3" * 60]
    assert (log.end_offset, values(log)) == (len(expected), expected)
    append(log, "next")
    log.flush()
    disk.crash()
    assert values(new_log(config, disk)) == [*expected, b"next"]


def test_a_batch_that_is_too_large_keeps_those_before_it_out_too() -> None:
    log = new_log(LogConfig(segment_bytes=200))
    append(log, "0")
    refused = log.append_as_leader(batch("1") + batch("2" * 300), 0, NOW_MS, origin="coordinator")
    assert code_of(refused) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert values(log) == [b"0"]
