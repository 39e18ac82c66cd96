"""Group commit and flush modes: who syncs when, how many appends share a sync, and what a failed sync does."""

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.disk import OsDisk, OsFile
from penstock.log.store import LogStore
from penstock.log.sync import SyncPlan
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.log.write_back import IS_SUPPORTED, begin_write_back
from penstock.model.errors import ErrorCode
from penstock.model.lanes import IoPool
from penstock.model.ports import Disk
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, TOPIC_ID, append, batch, code_of, open_log, open_store, values
from tests.waiting import eventually_async


class Gate:
    """Holds syncs back until opened: a slow disk under the test's control."""

    def __init__(self, disk: CrashingDisk, only: str = "") -> None:
        self.event = threading.Event()
        self.waiting: list[str] = []
        self.only = only
        disk.before_sync = self._wait

    def _wait(self, path: str) -> None:
        if self.only in path:
            self.waiting.append(path)
            assert self.event.wait(20)

    def open(self) -> None:
        self.event.set()


@asynccontextmanager
async def running(disk: CrashingDisk, *paths: str, workers: int = 4) -> AsyncIterator[LogStore]:
    store = open_store(disk, *paths, sync_workers=workers)
    with ThreadPoolExecutor(workers) as pool:
        store.start(asyncio.get_running_loop(), pool)
        yield store


