"""An empty log that starts within a batch of its leader, where records were deleted, takes it and shows no more."""

import contextlib
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from penstock.log.appending import AppendResult
from penstock.log.checkpoints import LOG_START_OFFSET_FILE, RECOVERY_POINT_FILE, read_offsets
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.compacting import COMPACT, close_segment, compact, put
from tests.log.logs import all_records, append, batch, code_of, new_log, open_log, open_store, values

Empty = Callable[[CrashingDisk], PartitionLog]
START = 5
KEPT = [b"v5", b"v6", b"v7", b"v8", b"v9", b"next"]


def leader_with_deleted_records() -> PartitionLog:
    """Offsets 0 to 9 in one batch, of which the first five are deleted."""
    leader = new_log()
    fields = {"producer_id": 7, "producer_epoch": 0}
    append(leader, *[f"v{number}" for number in range(10)], epoch=1, base_sequence=0, **fields)
    append(leader, "next", epoch=2, base_sequence=10, **fields)
    assert leader.delete_records_before(START) is None
    return leader


def sent_by(leader: PartitionLog, offset: int = START) -> bytes:
    data = leader.read_bytes(offset, 10_000)
    assert isinstance(data, bytes)
    return data


def start_there(disk: CrashingDisk) -> PartitionLog:
    """A replica that is built anew."""
    log = new_log(disk=disk)
    assert log.truncate_full_and_start_at(START) is None
    log.flush()
    return log


def start_there_after_more(disk: CrashingDisk) -> PartitionLog:
    """Every checkpoint speaks of what was there before: the recovery point, too, is above the batch."""
    log = new_log(disk=disk)
    append(log, *["old"] * 8)
    append(log, *["old"] * 12)
    log.flush()
    log.high_watermark = 20
    log.directory.write_checkpoints()
    assert log.truncate_full_and_start_at(START) is None
    log.flush()
    return log


def start_there_without_files(disk: CrashingDisk) -> PartitionLog:
    log = start_there_after_more(disk)
    log.directory.write_checkpoints()
    disk.remove(f"{log.path}/{START:020d}.log")
    disk.sync_dir(log.path)
    return load_again(disk)


def delete_all_there(disk: CrashingDisk) -> PartitionLog:
    """Nothing is left to see, but the files are not gone."""
    log = new_log(disk=disk)
    append(log, *["old"] * START)
    log.flush()
    log.high_watermark = START
    log.directory.write_checkpoints()
    assert log.delete_records_before(START) is None
    log.directory.write_checkpoints()
    log.leader_epochs.clear()  # the leader's next batch would else be told from another history's
    return log


EMPTY = [start_there, start_there_after_more, start_there_without_files, delete_all_there]


def load_again(disk: CrashingDisk) -> PartitionLog:
    disk.crash()
    log = open_log(open_store(disk))
    log.load()
    return log


def assert_like(log: PartitionLog, leader: PartitionLog) -> None:
    assert (log.log_start_offset, log.end_offset) == (START, 11)
    assert (values(log), log.lost_records) == (KEPT, False)
    assert all_records(log) == all_records(leader)
    assert log.leader_epochs.entries() == leader.leader_epochs.entries() == [(1, START), (2, 10)]
    assert log.read_bytes(START - 1, 100) is ErrorCode.OFFSET_OUT_OF_RANGE
    producer = log.producers.get(7)
    assert producer is not None
    assert producer.last_sequence == 10


@pytest.mark.parametrize("empty", EMPTY)
def test_it_takes_the_batch_and_keeps_its_start(empty: Empty) -> None:
    leader, disk = leader_with_deleted_records(), CrashingDisk()
    log = empty(disk)
    watermark = log.high_watermark
    result = log.append_as_follower(sent_by(leader))
    assert isinstance(result, AppendResult), result
    assert_like(log, leader)
    assert log.high_watermark == watermark, "nor does the watermark go back"
    assert log.synced_end_offset == 0, "nothing of the batch is counted before it is synced"
    log.flush()
    assert log.synced_end_offset == 11
    assert_like(load_again(disk), leader)


def test_it_goes_on_as_any_log() -> None:
    leader, disk = leader_with_deleted_records(), CrashingDisk()
    log = start_there(disk)
    log.append_as_follower(sent_by(leader))
    append(leader, "later", epoch=2)
    log.append_as_follower(sent_by(leader, 11))
    assert values(log) == values(leader) == [*KEPT, b"later"]
    log.flush()
    assert values(load_again(disk)) == values(leader)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("empty", EMPTY)
def test_wherever_the_power_goes_what_was_deleted_stays_so(empty: Empty, seed: int) -> None:
    """And what is not there yet is not taken for lost: the log can be followed on, to the same end."""
    leader = leader_with_deleted_records()
    for operation in range(1, 100):
        disk = CrashingDisk(seed)
        log = empty(disk)
        disk.power_loss_at = disk.operations + operation
        synced = False
        with contextlib.suppress(PowerLoss):
            log.append_as_follower(sent_by(leader))
            log.flush()
            log.directory.write_checkpoints()
            synced = True
        again = load_again(disk)
        assert (again.log_start_offset, again.lost_records) == (START, False), operation
        assert again.end_offset in ((11,) if synced else (START, 10, 11)), operation
        assert values(again) == KEPT[: again.end_offset - START], operation
        again.append_as_follower(sent_by(leader, again.end_offset))
        again.flush()
        assert_like(load_again(disk), leader)
        if synced:
            return
    raise AssertionError("it takes no more than 100 operations")


