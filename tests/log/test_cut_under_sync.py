"""A log is cut while a sync of it is under way: nothing that went comes back, and nothing that stayed is lost."""

import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.sim.disk import CrashingDisk
from tests.log.compacting import COMPACT, close_segment, compact, consume, end_transaction, put
from tests.log.logs import append, new_log, values

TXN_INDEX = f"{0:020d}.txnindex"


def test_a_segment_that_is_cut_off_under_a_sync_fails_nothing() -> None:
    """Its file was not open any more when the sync was planned, and is gone when it is the segment's turn."""
    disk = CrashingDisk()
    log = new_log(LogConfig(segment_bytes=100), disk, max_open_files=1)
    for number in range(4):
        append(log, f"{number}")
    plan = plan_sync(log)
    assert plan is not None
    assert [file is None for _, _, file in plan.segments] == [True, True, True, False]
    assert log.truncate_to(1) is None
    plan.run(disk)
    complete_sync(plan)
    append(log, "another")
    log.flush()
    assert (log.directory.failure, log.synced_end_offset) == (None, 2)
    disk.crash()
    assert values(new_log(LogConfig(segment_bytes=100), disk)) == [b"0", b"another"]


def test_a_segment_that_is_missing_when_it_is_synced_fails_the_directory() -> None:
    disk = CrashingDisk()
    log = new_log(LogConfig(segment_bytes=100), disk, max_open_files=1)
    append(log, "0")
    append(log, "1")
    disk.remove(f"{log.path}/{0:020d}.log")
    log.flush()
    assert log.directory.failure is not None
    assert log.synced_end_offset == 0


def test_a_snapshot_in_front_of_the_cut_stays() -> None:
    """It alone tells of the producers whose records retention takes away."""
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
    log.flush()
    assert log.roll()
    append(log, "1")
    append(log, "2")
    plan = plan_sync(log)
    assert plan is not None
    plan.run(disk)
    assert log.truncate_to(2) is None
    complete_sync(plan)
    log.flush()
    assert log.delete_records_before(1) is None
    assert [segment.base_offset for segment in log.segments] == [1]
    log.directory.write_checkpoints()
    disk.crash()
    again = new_log(disk=disk)
    assert (again.log_start_offset, again.end_offset) == (1, 2)
    assert again.producers.get(7) is not None


def test_a_snapshot_behind_the_cut_goes_though_the_log_is_longer_again() -> None:
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log, "0")
    append(log, "1", producer_id=7, producer_epoch=0, base_sequence=0)
    assert log.roll()
    plan = plan_sync(log)
    assert plan is not None
    assert log.truncate_to(1) is None
    plan.run(disk)
    append(log, "another")
    append(log, "more")
    complete_sync(plan)
    assert not [name for name in disk.list_dir(log.path) if name.endswith(".snapshot")]


def test_a_second_cut_under_a_sync_takes_nothing_from_a_snapshot_behind_the_first() -> None:
    """The sync wrote it after the first cut. Who is in it and not in the log has nothing written to repeat."""
    disk = CrashingDisk()
    log = new_log(disk=disk)
    append(log, "0")
    append(log, "gone", producer_id=7, producer_epoch=0, base_sequence=0)
    assert log.roll()
    plan = plan_sync(log)
    assert plan is not None
    assert log.truncate_to(1) is None
    plan.run(disk)
    for number in (1, 2):
        append(log, f"{number}")
    assert log.roll()
    append(log, "3", producer_id=8, producer_epoch=0, base_sequence=0)
    append(log, "4", producer_id=9, producer_epoch=0, base_sequence=0)
    assert log.truncate_to(4) is None
    assert [producer_id for producer_id, _ in log.producers.items()] == [8]
    complete_sync(plan)
    append(log, "again", producer_id=7, producer_epoch=0, base_sequence=0)
    assert values(log) == [b"0", b"1", b"2", b"3", b"again"]


def _transaction(log: PartitionLog, producer_id: int, value: str, *, commit: bool) -> None:
    append(log, value, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, producer_id, commit=commit)