def on_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def test_on_a_real_disk_the_pools_lane_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a sync fails: then nothing is counted, and the directory has failed."""
    threads: list[str] = []
    failed: list[OSError] = []
    sync = OsFile.sync

    def watched(self: OsFile) -> None:
        threads.append(threading.current_thread().name)
        sync(self)

    def fails(self: OsFile) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    async def live() -> None:
        pool = IoPool(2)
        store = open_store(OsDisk(), str(tmp_path))
        store.on_directory_failed = lambda _, error: failed.append(error)
        store.start(asyncio.get_running_loop(), pool)
        log = open_log(store)
        monkeypatch.setattr(OsFile, "sync", watched)
        append(log, "a")
        await eventually_async(lambda: log.synced_end_offset == 1)
        assert set(threads) == {"penstock-sync-0"}
        monkeypatch.setattr(OsFile, "sync", fails)
        append(log, "b")
        await eventually_async(lambda: len(failed) == 1)
        assert (log.synced_end_offset, failed[0].errno) == (1, errno.EIO)
        pool.shutdown()

    asyncio.run(live())


@pytest.mark.parametrize("real_disk", [True, False])
def test_a_fault_in_a_sync_is_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_disk: bool) -> None:
    """Nobody knows how far it came: it is not counted, not tried again, and a stop does not wait for it."""
    runs: list[SyncPlan] = []
    failed: list[OSError] = []
    faults: list[object] = []

    def no_memory(plan: SyncPlan, disk: Disk) -> None:
        runs.append(plan)
        raise MemoryError("none left")

    async def live() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))
        pool = IoPool(1)
        store = open_store(OsDisk() if real_disk else CrashingDisk(), str(tmp_path), sync_workers=1)
        store.on_directory_failed = lambda _, error: failed.append(error)
        store.start(asyncio.get_running_loop(), pool)
        log = open_log(store)
        other = open_log(store, partition=1)
        monkeypatch.setattr(SyncPlan, "run", no_memory)
        append(log, "a")
        append(other, "a")
        await eventually_async(lambda: failed)
        assert code_of(log.append_as_leader(batch("b"), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
        await asyncio.wait_for(store.stop(), 20)
        assert (log.synced_end_offset, other.synced_end_offset, len(runs)) == (0, 0, 1)
        assert "MemoryError: none left" in str(failed[0])
        assert [type(fault) for fault in faults] == [MemoryError]
        pool.shutdown()

    asyncio.run(live())


@pytest.mark.skipif(not IS_SUPPORTED, reason="the system has no sync_file_range")
@pytest.mark.parametrize("flush_mode", ["os", "interval", "ack"])
@pytest.mark.parametrize("value_bytes", [4_200, 100_000, 900_000])
def test_the_kernel_is_asked_to_write_what_nobody_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_mode: str, value_bytes: int
) -> None:
    """Piece by piece, off the loop, and never the end of the file, where the next append goes. What was cut off
    and written anew is begun anew."""
    begun: list[tuple[str, range]] = []

    def watched(fd: int, piece: range) -> None:
        begun.append((threading.current_thread().name, piece))
        begin_write_back(fd, piece)

    monkeypatch.setattr("penstock.log.flush.begin_write_back", watched)

    async def live() -> None:
        pool = IoPool(1)
        store = open_store(OsDisk(), str(tmp_path))
        store.start(asyncio.get_running_loop(), pool)
        log = open_log(store, LogConfig(flush_mode=flush_mode))
        value = "v" * value_bytes
        count = 9_000_000 // value_bytes
        for _ in range(count):
            append(log, value)
        size = log.size_bytes
        log.truncate_to(2)
        for _ in range(count // 2 + 1):
            append(log, value)
        await store.stop()
        pool.shutdown()  # after what was asked of it
        if flush_mode == "ack":
            assert begun == []
            return
        assert {thread for thread, _ in begun} == {"penstock-write-back-0"}
        pieces = [piece for _, piece in begun]
        assert {piece.stop % 65_536 for piece in pieces} == {0}
        assert max(map(len, pieces)) < 4_194_304 + 2 * value_bytes + 65_536
        again = next(at for at, piece in enumerate(pieces) if at and piece.start < pieces[at - 1].stop)
        before, anew = pieces[:again], pieces[again:]
        for run, start, end in ((before, 0, size), (anew, anew[0].start, log.size_bytes)):
            assert [run[0].start, *(piece.stop for piece in run[:-1])] == [piece.start for piece in run]
            assert run[0].start == start
            assert end - 4_194_304 - 2 * value_bytes - 65_536 < run[-1].stop < end
        assert anew[0].start <= 2 * value_bytes + 1000

    asyncio.run(live())


@pytest.mark.skipif(not IS_SUPPORTED, reason="the system has no sync_file_range")
def test_no_sync_waits_behind_what_nobody_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, begun = threading.Event(), list[range]()

    def stuck(fd: int, piece: range) -> None:
        begun.append(piece)
        assert gate.wait(20)

    monkeypatch.setattr("penstock.log.flush.begin_write_back", stuck)

    async def live() -> None:
        pool = IoPool(1)
        store = open_store(OsDisk(), str(tmp_path))
        store.start(asyncio.get_running_loop(), pool)
        big = open_log(store, LogConfig(flush_mode="os"), topic="big")
        for _ in range(20):
            append(big, "v" * 900_000)
        await eventually_async(lambda: begun)
        synced = open_log(store)
        append(synced, "a")
        await eventually_async(lambda: synced.synced_end_offset == 1)
        await store.stop()
        assert len(begun) == 1, "the disk is still busy with the first"
        gate.set()
        pool.shutdown()
        assert len(begun) > 1

    asyncio.run(live())


@on_loop
async def test_appends_are_synced_without_being_asked() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store)
        heard: list[int] = []
        log.on_synced = heard.append
        append(log, "a")
        assert log.synced_end_offset == 0
        assert log.counted_end_offset == 0, "not counted before it is synced"
        await eventually_async(lambda: log.synced_end_offset == 1)
        assert heard == [1]
        assert log.counted_end_offset == 1
        disk.crash()
    assert values(open_log(open_store(disk))) == [b"a"]


@on_loop
async def test_appends_during_a_sync_share_the_next_one() -> None:
    disk = CrashingDisk()
    gate = Gate(disk, ".log")
    async with running(disk) as store:
        log = open_log(store)
        heard: list[int] = []
        log.on_synced = heard.append
        append(log, "first")
        await eventually_async(lambda: gate.waiting)
        for _ in range(100):
            append(log)
        await asyncio.get_running_loop().run_in_executor(None, int)  # let the loop turn
        assert len(gate.waiting) == 1, "one sync at a time for a log"
        assert heard == []
        gate.open()
        await store.drain()
        assert heard == [1, 101]
        assert store.directories[0].commit is not None
        assert store.directories[0].commit.syncs == 2


@on_loop
async def test_logs_are_synced_side_by_side() -> None:
    disk = CrashingDisk()
    gate = Gate(disk, ".log")
    async with running(disk, workers=3) as store:
        for number in range(10):
            append(open_log(store, partition=number))
        await eventually_async(lambda: len(gate.waiting) == 3)
        gate.open()
        await store.drain()
        assert all(log.synced_end_offset == 1 for log in store.logs())


@on_loop
async def test_a_slow_log_does_not_hold_up_another() -> None:
    disk = CrashingDisk()
    gate = Gate(disk, "t-0/")
    async with running(disk) as store:
        slow, quick = open_log(store), open_log(store, partition=1)
        append(slow)
        await eventually_async(lambda: gate.waiting)
        append(quick)
        await eventually_async(lambda: quick.synced_end_offset == 1)
        assert slow.synced_end_offset == 0
        gate.open()
        await store.drain()


@on_loop
async def test_a_failed_sync_fails_the_directory_for_good() -> None:
    disk = CrashingDisk()
    async with running(disk, "/one", "/two") as store:
        failed: list[tuple[LogDirectory, OSError]] = []
        store.on_directory_failed = lambda directory, error: failed.append((directory, error))
        bad, good = store.directories
        log = store.open("t", 0, TOPIC_ID, LogConfig(), directory=bad)
        sibling = store.open("t", 1, TOPIC_ID, LogConfig(), directory=bad)
        other = store.open("t", 2, TOPIC_ID, LogConfig(), directory=good)
        append(log, "synced")
        await store.drain()
        disk.sync_error = errno.EIO
        append(log, "lost")
        await eventually_async(lambda: failed)
        disk.sync_error = None
        assert failed[0][0] is bad
        assert failed[0][1].errno == errno.EIO
        assert log.synced_end_offset == 1, "never counted"
        for dead in (log, sibling):
            assert code_of(dead.append_as_leader(batch("v"), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
            assert dead.read(0, 100, 1) is ErrorCode.KAFKA_STORAGE_ERROR
        append(other, "fine")
        await store.drain()
        assert other.synced_end_offset == 1
        await store.stop()
        store.close()
        assert not disk.exists("/one/.kafka_cleanshutdown")
        assert disk.exists("/two/.kafka_cleanshutdown")


@on_loop
async def test_a_failure_in_the_pool_is_told_on_the_loop() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        threads: list[threading.Thread] = []
        store.on_directory_failed = lambda *_: threads.append(threading.current_thread())
        append(open_log(store))
        await store.drain()
        disk.sync_error = errno.EIO
        await asyncio.get_running_loop().run_in_executor(None, store.write_checkpoints)
        await eventually_async(lambda: threads)
        assert threads == [threading.current_thread()]


@on_loop
async def test_interval_mode_syncs_by_time() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store, LogConfig(flush_mode="interval", flush_ms=10))
        append(log)
        assert log.counted_end_offset == 1, "counted at once"
        assert log.synced_end_offset == 0
        await eventually_async(lambda: log.synced_end_offset == 1)
        append(log)
        await eventually_async(lambda: log.synced_end_offset == 2)


@on_loop
async def test_interval_mode_syncs_by_count() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store, LogConfig(flush_mode="interval", flush_ms=3_600_000, flush_messages=10))
        append(log, *["v"] * 9)
        await store.drain()
        assert log.synced_end_offset == 0
        append(log)
        await store.drain()
        assert log.synced_end_offset == 10
        await store.stop()


@on_loop
async def test_os_mode_syncs_only_what_is_closed() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store, LogConfig(flush_mode="os"))
        append(log, "a", "b")
        await store.drain()
        assert disk.syncs == 0
        assert log.counted_end_offset == 2
        log.roll()
        append(log, "c")
        await store.drain()
        assert (log.synced_end_offset, log.end_offset) == (2, 3)
        disk.crash()
    assert values(open_log(open_store(disk)))[:2] == [b"a", b"b"]


@on_loop
async def test_a_full_disk_delays_what_belongs_to_a_sync() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store)
        append(log)
        disk.capacity_bytes = disk.used_bytes()
        await eventually_async(lambda: store.directories[0].commit is not None and store.directories[0].commit.syncs)
        await store.drain()
        assert log.synced_end_offset == 0
        assert store.directories[0].failure is None
        disk.capacity_bytes = None
        await eventually_async(lambda: log.synced_end_offset == 1)


@on_loop
async def test_retention_makes_the_room_that_a_sync_waits_for() -> None:
    """The snapshot of a new segment finds no room: older segments go, but not those that it alone replaces."""
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    async with running(disk) as store:
        log = open_log(store, config)
        append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
        for number in range(1, 8):
            append(log, f"{number}")
        await store.drain()
        bases = [segment.base_offset for segment in log.segments]
        assert len(bases) == 4
        log.roll()
        disk.capacity_bytes = disk.used_bytes()
        await eventually_async(lambda: log.lacks_room)
        await store.drain()
        log.apply_retention(NOW_MS)
        assert [segment.base_offset for segment in log.segments] == [bases[3], 8]
        assert log.log_start_offset == 8
        last_to_go = log.segments[0].path + ".log"
        await eventually_async(lambda: not log.lacks_room and not disk.exists(last_to_go))
        assert [segment.base_offset for segment in log.segments] == [8]
        disk.capacity_bytes = None
        disk.crash()
    again = open_log(open_store(disk), config)
    assert (again.log_start_offset, again.end_offset) == (8, 8)
    producer = again.producers.get(7)
    assert producer is not None, "what it has written is known from a snapshot"
    assert producer.last_sequence == 0


@on_loop
async def test_retention_makes_room_though_the_only_closed_segment_waits_for_it() -> None:
    disk = CrashingDisk()
    config = LogConfig(index_interval_bytes=0, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    async with running(disk) as store:
        log = open_log(store, config)
        append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
        for number in range(1, 20):
            append(log, f"{number}", timestamp_ms=NOW_MS + number)
        await store.drain()
        log.roll()
        disk.capacity_bytes = disk.used_bytes()
        await eventually_async(lambda: log.lacks_room)
        await store.drain()
        last_to_go = log.segments[0].path + ".log"
        log.apply_retention(NOW_MS)
        await eventually_async(lambda: not disk.exists(last_to_go))
        assert [segment.base_offset for segment in log.segments] == [20]
        assert append(log, "more") == 20
        await eventually_async(lambda: log.synced_end_offset == 21)
        disk.capacity_bytes = None
        disk.crash()
    again = open_log(open_store(disk), config)
    assert (again.log_start_offset, again.end_offset) == (20, 21)
    assert again.producers.get(7) is not None


@on_loop
async def test_a_disk_that_stays_full_is_not_asked_again_and_again() -> None:
    disk = CrashingDisk()
    config = LogConfig(retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    async with running(disk) as store:
        log = open_log(store, config)
        append(log, "0", producer_id=7, producer_epoch=0, base_sequence=0)
        await store.drain()
        log.roll()
        disk.capacity_bytes = 0
        await eventually_async(lambda: log.lacks_room)
        await store.drain()
        log.apply_retention(NOW_MS)
        await store.drain()
        commit = store.directories[0].commit
        assert commit is not None
        before = commit.syncs
        for _ in range(3):
            log.apply_retention(NOW_MS)
            await store.drain()
        assert commit.syncs - before <= 1, "but for the attempt that comes by the clock"
        disk.capacity_bytes = None
        await eventually_async(lambda: [segment.base_offset for segment in log.segments] == [1])


@on_loop
async def test_what_retention_left_for_a_sync_goes_when_that_finds_no_room() -> None:
    disk = CrashingDisk()
    config = LogConfig(segment_bytes=200, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    async with running(disk) as store:
        log = open_log(store, config)
        for number in range(8):
            append(log, f"{number}")
        await store.drain()
        log.roll()
        plan = plan_sync(log)  # as if it were under way
        assert plan is not None
        disk.capacity_bytes = disk.used_bytes()
        log.apply_retention(NOW_MS)
        assert len(log.segments) == 5, "a sync may be at their files"
        plan.run(disk)
        complete_sync(plan)
        assert log.lacks_room
        assert len(log.segments) == 2
        await store.drain()


@on_loop
async def test_truncation_makes_a_sync_under_way_worthless() -> None:
    disk = CrashingDisk()
    async with running(disk) as store:
        log = open_log(store)
        append(log, "a")
        await store.drain()
        gate = Gate(disk, ".log")
        append(log, "b")
        await eventually_async(lambda: gate.waiting)
        disk.before_sync = None
        log.truncate_to(1)
        append(log, "other", epoch=1)
        gate.open()
        await eventually_async(lambda: log.synced_end_offset == 2)
        disk.crash()
    assert values(open_log(open_store(disk))) == [b"a", b"other"]


@on_loop
async def test_a_deleted_log_under_sync_harms_nobody() -> None:
    disk = CrashingDisk()
    gate = Gate(disk, ".log")
    async with running(disk) as store:
        log = open_log(store)
        append(log)
        await eventually_async(lambda: gate.waiting)
        store.delete(log)
        fresh = store.open("t", 0, b"a new topic's id", LogConfig())
        assert append(fresh, "new") == 0
        gate.open()
        await store.drain()
        assert store.directories[0].failure is None
        assert fresh.synced_end_offset == 1
        await eventually_async(lambda: disk.list_dir("/data") == ["t-0"])
        await store.stop()
        store.close()
    assert values(open_store(disk).open("t", 0, b"a new topic's id", LogConfig())) == [b"new"]


def test_flush_modes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"flush\.mode 'never'"):
        LogConfig(flush_mode="never")
