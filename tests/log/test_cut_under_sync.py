"""A log is cut while a sync of it is under way: nothing that went comes back, and nothing that stayed is lost."""

from penstock.log.config import LogConfig
from penstock.sim.disk import CrashingDisk
from tests.log.logs import append, new_log, values


def test_a_segment_that_is_cut_off_under_a_sync_fails_nothing() -> None:
    """Its file was not open any more when the sync was planned, and is gone when it is the segment's turn."""
    disk = CrashingDisk()
    log = new_log(LogConfig(segment_bytes=100), disk, max_open_files=1)
    for number in range(4):
        append(log, f"{number}")
    plan = log.plan_sync()
    assert plan is not None
    assert [file is None for _, _, file in plan.segments] == [True, True, True, False]
    assert log.truncate_to(1) is None
    plan.run(disk)
    log.complete_sync(plan)
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
