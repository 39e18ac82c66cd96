"""A follower begins anew where an empty leader starts. Asking for that offset acknowledges it: it must be there after
a loss of power, or the follower could lead from offset 0 one day."""

import errno
import os

import pytest

from penstock.log import appending
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.replication.follower_state import Fetched, FetchPosition, Kind, Step
from penstock.replication.partition import Partition
from penstock.sim.disk import CrashingDisk
from tests.log.logs import TOPIC_ID, append, open_log, open_store

START = 500
LEADER, EPOCH = 1, 3
TOO_LOW = Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, START, START)
NOTHING_NEW = Fetched(ErrorCode.NONE, START, START)


def new_follower(disk: CrashingDisk) -> Partition:
    log = open_log(open_store(disk))
    log.load()
    partition = Partition("t", 0, TOPIC_ID, log, EPOCH, alone=False)
    partition.become_follower(LEADER, EPOCH)
    return partition


def answer(partition: Partition, fetched: Fetched) -> Step | Refusal:
    position = partition.position()
    assert position is not None
    return partition.apply_fetched(position, fetched, 0)


def after_power_loss(disk: CrashingDisk) -> PartitionLog:
    disk.crash()
    log = open_log(open_store(disk))
    log.load()
    return log


@pytest.mark.parametrize("seed", range(6))
def test_it_asks_for_what_follows_once_its_start_is_durable(seed: int) -> None:
    disk = CrashingDisk(seed)
    partition = new_follower(disk)
    assert answer(partition, TOO_LOW) == Step(Kind.RESTART, START)
    assert partition.position() is None
    assert partition.high_watermark == START
    partition.log.flush()
    assert partition.position() == FetchPosition(EPOCH, START, -1)
    log = after_power_loss(disk)
    assert (log.log_start_offset, log.end_offset) == (START, START)


def test_without_room_for_its_first_file_it_says_so_until_there_is_some() -> None:
    disk = CrashingDisk()
    partition = new_follower(disk)
    disk.capacity_bytes = disk.used_bytes()
    assert isinstance(answer(partition, TOO_LOW), Refusal)
    assert partition.lacks_room
    assert isinstance(answer(partition, NOTHING_NEW), Refusal)
    assert partition.lacks_room, "the leader has nothing to send, but still there is no file"
    disk.capacity_bytes = None
    assert answer(partition, NOTHING_NEW) == Step(Kind.APPEND)
    assert not partition.lacks_room
    assert partition.position() is None
    partition.log.flush()
    assert partition.position() == FetchPosition(EPOCH, START, -1)
    assert partition.high_watermark == START
    assert after_power_loss(disk).end_offset == START


def test_a_new_leader_hears_of_it_too() -> None:
    """It would else count this replica in sync, which has nothing on its disk to tell where its log ends."""
    disk = CrashingDisk()
    partition = new_follower(disk)
    disk.capacity_bytes = disk.used_bytes()
    assert isinstance(answer(partition, TOO_LOW), Refusal)
    partition.become_follower(LEADER + 1, EPOCH + 1)
    assert partition.lacks_room
    assert isinstance(answer(partition, NOTHING_NEW), Refusal)
    disk.capacity_bytes = None
    assert answer(partition, NOTHING_NEW) == Step(Kind.APPEND)
    assert not partition.lacks_room
    partition.log.flush()
    assert partition.position() == FetchPosition(EPOCH + 1, START, -1)
    assert after_power_loss(disk).end_offset == START


def test_so_it_is_after_a_cut_that_left_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = CrashingDisk()
    partition = new_follower(disk)
    answer(partition, TOO_LOW)
    append(partition.log, epoch=EPOCH)
    partition.log.flush()
    with monkeypatch.context() as full:
        full.setattr(appending, "create_first_segment", refuse)
        cut = Fetched(ErrorCode.NONE, START, START, diverging=(EPOCH - 1, START))
        assert answer(partition, cut) == Step(Kind.TRUNCATE, START)
        assert partition.lacks_room
        assert isinstance(answer(partition, NOTHING_NEW), Refusal)
        assert partition.lacks_room
    assert answer(partition, NOTHING_NEW) == Step(Kind.APPEND)
    assert not partition.lacks_room


def test_an_empty_log_at_offset_0_lacks_nothing() -> None:
    disk = CrashingDisk()
    partition = new_follower(disk)
    disk.capacity_bytes = disk.used_bytes()
    assert answer(partition, Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, 0, 0)) == Step(Kind.RESTART, 0)
    assert not partition.lacks_room
    assert answer(partition, Fetched(ErrorCode.NONE, 0, 0)) == Step(Kind.APPEND)
    assert not partition.lacks_room
