"""A log that was cut below its recovery point ends there by right, also after a crash; damage is still damage."""

import errno
from typing import Any

import pytest

from penstock.log.checkpoints import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, read_offsets
from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.log.truncation_journal import TruncationJournal
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.sim.disk import CrashingDisk
from tests.log.logs import append, open_log, open_store, values

JOURNAL = "/data/truncations"


def sync(log: PartitionLog) -> None:
    plan = plan_sync(log)
    assert plan is not None
    plan.run(log.directory.disk)
    complete_sync(plan)


def write_synced(store: LogStore, count: int = 5) -> PartitionLog:
    """Records up to a recovery point that is on disk."""
    log = open_log(store)
    log.load()
    for number in range(count):
        append(log, f"v{number}")
    sync(log)
    store.directories[0].write_checkpoints()
    return log


def open_after_crash(disk: CrashingDisk) -> PartitionLog:
    disk.crash()
    log = open_log(open_store(disk))
    log.load()
    return log


@pytest.mark.parametrize("others", [0, 3])
def test_a_cut_log_is_not_taken_for_damaged(others: int) -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = write_synced(store)
    for number in range(others):
        other = open_log(store, topic=f"other{number}")
        other.load()
        append(other, "v")
        sync(other)
        store.directories[0].write_checkpoints()
        other.truncate_to(0)
    log.truncate_to(2)
    assert TruncationJournal(disk, "/data").read()["t-0"] == 2
    append(log, "never synced")
    again = open_after_crash(disk)
    assert (values(again), again.lost_records) == ([b"v0", b"v1"], False)


def test_without_the_journal_it_would_be() -> None:
    disk = CrashingDisk()
    write_synced(open_store(disk)).truncate_to(2)
    disk.remove(JOURNAL)
    disk.sync_dir("/data")
    assert open_after_crash(disk).lost_records


def test_a_cut_above_the_recovery_point_needs_no_entry() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = write_synced(store)
    append(log, "v5")
    log.truncate_to(5)
    assert not disk.exists(JOURNAL)
    assert not open_after_crash(disk).lost_records


def test_damage_is_noticed_again_once_the_checkpoints_are_written() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = write_synced(store)
    log.truncate_to(2)
    append(log, "v2", "and more")
    sync(log)
    store.directories[0].write_checkpoints()
    assert TruncationJournal(disk, "/data").read() == {}
    file = disk.open("/data/t-0/00000000000000000000.log")
    file.truncate(file.size() - 3)  # synced bytes that are gone
    file.sync()
    again = open_after_crash(disk)
    assert (values(again), again.lost_records) == ([b"v0", b"v1"], True)


def test_half_an_entry_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()
    disk.make_dirs("/data")
    journal = TruncationJournal(disk, "/data")
    journal.add("a-0", 7)
    journal.add("a-0", 5)
    journal.add("b-topic-12", 9)
    file = disk.open(JOURNAL)
    file.write_at(file.size(), (b"c-0 1",))
    again = TruncationJournal(disk, "/data")
    assert again.read() == {"a-0": 5, "b-topic-12": 9}
    assert "half an entry" in caplog.text


def test_the_next_entry_takes_the_place_of_half_an_entry() -> None:
    disk = CrashingDisk()
    disk.make_dirs("/data")
    TruncationJournal(disk, "/data").add("a-0", 7)
    file = disk.open(JOURNAL)
    file.write_at(file.size(), (b"c-0 1",))
    again = TruncationJournal(disk, "/data")
    again.read()
    again.add("b-0", 3)
    again.add("b-1", 4)
    assert TruncationJournal(disk, "/data").read() == {"a-0": 7, "b-0": 3, "b-1": 4}


def test_a_damaged_entry_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()
    disk.make_dirs("/data")
    disk.open(JOURNAL, create=True).write_at(0, (b"a-0 7\nc-0 1b-0 3\nb-0 x\nb-1 4\n",))
    assert TruncationJournal(disk, "/data").read() == {"a-0": 7, "b-1": 4}
    assert "c-0 1b-0 3" in caplog.text


@pytest.mark.parametrize("seed", range(5))
def test_the_name_becomes_durable_though_the_first_entry_found_no_room(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    log = write_synced(store)
    disk.capacity_bytes = disk.used_bytes()
    assert log.truncate_to(4) is None
    assert disk.exists(JOURNAL)
    disk.capacity_bytes = None
    assert log.truncate_to(2) is None
    again = open_after_crash(disk)
    assert (values(again), again.lost_records) == ([b"v0", b"v1"], False)


def test_a_full_disk_does_not_keep_a_log_from_being_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(CrashingDisk())
    log = write_synced(store)

    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(TruncationJournal, "add", no_room)
    assert log.truncate_to(2) is None
    assert values(log) == [b"v0", b"v1"]


def test_a_loss_that_is_accepted_is_written_before_the_next_segment() -> None:
    """And not before: a start that nobody acted upon must not hide it from the next."""
    disk = CrashingDisk()
    write_synced(open_store(disk))
    disk.crash()
    file = disk.open("/data/t-0/00000000000000000000.log")
    file.truncate(file.size() - 3)  # synced bytes that are gone
    file.sync()
    before = read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"]
    log = open_log(open_store(disk))
    log.load()
    assert log.lost_records
    log.directory.write_checkpoints()
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"] == before
    log.accept_loss()
    assert log.roll()
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"] == log.end_offset == 4


def test_checkpoints_that_are_written_while_a_log_is_loaded_know_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashingDisk()
    log = write_synced(open_store(disk))
    log.delete_records_before(3)
    log.directory.write_checkpoints()
    disk.crash()
    forget = LogDirectory.forget_found

    def meanwhile(directory: LogDirectory, name: str) -> None:
        forget(directory, name)
        directory.write_checkpoints()

    monkeypatch.setattr(LogDirectory, "forget_found", meanwhile)
    log = open_log(open_store(disk))
    log.load()
    assert read_offsets(disk, f"/data/{LOG_START_OFFSET_FILE}")["t-0"] == log.log_start_offset == 3
