"""A log is cut while a full disk holds up its sync or its indexes: nothing that went comes back or is missed."""

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.log.config import LogConfig
from penstock.log.flush import GroupCommit
from penstock.log.partition_log import PartitionLog
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, append, new_log, open_log, open_store, values
from tests.waiting import eventually_async


def test_a_sync_without_room_brings_nothing_back_that_was_cut_meanwhile() -> None:
    disk = CrashingDisk()
    log = new_log(LogConfig(segment_bytes=100), disk)
    append(log, "0")
    log.flush()
    for number in (1, 2, 3):
        append(log, f"{number}")
    plan = plan_sync(log)
    assert plan is not None
    assert [segment.base_offset for segment in plan.closed] == [0, 1, 2]
    disk.capacity_bytes = disk.used_bytes()
    plan.run(disk)
    assert plan.no_space
    disk.capacity_bytes = None
    assert log.truncate_to(1) is None
    complete_sync(plan)
    assert append(log, "another", producer_id=7, producer_epoch=0, base_sequence=0) == 1
    log.flush()
    assert log.directory.failure is None
    assert log.synced_end_offset == 2
    snapshots = [name for name in disk.list_dir(log.path) if name.endswith(".snapshot")]
    assert snapshots in ([], ["00000000000000000001.snapshot"])


@pytest.mark.parametrize("room", range(0, 60, 4))
@pytest.mark.parametrize("offset", [1, 3, 5])
def test_a_cut_needs_no_room_for_indexes(room: int, offset: int) -> None:
    disk = CrashingDisk()
    config = LogConfig(index_interval_bytes=0)
    log = new_log(config, disk)
    for number in range(6):
        append(log, f"{number}", timestamp_ms=NOW_MS + number)
    log.flush()
    disk.capacity_bytes = disk.used_bytes() + room
    refusal = log.truncate_to(offset)
    assert log.directory.failure is None
    disk.capacity_bytes = None
    expected = [b"%d" % number for number in range(offset if refusal is None else 6)]
    assert values(log) == expected
    append(log, "next")
    assert values(log) == [*expected, b"next"]
    log.flush()
    disk.crash()
    assert values(new_log(config, disk)) == [*expected, b"next"]


def test_a_stop_does_not_wait_for_a_sync_that_will_never_be(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = 0
    request = GroupCommit.request

    def count(commit: GroupCommit, log: PartitionLog, upto_offset: int | None = None) -> None:
        nonlocal requests
        request(commit, log, upto_offset)
        requests += 1

    monkeypatch.setattr(GroupCommit, "request", count)

    async def live() -> None:
        disk = CrashingDisk()
        store = open_store(disk, sync_workers=1)
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            log = open_log(store, LogConfig(segment_bytes=100))
            append(log, "0")
            await eventually_async(lambda: log.synced_end_offset == 1)
            append(log, "1")
            disk.capacity_bytes = disk.used_bytes()
            await eventually_async(lambda: log.lacks_room)
            log.directory.fail(OSError(errno.EIO, "the disk is broken"))
            before = requests
            await eventually_async(lambda: requests > before)  # what found no room is tried again
            await asyncio.wait_for(store.stop(), 5)

    asyncio.run(live())
