"""A log that takes the name of one that is gone inherits nothing from it, also after a crash."""

import contextlib
import errno
import threading

import pytest

from penstock.log.checkpoints import RECOVERY_POINT_FILE, read_offsets
from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.errors import ErrorCode
from penstock.model.ids import format_uuid
from penstock.records.reader import read_all_records
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.logs import NOW_MS, TOPIC_ID, append, batch, code_of, delete_unnoted, open_log, open_store, values

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
    delete_unnoted(store, write_old(store))
    write_new(store)
    check(disk)


@pytest.mark.parametrize("seed", range(6))
def test_nor_when_the_broker_died_in_between(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    delete_unnoted(store, write_old(store))
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
    delete_unnoted(store, write_old(store))
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
    delete_unnoted(store, write_old(store))
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


def write_replica(store: LogStore) -> PartitionLog:
    """Of a topic that lives on when this one moves to another broker."""
    log = open_log(store)
    for _ in range(5):
        append(log)
    log.flush()
    store.write_checkpoints()
    return log


def check_not_blamed(disk: CrashingDisk) -> None:
    """Many checkpoints later the replica comes back here, as a new one."""
    store = open_store(disk)
    store.write_checkpoints()
    store.close()
    log = open_log(open_store(disk))
    log.load()
    assert (log.end_offset, log.lost_records) == (0, False)


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_comes_back_is_not_blamed_for_what_was_removed(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    store.delete(write_replica(store))
    disk.crash()
    check_not_blamed(disk)


@pytest.mark.parametrize("seed", range(4))
def test_nor_if_the_process_ended_before_that_was_written_down(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    delete_unnoted(store, write_replica(store))
    disk.sync_dir("/data")
    disk.crash()
    check_not_blamed(disk)


@pytest.mark.parametrize("seed", range(4))
def test_nor_if_it_came_back_while_its_old_files_were_removed(seed: int) -> None:
    """And nobody had looked at it yet when the power was lost."""
    disk = CrashingDisk(seed)
    store = open_store(disk)
    delete_unnoted(store, write_replica(store))
    open_log(store)
    store.directories[0].remove_doomed()
    disk.sync_dir("/data")
    disk.crash()
    check_not_blamed(disk)


def test_wherever_the_power_goes_while_a_replica_is_removed_it_is_there_or_gone() -> None:
    ends = set()
    for operation in range(1, 60):
        disk = CrashingDisk(operation)
        store = open_store(disk)
        log = write_replica(store)
        disk.power_loss_at = disk.operations + operation
        with contextlib.suppress(PowerLoss):
            store.delete(log)
        disk.crash()
        again = open_log(open_store(disk))
        again.load()
        assert not again.lost_records, operation
        ends.add(again.end_offset)
    assert ends == {0, 5}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_was_removed_makes_room_on_a_full_disk_but_stays_on_a_broken_one(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LogDirectory) -> None:
        raise OSError(code, "refused")

    disk = CrashingDisk()
    store = open_store(disk)
    log = write_replica(store)
    monkeypatch.setattr(LogDirectory, "write_high_watermarks", refuse)
    store.delete(log)
    is_left = any(name.endswith("-delete") for name in disk.list_dir("/data"))
    assert is_left == (store.directories[0].failure is not None) == (code == errno.EIO)


@pytest.mark.parametrize("seed", range(4))
def test_nor_if_it_was_moved_aside_as_a_stray(seed: int) -> None:
    disk = CrashingDisk(seed)
    write_replica(open_store(disk))
    store = open_store(disk)
    for directory, name in store.strays():
        store.move_stray_aside(directory, name)
    disk.sync_dir("/data")
    disk.crash()
    check_not_blamed(disk)
    assert [name for name in disk.list_dir("/data") if name.endswith("-stray")]


def test_a_stray_of_old_does_not_excuse_a_loss() -> None:
    """The replica came back, and then its directory is lost: it must not lead as if it had never had anything."""
    disk = CrashingDisk()
    write_replica(open_store(disk))
    store = open_store(disk)
    for directory, name in store.strays():
        store.move_stray_aside(directory, name)
    log = write_replica(store)
    disk.remove_tree(log.path)
    again = open_log(open_store(disk))
    again.load()
    assert again.lost_records


def test_a_name_that_was_cut_to_fit_tells_of_no_partition() -> None:
    """Without its last digits it may be that of another one."""
    disk = CrashingDisk()
    store = open_store(disk)
    topic = "t" * (255 - len(f"-1.{format_uuid(TOPIC_ID)}-1-delete"))
    log = open_log(store, topic=topic, partition=1)
    append(log)
    log.flush()
    store.write_checkpoints()
    aside = store.directories[0].path_aside(f"{topic}-12", TOPIC_ID, "delete")
    assert aside == store.directories[0].path_aside(log.name, TOPIC_ID, "delete").replace("-2-delete", "-1-delete")
    disk.make_dirs(aside)
    disk.remove_tree(log.path)
    again = open_log(open_store(disk), topic=topic, partition=1)
    again.load()
    assert again.lost_records


def test_a_removal_that_comes_late_leaves_the_last_checkpoints_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They make the next start recover a log that nobody touched in this one; plain ones would call it clean."""
    disk = CrashingDisk(1)
    store = open_store(disk)
    write_replica(store)
    append(gone := open_log(store, topic="gone"))
    gone.flush()
    store.write_checkpoints()
    disk.crash()
    store = open_store(disk)
    delete_unnoted(store, open_log(store, topic="gone"))
    write = LogDirectory.write_checkpoints

    def close_before(directory: LogDirectory) -> None:
        monkeypatch.setattr(LogDirectory, "write_checkpoints", write)
        store.close()
        directory.write_checkpoints()

    monkeypatch.setattr(LogDirectory, "write_checkpoints", close_before)
    store.directories[0].remove_doomed()
    assert not [name for name in disk.list_dir("/data") if name.endswith("-delete")]
    assert dict(read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")) == {"t-0": 4}
    log = open_log(open_store(disk))
    log.load()
    assert (log.end_offset, log.lost_records) == (5, False)


INDEXED = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
OLD_VALUE, NEW_VALUE = "o" * 48, "n" * 20
"""One old record takes as many bytes as two new ones: where an old index says that a batch begins, a new one does."""


def test_a_log_deleted_while_it_is_recovered_leaves_no_index_to_the_next_of_its_name() -> None:
    assert len(batch(OLD_VALUE)) == len(batch(NEW_VALUE, NEW_VALUE))
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store, INDEXED)
    for _ in range(300):
        append(log, OLD_VALUE)
    log.flush()
    store.write_checkpoints()
    disk.crash()
    store = open_store(disk)
    log = open_log(store, INDEXED)

    def delete(path: str) -> None:
        """Closed segments have been looked at by now; what recovery has walked is about to be synced."""
        if path.endswith(".log"):
            disk.before_sync = None
            store.delete(log)

    disk.before_sync = delete
    log.load()
    assert log.is_deleted
    new = store.open("t", 0, NEW_ID, INDEXED)
    for _ in range(300):
        append(new, NEW_VALUE, NEW_VALUE)
    for segment in new.segments:
        segment.marks = None  # a shortcut only, which may be gone at any time
    for offset in range(new.end_offset):
        data = new.read_bytes(offset, 500)
        assert isinstance(data, bytes)
        assert read_all_records(data)[0].offset == offset - offset % 2
