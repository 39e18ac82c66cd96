"""Gaps that a leader's compaction has left: to the recovery of a replica that fetched them they are no damage, also
when the topic is not compacted any more and the replica never compacted anything itself."""

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace

from penstock.log.appending import AppendResult
from penstock.log.checkpoints import CLEANER_OFFSET_FILE, write_atomically
from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.ports import Disk
from penstock.records.batch import HEADER_BYTES
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.compacting import COMPACT, batches, close_segment, compact, put
from tests.log.logs import append, batch, new_log, open_log, open_store

NOT_ANY_MORE = replace(COMPACT, cleanup_policy=frozenset({"delete"}))
ROLLING = replace(NOT_ANY_MORE, segment_bytes=100)


def compacted_leader() -> PartitionLog:
    """Ends with a batch that has a gap before it."""
    leader = new_log(COMPACT)
    for number in range(12):
        put(leader, ("k", f"v{number}"))
    close_segment(leader)
    compact(leader)
    compact(leader)
    assert offsets(leader) == [7, 11]
    return leader


def offsets(log: PartitionLog) -> list[int]:
    return [header.base_offset for header, _ in batches(log)]


def fetch(follower: PartitionLog, leader: PartitionLog) -> None:
    while follower.end_offset < leader.end_offset:
        data = leader.read_bytes(follower.end_offset, 10_000)
        assert isinstance(follower.append_as_follower(data), AppendResult)


