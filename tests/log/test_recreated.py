"""A log that takes the name of one that is gone inherits nothing from it, also after a crash."""

import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.sim.disk import CrashingDisk
from tests.log.logs import append, open_log, open_store, values

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
