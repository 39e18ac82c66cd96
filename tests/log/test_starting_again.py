"""A log that forgets everything and starts again, at another offset than before: what is synced then survives, and
where it starts does, too."""

import asyncio
import contextlib
import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.logs import NOW_MS, append, batch, code_of, new_log, open_log, open_store, values


def start_at_500(disk: CrashingDisk) -> PartitionLog:
    """Every checkpoint says so."""
    log = new_log(disk=disk)
    append(log, "a")
    log.truncate_full_and_start_at(500)
    append(log, "b")
    log.flush()
    log.high_watermark = 501
    log.directory.write_checkpoints()
    return log


def load_again(disk: CrashingDisk) -> PartitionLog:
    disk.crash()
    log = open_log(open_store(disk))
    log.load()
    return log


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("offset", [0, 100, 499, 500, 501, 900])
def test_what_is_synced_behind_a_new_start_survives(seed: int, offset: int) -> None:
    disk = CrashingDisk(seed)
    log = start_at_500(disk)
    assert log.truncate_full_and_start_at(offset) is None
    append(log, "c")
    log.flush()
    again = load_again(disk)
    assert (again.log_start_offset, values(again), again.lost_records) == (offset, [b"c"], False)


@pytest.mark.parametrize("seed", range(3))
def test_wherever_the_power_goes_the_log_is_not_damaged(seed: int) -> None:
    """And begins where it did, or where it was told to."""
    for operation in range(1, 100):
        disk = CrashingDisk(seed)
        log = start_at_500(disk)
        disk.power_loss_at = disk.operations + operation
        synced = False
        with contextlib.suppress(PowerLoss):
            log.truncate_full_and_start_at(100)
            append(log, "c")
            log.flush()
            synced = True
        again = load_again(disk)
        assert not again.lost_records, operation
        assert again.log_start_offset in ((100,) if synced else (100, 500)), operation
        assert values(again) in ([[b"c"]] if synced else [[], [b"b"], [b"c"]]), operation
        if synced:
            return
    raise AssertionError("it takes no more than 100 operations")


@pytest.mark.parametrize("offset", [100, 500, 501, 900])
@pytest.mark.parametrize("begin", [new_log, start_at_500], ids=["a new log", "an old log"])
def test_an_empty_log_counts_its_end_when_it_is_durable(begin: Callable[..., PartitionLog], offset: int) -> None:
    for seed in range(6):
        disk = CrashingDisk(seed)
        log = begin(disk=disk)
        assert log.truncate_full_and_start_at(offset) is None
        assert (log.end_offset, log.counted_end_offset) == (offset, 0)
        log.flush()
        assert log.counted_end_offset == offset
        again = load_again(disk)
        assert (again.log_start_offset, again.end_offset, again.lost_records) == (offset, offset, False)


def test_a_log_cut_down_to_its_start_counts_it_when_it_is_durable() -> None:
    """Records were deleted up to within a batch; then the batch goes."""
    for seed in range(6):
        disk = CrashingDisk(seed)
        log = new_log(disk=disk)
        append(log, "a", "b", "c")
        log.flush()
        assert log.delete_records_before(2) is None
        assert log.truncate_to(2) is None
        assert (log.end_offset, log.counted_end_offset) == (2, 0)
        log.flush()
        assert log.counted_end_offset == 2
        again = load_again(disk)
        assert (again.log_start_offset, again.end_offset, again.lost_records) == (2, 2, False)


@pytest.mark.parametrize("seed", range(8))
def test_a_log_that_ended_below_its_start_has_lost_nothing_when_its_old_files_come_back(seed: int) -> None:
    """Records were deleted up to where nothing was synced yet; then the power is lost twice."""
    disk = CrashingDisk(seed)
    store = open_store(disk)
    log = open_log(store)
    for number in range(10):
        append(log)
        if number == 4:
            log.flush()
    assert log.delete_records_before(10) is None
    for _ in range(2):
        store.write_checkpoints()
        disk.crash()
        store = open_store(disk)
        log = open_log(store)
        log.load()
        assert (log.log_start_offset, log.end_offset, log.lost_records) == (10, 10, False)
        append(log)


def test_group_commit_makes_an_empty_log_count() -> None:
    async def live() -> PartitionLog:
        store = open_store(disk)
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            log = open_log(store)
            assert log.truncate_full_and_start_at(500) is None
            assert log.counted_end_offset == 0
            await store.drain()
            return log

    disk = CrashingDisk()
    assert asyncio.run(live()).counted_end_offset == 500
    assert load_again(disk).end_offset == 500


def test_without_room_for_the_new_start_nothing_is_appended_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashingDisk()
    log = start_at_500(disk)
    write = LogDirectory.write_log_start_offsets

    def only_the_old(directory: LogDirectory) -> None:
        if log.log_start_offset < 500:
            raise OSError(errno.ENOSPC, "no space left")
        write(directory)

    monkeypatch.setattr(LogDirectory, "write_log_start_offsets", only_the_old)
    assert log.truncate_full_and_start_at(100) is None
    assert code_of(log.append_as_leader(batch("c"), 0, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.truncate_full_and_start_at(50) is None  # now there is no segment to begin with
    monkeypatch.undo()
    append(log, "c")
    log.flush()
    again = load_again(disk)
    assert (again.log_start_offset, values(again), again.lost_records) == (50, [b"c"], False)


def test_nor_while_somebody_is_still_writing_the_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashingDisk()
    log = start_at_500(disk)

    def no_room(_: LogDirectory) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    write = LogDirectory.write_log_start_offsets
    monkeypatch.setattr(
        LogDirectory,
        "write_log_start_offsets",
        lambda directory: (no_room if log.log_start_offset < 500 else write)(directory),
    )
    assert log.truncate_full_and_start_at(100) is None
    monkeypatch.undo()
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: str) -> None:
        if threading.current_thread() is writer:
            begun.set()
            assert go_on.wait(20)

    def write_checkpoints() -> None:
        with contextlib.suppress(PowerLoss):
            log.directory.write_checkpoints()

    writer = threading.Thread(target=write_checkpoints)
    disk.before_sync = slow
    writer.start()
    assert begun.wait(20)
    threading.Timer(0.3, go_on.set).start()
    append(log, "c")
    log.flush()
    assert log.synced_end_offset == 101
    disk.before_sync = None
    again = load_again(disk)
    assert (again.log_start_offset, values(again), again.lost_records) == (100, [b"c"], False)
    writer.join()