def _log_without_room_for_an_aborted_transaction(disk: CrashingDisk) -> PartitionLog:
    log = new_log(disk=disk)
    _transaction(log, 6, "aborted", commit=False)
    append(log, "2")
    log.flush()
    append(log, "aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    disk.capacity_bytes = disk.used_bytes() + 90
    end_transaction(log, 7, commit=False)
    assert log.unsynced.waits(TXN_INDEX)
    return log


def _committed(disk: CrashingDisk, log: PartitionLog) -> list[bytes | None]:
    """What consumers see after a stop."""
    log.close()
    log.directory.write_checkpoints(closing=True)
    log.directory.write_clean_shutdown()
    again = new_log(disk=disk)
    return [record.value for record in consume(again, read_committed=True).records]


@pytest.mark.parametrize("sync", ["waits", "finds no room", "is under way"])
def test_an_aborted_transaction_that_was_cut_off_hides_no_other_one(sync: str) -> None:
    """The index of aborted transactions found no room, and waits to be written as a whole."""
    disk = CrashingDisk()
    log = _log_without_room_for_an_aborted_transaction(disk)
    plan = None if sync == "waits" else plan_sync(log)
    if plan is not None and sync == "finds no room":
        plan.run(disk)
        assert plan.no_space
    disk.capacity_bytes = None
    assert log.truncate_to(3) is None
    if plan is not None:
        if sync == "is under way":
            plan.run(disk)
        complete_sync(plan)
    _transaction(log, 7, "3", commit=True)
    assert _committed(disk, log) == [b"2", b"3"]


def test_an_aborted_transaction_that_waits_for_room_outlives_a_cut_behind_it() -> None:
    disk = CrashingDisk()
    log = _log_without_room_for_an_aborted_transaction(disk)
    disk.capacity_bytes = None
    append(log, "5")
    append(log, "6")
    assert log.truncate_to(6) is None
    assert _committed(disk, log) == [b"2", b"5"]


@pytest.mark.parametrize("cut", ["behind", "at its end"])
def test_the_index_of_a_segment_in_front_of_the_cut_is_left_to_compaction(cut: str) -> None:
    """Compaction takes an entry out before it takes the marker away: without one it would hide what follows."""
    disk = CrashingDisk()
    log = new_log(COMPACT, disk)
    put(log, ("a", "aborted"), producer_id=6, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, ("large", "x" * 400))  # which keeps the segments apart
    close_segment(log)
    end_transaction(log, 6, commit=False)
    put(log, ("a", "committed"), producer_id=6, producer_epoch=0, base_sequence=1, transactional=True)
    end_transaction(log, 6, commit=True)
    log.flush()
    cleaner = compact(log)
    put(log, ("a", "gone"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    disk.capacity_bytes = disk.used_bytes() + 90
    end_transaction(log, 7, commit=False)
    disk.capacity_bytes = None
    assert log.truncate_to(5) is None
    assert log.unsynced.waits(f"{2:020d}.txnindex")
    assert log.roll()
    put(log, ("b", "stays"))
    put(log, ("b", "goes"))
    plan = plan_sync(log)
    assert plan is not None
    plan.run(disk)
    assert log.truncate_to(6 if cut == "behind" else 5) is None
    log.roll()
    complete_sync(plan)
    assert log.aborted_transactions(0, 2) == [(6, 0)]
    compact(log, cleaner)
    log.flush()
    compact(log, cleaner)
    assert log.aborted_transactions(0, 2) == []
    log.close()
    assert not [name for name in disk.list_dir(log.path) if name.endswith(".txnindex")]


def test_a_segment_that_begins_anew_under_a_sync_has_no_aborted_transactions() -> None:
    disk = CrashingDisk()
    log = _log_without_room_for_an_aborted_transaction(disk)
    disk.capacity_bytes = None
    plan = plan_sync(log)
    assert plan is not None
    assert log.truncate_full_and_start_at(0) is None
    plan.run(disk)
    complete_sync(plan)
    _transaction(log, 6, "0", commit=True)
    assert _committed(disk, log) == [b"0"]


def test_a_transaction_that_is_aborted_while_the_index_is_written_stays_aborted() -> None:
    disk = CrashingDisk()
    log = _log_without_room_for_an_aborted_transaction(disk)
    disk.capacity_bytes = None
    plan = plan_sync(log)
    assert plan is not None
    _transaction(log, 8, "aborted", commit=False)
    plan.run(disk)
    complete_sync(plan)
    assert _committed(disk, log) == [b"2"]