def open_follower(disk: CrashingDisk, config: LogConfig = NOT_ANY_MORE) -> tuple[LogStore, PartitionLog]:
    store = open_store(disk)
    log = open_log(store, config)
    log.load()
    return store, log


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those that are written from now on."""
    written: list[str] = []

    def note(disk: Disk, path: str, content: bytes) -> None:
        written.append(path.rpartition("/")[2])
        write_atomically(disk, path, content)

    monkeypatch.setattr("penstock.log.directory.write_atomically", note)
    return written


def check(disk: CrashingDisk, expected: list[int]) -> None:
    _, log = open_follower(disk)
    assert (offsets(log), log.end_offset, log.lost_records) == (expected, 12, False)


@pytest.mark.parametrize("config", [NOT_ANY_MORE, ROLLING, COMPACT], ids=["one segment", "rolling", "compacted"])
@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_what_was_synced_survives_a_crash(config: LogConfig, with_checkpoints: bool) -> None:
    for seed in range(6):
        disk = CrashingDisk(seed)
        store, follower = open_follower(disk, config)
        fetch(follower, compacted_leader())
        follower.flush()
        assert follower.synced_end_offset == 12
        if with_checkpoints:
            store.write_checkpoints()
        disk.crash()
        check(disk, [7, 11])


def test_power_lost_at_any_operation_takes_nothing_that_counted() -> None:
    leader = compacted_leader()
    outcomes = set()
    for at in range(1, 80):
        disk = CrashingDisk(at)
        store, follower = open_follower(disk)
        counted = 0
        disk.power_loss_at = disk.operations + at
        try:
            fetch(follower, leader)
            follower.flush()
            counted = follower.synced_end_offset
            store.write_checkpoints()
        except PowerLoss:
            pass
        disk.crash()
        _, again = open_follower(disk)
        assert again.end_offset >= counted
        assert not again.lost_records
        outcomes.add((counted, again.end_offset))
    assert {counted for counted, _ in outcomes} == {0, 12}, "some crashes came before the sync, and some after"


@pytest.mark.parametrize("config", [NOT_ANY_MORE, ROLLING], ids=["one segment", "rolling"])
@pytest.mark.parametrize("offset", [9, 10, 11])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_log_that_is_cut_within_a_gap_ends_where_its_last_batch_does(
    config: LogConfig, offset: int, goes_on: bool
) -> None:
    """So it is found after a restart. A replica that never had what was compacted was elected, uncleanly."""
    other = new_log()
    for number in range(12):
        append(other, f"v{number}")
    for seed in range(4):
        disk = CrashingDisk(seed)
        store, follower = open_follower(disk, config)
        fetch(follower, compacted_leader())
        follower.flush()
        assert follower.truncate_to(offset) is None
        if goes_on:
            follower.roll()
            fetch(follower, other)
        follower.flush()
        store.write_checkpoints()
        end_offset, expected = follower.end_offset, offsets(follower)
        disk.crash()
        _, again = open_follower(disk, config)
        assert (offsets(again), again.end_offset, again.lost_records) == (expected, end_offset, False)


TORN = bytes(batch("torn", base_offset=12))


@pytest.mark.parametrize(
    "torn",
    [bytes(30), bytes(len(TORN)), bytes(5000), bytes(8) + TORN[8:-1], TORN[:40] + bytes(40), TORN[:-1]],
    ids=["a little", "size only", "pages", "no offset", "half a header", "no end"],
)
@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_what_is_torn_behind_a_gap_says_nothing_of_it(torn: bytes, with_checkpoints: bool) -> None:
    """The power was lost while the next batch was written; all before it was synced, and counted."""
    disk = CrashingDisk()
    store, follower = open_follower(disk)
    fetch(follower, compacted_leader())
    follower.flush()
    if with_checkpoints:
        store.write_checkpoints()
    file = disk.open(follower.segments[-1].path + ".log")
    file.write_at(file.size(), (torn,))
    check(disk, [7, 11])


@pytest.mark.parametrize("torn", [b"", bytes(30), bytes(100)])
def test_an_offset_that_rotted_before_a_whole_batch_is_damage_all_the_same(torn: bytes) -> None:
    disk = CrashingDisk()
    store, follower = open_follower(disk)
    fetch(follower, compacted_leader())
    append(follower, "later")
    follower.flush()
    store.write_checkpoints()
    path = follower.segments[-1].path + ".log"
    file = disk.open(path)
    file.write_at(file.size(), (torn,))
    disk.flip_bit(path, HEADER_BYTES + 6, 1)  # the first batch is empty
    _, again = open_follower(disk)
    assert (offsets(again), again.lost_records) == ([7], True)


@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_a_gap_that_recovery_finds_is_known_from_then_on(with_checkpoints: bool) -> None:
    """The process was killed before the first sync, while it wrote what follows the gap: all but the torn batch
    counts as soon as it is recovered."""
    for seed in range(6):
        disk = CrashingDisk(seed)
        killed_behind_a_gap(disk)
        store, follower = open_follower(disk)
        assert (offsets(follower), follower.synced_end_offset) == ([7, 11], 12)
        if with_checkpoints:
            store.write_checkpoints()
        disk.crash()
        check(disk, [7, 11])


def killed_behind_a_gap(disk: CrashingDisk) -> None:
    leader = compacted_leader()
    append(leader, "torn")
    _, follower = open_follower(disk)
    fetch(follower, leader)
    file = disk.open(follower.segments[-1].path + ".log")
    file.truncate(file.size() - 1)


def test_a_gap_that_recovery_finds_waits_for_room() -> None:
    disk = CrashingDisk(1)
    killed_behind_a_gap(disk)
    disk.failing["/data/" + CLEANER_OFFSET_FILE + ".tmp"] = errno.ENOSPC
    store, follower = open_follower(disk)
    assert follower.end_offset == 12
    disk.failing.clear()
    store.write_checkpoints()
    disk.crash()
    check(disk, [7, 11])


@pytest.mark.parametrize("mode", ["ack", "interval", "os"])
def test_what_group_commit_has_synced_survives_in_every_mode(mode: str) -> None:
    """In mode os nothing is synced before a segment is closed; then that sync writes it down."""
    config = replace(ROLLING, flush_mode=mode, flush_ms=1)
    disk = CrashingDisk(3)

    async def follow() -> int:
        store, follower = open_follower(disk, config)
        all_synced = asyncio.Event()
        follower.on_synced = lambda end_offset: all_synced.set() if end_offset >= 12 else None
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            fetch(follower, compacted_leader())
            append(follower, "a later one")
            await asyncio.wait_for(all_synced.wait(), 20)
            await store.stop()
            return follower.synced_end_offset

    synced = asyncio.run(follow())
    disk.crash()
    _, again = open_follower(disk)
    assert again.end_offset >= synced >= 12


def test_it_stays_known_through_restarts_and_truncations() -> None:
    disk = CrashingDisk(1)
    store, follower = open_follower(disk)
    leader = compacted_leader()
    fetch(follower, leader)
    store.close()
    store, follower = open_follower(disk)
    assert follower.truncate_to(8) is None
    fetch(follower, leader)
    follower.flush()
    disk.crash()
    check(disk, [7, 11])
    _, follower = open_follower(disk)
    assert follower.truncate_full_and_start_at(0) is None
    fetch(follower, leader)
    follower.flush()
    disk.crash()
    check(disk, [7, 11])


def test_the_load_of_a_deleted_namesake_does_not_forget_it() -> None:
    disk = CrashingDisk(2)
    store = open_store(disk)
    gone = store.open("t", 0, b"another topic id", NOT_ANY_MORE)
    store.delete(gone)
    follower = open_log(store, NOT_ANY_MORE)
    follower.load()
    fetch(follower, compacted_leader())
    gone.load()
    assert gone.end_offset == 0
    follower.flush()
    disk.crash()
    check(disk, [7, 11])


@pytest.mark.parametrize("seed", range(4))
def test_the_log_that_was_compacted_keeps_its_end_when_that_is_over(seed: int) -> None:
    disk = CrashingDisk(seed)
    store = open_store(disk)
    log = open_log(store, COMPACT)
    for number in range(12):
        put(log, ("k", f"v{number}"))
    close_segment(log)
    compact(log)
    compact(log)
    log.config = NOT_ANY_MORE
    append(log, "later")
    log.flush()
    disk.crash()
    for _ in range(2):  # the second time it was restarted with the new policy
        store, again = open_follower(disk)
        assert (offsets(again), again.lost_records) == ([7, 11, 12], False)
        store.write_checkpoints()
        disk.crash()


def test_a_leader_without_gaps_costs_no_checkpoint() -> None:
    leader = new_log()
    for _ in range(5):
        append(leader)
    store, follower = open_follower(CrashingDisk())
    fetch(follower, leader)
    directory = store.directories[0]
    assert not directory.checkpoints_urgent
    assert directory.cleaned_offsets == {}


@pytest.mark.parametrize("config", [NOT_ANY_MORE, ROLLING], ids=["one segment", "rolling"])
def test_many_logs_that_follow_compacted_leaders_cost_one_small_file(
    config: LogConfig, checkpoints: list[str]
) -> None:
    """In one turn of the event loop none at all: nothing there waits for a disk."""
    disk = CrashingDisk()
    store = open_store(disk)
    logs = [open_log(store, config, partition=number) for number in range(20)]
    for log in logs:
        log.load()
    leader = compacted_leader()
    checkpoints.clear()
    for log in logs:
        fetch(log, leader)
    assert checkpoints == []
    for log in logs:
        log.flush()
    assert checkpoints == [CLEANER_OFFSET_FILE]
    disk.crash()
    store = open_store(disk)
    for number in range(20):
        assert offsets(open_log(store, config, partition=number)) == [7, 11]


def test_a_known_gap_is_not_written_down_again(checkpoints: list[str]) -> None:
    store, follower = open_follower(CrashingDisk())
    leader = compacted_leader()
    fetch(follower, leader)
    follower.flush()
    assert follower.truncate_to(8) is None
    store.write_checkpoints()
    checkpoints.clear()
    fetch(follower, leader)
    follower.flush()
    assert not store.directories[0].checkpoints_urgent
    assert checkpoints == []


def test_a_new_log_of_the_name_writes_it_down_anew() -> None:
    disk = CrashingDisk(4)
    store, follower = open_follower(disk)
    fetch(follower, compacted_leader())
    follower.flush()
    store.delete(follower)
    follower = open_log(store, NOT_ANY_MORE)
    follower.load()
    fetch(follower, compacted_leader())
    follower.flush()
    disk.crash()
    check(disk, [7, 11])


def test_a_sync_does_not_go_by_a_file_that_is_being_replaced() -> None:
    """The log's directory was lost, and what is just being written forgets that it has gaps. It had them again
    before that was on the disk."""
    disk = CrashingDisk(5)
    store, follower = open_follower(disk)
    leader = compacted_leader()
    fetch(follower, leader)
    follower.flush()
    store.write_checkpoints()
    disk.remove_tree(follower.path)
    store, follower = open_follower(disk)
    assert follower.lost_records
    flushing = threading.Thread(target=follower.flush)

    def fetch_meanwhile(path: str) -> None:
        disk.before_sync = None
        assert path.endswith(f"{CLEANER_OFFSET_FILE}.tmp")
        fetch(follower, leader)
        flushing.start()
        flushing.join(0.2)  # it waits for us

    disk.before_sync = fetch_meanwhile
    store.directories[0].write_cleaned_offsets()
    flushing.join()
    assert follower.synced_end_offset == 12
    disk.crash()
    check(disk, [7, 11])