@pytest.mark.parametrize("room", range(0, 400, 10))
@pytest.mark.parametrize("empty", EMPTY)
def test_without_room_it_stays_empty_where_it_starts(empty: Empty, room: int) -> None:
    leader, disk = leader_with_deleted_records(), CrashingDisk()
    log = empty(disk)
    watermark = log.high_watermark
    disk.capacity_bytes = disk.used_bytes() + room
    result = log.append_as_follower(sent_by(leader))
    assert log.directory.failure is None
    assert (log.log_start_offset, log.high_watermark) == (START, watermark)
    if isinstance(result, Refusal):
        assert (result.code, log.end_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, START)
        assert log.read_bytes(START, 100) == b""
        again = load_again(disk)
        assert (again.log_start_offset, again.end_offset, again.lost_records) == (START, START, False)
        disk.capacity_bytes = None
        again.append_as_follower(sent_by(leader))
        assert_like(again, leader)
    else:
        assert_like(log, leader)


def test_nor_does_it_take_another_leaders_batch_amiss_then() -> None:
    """One that begins just at the start, after one that did not fit."""
    leader, disk = leader_with_deleted_records(), CrashingDisk()
    log = start_there(disk)
    disk.capacity_bytes = disk.used_bytes() + 100
    assert code_of(log.append_as_follower(sent_by(leader))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.capacity_bytes = None
    assert isinstance(log.append_as_follower(batch("other", base_offset=START, leader_epoch=3)), AppendResult)
    log.flush()
    again = load_again(disk)
    assert (again.log_start_offset, values(again), again.lost_records) == (START, [b"other"], False)


def test_the_start_and_the_recovery_point_are_on_disk_before_anything_changes() -> None:
    disk = CrashingDisk()
    log = start_there_after_more(disk)
    log.directory.write_checkpoints()
    log.append_as_follower(sent_by(leader_with_deleted_records()))
    assert read_offsets(disk, f"/data/{LOG_START_OFFSET_FILE}")["t-0"] == START
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"] == 0


def test_a_log_that_was_cut_within_the_batch_takes_it_again() -> None:
    leader, disk = leader_with_deleted_records(), CrashingDisk()
    log = start_there(disk)
    log.append_as_follower(sent_by(leader))
    log.flush()
    log.high_watermark = 11
    log.directory.write_checkpoints()
    assert log.truncate_to(7) is None
    assert (log.log_start_offset, log.end_offset, values(log)) == (START, START, [])
    log.append_as_follower(sent_by(leader))
    assert_like(log, leader)
    log.flush()
    assert_like(load_again(disk), leader)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch("a", "b", base_offset=3), ErrorCode.OFFSET_OUT_OF_RANGE),  # ends where the log starts
        (batch("a", base_offset=2) + batch("b", "c", "d", base_offset=3), ErrorCode.OFFSET_OUT_OF_RANGE),
        (batch("a", "b", "c", base_offset=4)[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch("a", "b", "c", base_offset=4, leader_epoch=9), ErrorCode.FENCED_LEADER_EPOCH),
        (batch("a", "b", "c", base_offset=4) + batch("x", base_offset=6), ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_what_else_begins_before_the_start_is_refused(data: bytearray, code: ErrorCode) -> None:
    log = start_there(CrashingDisk())
    assert code_of(log.append_as_follower(data, 8)) is code
    assert [segment.base_offset for segment in log.segments] == [START]
    assert (log.log_start_offset, log.end_offset, log.generation) == (START, START, 0)


def test_a_log_with_records_takes_no_batch_that_begins_before_its_end() -> None:
    log = start_there(CrashingDisk())
    append(log, "mine")
    assert code_of(log.append_as_follower(batch("a", "b", "c", base_offset=4))) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert values(log) == [b"mine"]


def test_what_compaction_left_of_a_batch_is_taken_as_well() -> None:
    """Its header still tells the offsets that it had. The log starts at one whose record is gone."""
    config = replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}))
    leader = new_log(config)
    put(leader, ("a", "0"), ("b", "1"), ("c", "2"), ("d", "3"))
    put(leader, ("a", "4"), ("b", "5"))
    close_segment(leader)
    put(leader, ("e", "6"))
    compact(leader)
    assert leader.delete_records_before(1) is None
    assert values(leader) == [b"2", b"3", b"4", b"5", b"6"]
    disk = CrashingDisk()
    log = new_log(config, disk)
    log.truncate_full_and_start_at(1)
    while log.end_offset < leader.end_offset:
        assert isinstance(log.append_as_follower(sent_by(leader, log.end_offset)), AppendResult)
    assert all_records(log) == all_records(leader)
    log.flush()
    disk.crash()
    again = new_log(config, disk)
    assert (again.log_start_offset, again.end_offset, again.lost_records) == (1, 7, False)
    assert all_records(again) == all_records(leader)
