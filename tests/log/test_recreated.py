"""A log that takes the name of one that is gone inherits nothing from it, also after a crash."""

import contextlib
import threading

import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.errors import ErrorCode
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.logs import NOW_MS, append, batch, code_of, open_log, open_store, values

NEW_ID = b"a new topic's id"


def write_old(store: LogStore) -> PartitionLog:
    """A log of which every checkpoint speaks."""
    log = open_log(store)
    for number in range(5):
        append(log, f"old {number}")
    log.flush()
    log.high_watermark = 5
    log.delete_records_before(3)
    directory = store.directories[0]
    directory.cleaned_offsets[log.name] = 4
    directory.write_checkpoints()
    directory.write_cleaned_offsets()
    return log


def open_new(store: LogStore) -> PartitionLog:
    return store.open("t", 0, NEW_ID, LogConfig())


def write_new(store: LogStore) -> None:
    log = open_new(store)
    append(log, "new 0", "new 1")
    log.flush()
    assert log.synced_end_offset == 2


def check(disk: CrashingDisk) -> None:
    """The power is lost before the checkpoints are written again."""
    disk.crash()
    store = open_store(disk)
    log = open_new(store)
    assert log.high_watermark == 0
    assert (values(log), log.log_start_offset, log.lost_records) == ([b"new 0", b"new 1"], 0, False)
    assert store.directories[0].cleaned_offsets == {}


@pytest.mark.parametrize("seed", range(6))
def test_a_deleted_topic_leaves_nothing_to_the_next_of_its_name(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    store.delete(write_old(store))
    write_new(store)
    check(disk)


@pytest.mark.parametrize("seed", range(6))
def test_nor_when_the_broker_died_in_between(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    store.delete(write_old(store))
    disk.sync_dir("/data")
    disk.crash()
    write_new(open_store(disk))
    check(disk)


def test_nor_does_a_directory_that_was_moved_aside() -> None:
    disk = CrashingDisk()
    write_old(open_store(disk))
    disk.crash()
    write_new(open_store(disk))
    check(disk)


def test_what_nobody_knows_of_costs_no_checkpoints() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    write_old(store)
    before = disk.operations
    open_log(store, partition=1).load()
    assert disk.operations == before


@pytest.mark.parametrize("seed", range(6))
def test_a_full_disk_refuses_its_records_but_not_the_log(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    store.delete(write_old(store))
    disk.capacity_bytes = disk.used_bytes()
    log = open_new(store)
    log.load()
    assert (log.end_offset, log.log_start_offset) == (0, 0)
    assert code_of(log.append_as_leader(batch("no room"), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes = None
    write_new(store)
    check(disk)


def test_its_first_record_waits_for_checkpoints_that_are_being_written() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    store.delete(write_old(store))
    disk.capacity_bytes = disk.used_bytes()
    open_new(store).load()
    disk.capacity_bytes = None
    begun, go_on = threading.Event(), threading.Event()

    def slow(path: str) -> None:
        if "checkpoint" in path and threading.current_thread() is writer:
            begun.set()
            assert go_on.wait(20)

    def write() -> None:
        with contextlib.suppress(PowerLoss):  # it came too late
            store.write_checkpoints()

    writer = threading.Thread(target=write)
    disk.before_sync = slow
    writer.start()
    assert begun.wait(20)
    timer = threading.Timer(0.3, go_on.set)
    timer.start()
    write_new(store)
    disk.before_sync = None
    check(disk)
    writer.join()


@pytest.mark.parametrize("seed", range(40, 100))
def test_what_a_crash_brings_back_of_a_deleted_log_is_not_the_new_ones(seed: int) -> None:
    """Some of its files may be removed for good before its directory has its new name for good."""
    disk = CrashingDisk(seed)
    store = open_store(disk)
    log = open_log(store)
    append(log, "old")
    log.flush()
    store.delete(log)
    disk.crash()
    assert values(open_new(open_store(disk))) == []
