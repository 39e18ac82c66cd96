"""Files that are gone: what was synced and is not there is noticed; a log that has nothing by right is not blamed."""

import contextlib
from collections.abc import Callable

import pytest

from penstock.broker.scrub import check_piece
from penstock.log.checkpoints import (
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TOPIC_ID_FILE,
    encode_offsets,
    read_offsets,
    read_topic_ids,
    write_atomically,
)
from penstock.log.config import LogConfig
from penstock.log.errors import CorruptSegment
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.errors import ErrorCode
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.logs import TOPIC_ID, append, delete_unnoted, open_log, open_store, values

_CONFIG = LogConfig(segment_bytes=300)
_PATH = "/data/t-0"
_NEW_ID = b"a new topic's id"

Remove = Callable[[CrashingDisk], None]


def write(disk: CrashingDisk, count: int = 10) -> LogStore:
    """A log of several segments of which every checkpoint speaks."""
    store = open_store(disk)
    log = open_log(store, _CONFIG)
    for number in range(count):
        append(log, f"value {number}", producer_id=1, producer_epoch=0, base_sequence=number)
    log.flush()
    log.high_watermark = count
    store.write_checkpoints()
    return store


def load(disk: CrashingDisk, topic_id: bytes = TOPIC_ID) -> PartitionLog:
    log = open_store(disk).open("t", 0, topic_id, _CONFIG)
    log.load()
    return log


def remove_segments(disk: CrashingDisk) -> None:
    for name in disk.list_dir(_PATH):
        if name.endswith(".log"):
            disk.remove(f"{_PATH}/{name}")
    disk.sync_dir(_PATH)


def remove_directory(disk: CrashingDisk) -> None:
    disk.remove_tree(_PATH)
    disk.sync_dir("/data")


def remove_last_segments(disk: CrashingDisk) -> None:
    for name in sorted(name for name in disk.list_dir(_PATH) if name.endswith(".log"))[-2:]:
        disk.remove(f"{_PATH}/{name}")
    disk.sync_dir(_PATH)


def remove_all_files(disk: CrashingDisk) -> None:
    for name in disk.list_dir(_PATH):
        disk.remove(f"{_PATH}/{name}")
    disk.sync_dir(_PATH)


EVERYTHING = pytest.mark.parametrize("remove", [remove_segments, remove_directory, remove_all_files])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("remove", [remove_segments, remove_directory, remove_all_files, remove_last_segments])
def test_synced_records_that_are_gone_with_their_files_are_noticed(
    remove: Remove, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CrashingDisk()
    store = write(disk)
    if clean:
        store.close()
    remove(disk)
    log = load(disk)
    assert log.lost_records
    assert log.end_offset < 10
    assert log.high_watermark <= log.end_offset
    assert f"/data/t-0 ends at offset {log.end_offset}, but was synced up to 10" in caplog.text


def test_a_segment_that_is_gone_from_between_others_is_damage() -> None:
    disk = CrashingDisk()
    write(disk)
    disk.remove(f"{_PATH}/{3:020d}.log")
    log = open_store(disk).open("t", 0, TOPIC_ID, _CONFIG)
    with pytest.raises(CorruptSegment, match="it ends at offset 3, but the next segment starts at 6"):
        log.load()


def test_nobody_reads_past_a_segment_that_is_gone_as_if_there_had_been_none() -> None:
    """A clean start does not look at closed segments; whoever asks for what is gone is told that it is."""
    disk = CrashingDisk()
    write(disk).close()
    disk.remove(f"{_PATH}/{3:020d}.log")
    log = load(disk)
    assert [len(log.read_bytes(offset, 1000)) > 0 for offset in (0, 6)] == [True, True]
    for offset in (3, 5):
        assert log.read_bytes(offset, 1000) is ErrorCode.KAFKA_STORAGE_ERROR
    assert check_piece(log, 3, 9) == (3, 3, 0), "so that a replica is mended"
    assert log.read_bytes(3, 1000, end_offset=5) == b"", "nobody may read so far yet"


def test_who_is_cut_where_a_segment_is_gone_ends_in_front_of_it() -> None:
    disk = CrashingDisk()
    write(disk).close()
    disk.remove(f"{_PATH}/{3:020d}.log")
    log = load(disk)
    log.truncate_to(4)  # where a follower asked for more
    assert (log.end_offset, values(log)) == (3, [b"value 0", b"value 1", b"value 2"])


def test_what_is_gone_below_the_start_is_missed_by_nobody() -> None:
    """A crash may bring back some of what retention had removed."""
    disk = CrashingDisk()
    write(disk)
    write_atomically(disk, f"/data/{LOG_START_OFFSET_FILE}", encode_offsets([("t-0", 6)]))
    for name in (f"{3:020d}.log", f"{6:020d}.snapshot"):
        disk.remove(f"{_PATH}/{name}")
    log = load(disk)
    assert len(log.segments) == 3
    assert values(log) == [b"value 6", b"value 7", b"value 8", b"value 9"]


@EVERYTHING
@pytest.mark.parametrize("clean", [True, False])
def test_they_are_noticed_again_until_somebody_has_acted_on_it(remove: Remove, clean: bool) -> None:
    disk = CrashingDisk()
    write(disk)
    remove(disk)
    for _ in range(3):
        store = open_store(disk)
        log = open_log(store, _CONFIG)
        log.load()
        assert (log.lost_records, log.end_offset) == (True, 0)
        store.write_checkpoints()
        if clean:
            store.close()
        else:
            disk.crash()
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"] == 10


@EVERYTHING
@pytest.mark.parametrize("seed", range(4))
def test_what_comes_after_a_loss_that_was_accepted_is_kept(remove: Remove, seed: int) -> None:
    disk = CrashingDisk(seed)
    write(disk)
    remove(disk)
    log = load(disk)
    log.accept_loss()
    append(log, "after")
    log.flush()
    disk.crash()
    log = load(disk)
    assert (values(log), log.lost_records) == ([b"after"], False)


@EVERYTHING
def test_a_loss_that_was_accepted_is_forgotten_without_new_records_too(remove: Remove) -> None:
    disk = CrashingDisk()
    write(disk)
    remove(disk)
    log = load(disk)
    log.accept_loss()
    log.directory.write_checkpoints()
    disk.crash()
    assert not load(disk).lost_records


def test_snapshots_of_producers_go_with_the_records() -> None:
    disk = CrashingDisk()
    write(disk).close()
    assert any(name.endswith(".snapshot") for name in disk.list_dir(_PATH))
    remove_segments(disk)
    load(disk)
    assert not any(name.endswith(".snapshot") for name in disk.list_dir(_PATH))


def test_what_is_left_of_a_lost_log_goes_with_its_topic() -> None:
    disk = CrashingDisk()
    write(disk)
    remove_segments(disk)
    store = open_store(disk)
    log = open_log(store, _CONFIG)
    log.load()
    store.delete(log)
    assert not disk.exists(_PATH)
    again = store.open("t", 0, _NEW_ID, _CONFIG)
    assert (again.end_offset, again.lost_records) == (0, False)


def test_a_lost_log_without_a_directory_can_be_deleted() -> None:
    disk = CrashingDisk()
    write(disk)
    remove_directory(disk)
    store = open_store(disk)
    log = open_log(store, _CONFIG)
    log.load()
    store.delete(log)
    assert store.directories[0].failure is None
    store.write_checkpoints()
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}") == {}
    assert read_topic_ids(disk, f"/data/{TOPIC_ID_FILE}") == {}


# By right ---------------------------------------------------------------------------------------------------------


def test_a_topic_that_was_deleted_is_not_missed_by_the_next_of_its_name() -> None:
    """The power was lost between the deletion and the next checkpoint."""
    disk = CrashingDisk()
    store = write(disk)
    delete_unnoted(store, open_log(store))
    disk.sync_dir("/data")
    disk.crash()
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}")["t-0"] == 10
    log = load(disk, _NEW_ID)
    assert (log.end_offset, log.lost_records) == (0, False)
    assert read_offsets(disk, f"/data/{RECOVERY_POINT_FILE}") == {}


@EVERYTHING
def test_nor_when_its_files_were_lost_before(remove: Remove) -> None:
    disk = CrashingDisk()
    write(disk)
    remove(disk)
    log = load(disk, _NEW_ID)
    assert (log.end_offset, log.log_start_offset, log.lost_records) == (0, 0, False)
    append(log, "new")
    log.flush()
    log.directory.write_checkpoints()
    disk.crash()
    log = load(disk, _NEW_ID)
    assert (values(log), log.lost_records) == ([b"new"], False)


def test_without_topic_ids_only_a_directory_tells_whose_a_recovery_point_is() -> None:
    """As an older release left them, with recovery points of topics that are long gone."""
    disk = CrashingDisk()
    write(disk)
    disk.remove(f"/data/{TOPIC_ID_FILE}")
    remove_segments(disk)
    assert load(disk).lost_records
    remove_directory(disk)
    log = load(disk)
    assert (log.end_offset, log.lost_records) == (0, False)


@pytest.mark.parametrize("content", [b"", b"garbage", b"0\n2\nt 0 AAECAwQFBgcICQoLDA0ODw", b"0\n1\nt 0 x", b"\xff"])
def test_damaged_topic_ids_vouch_for_nothing(content: bytes) -> None:
    disk = CrashingDisk()
    write(disk)
    file = disk.open(f"/data/{TOPIC_ID_FILE}")
    file.truncate(0)
    file.write_at(0, (content,))
    remove_directory(disk)
    assert not load(disk).lost_records


def test_an_empty_disk_misses_nothing() -> None:
    disk = CrashingDisk()
    write(disk)
    disk.remove_tree("/data")
    log = load(disk)
    assert (log.end_offset, log.lost_records) == (0, False)


def test_a_log_that_never_had_records_misses_nothing() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    open_log(store, _CONFIG).load()
    store.write_checkpoints()
    store.close()
    assert not load(disk).lost_records


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_records_that_were_deleted_are_not_missed(how: str, clean: bool) -> None:
    disk = CrashingDisk()
    store = write(disk)
    log = open_log(store)
    if how == "deleted":
        log.delete_records_before(10)
    else:
        log.config = LogConfig(segment_bytes=300, retention_ms=0)
        log.apply_retention(2 * log.directory.clock.now_ms())
        log.flush()
        log.apply_retention(2 * log.directory.clock.now_ms())
    assert log.log_start_offset == log.end_offset == 10
    store.write_checkpoints()
    if clean:
        store.close()
    remove_segments(disk)
    log = load(disk)
    assert (log.log_start_offset, log.end_offset, log.lost_records) == (10, 10, False)


@pytest.mark.parametrize("start", [0, 5])
def test_a_log_that_was_cut_to_nothing_misses_nothing(start: int) -> None:
    disk = CrashingDisk()
    store = write(disk)
    log = open_log(store)
    log.delete_records_before(start)
    log.truncate_to(start)
    disk.crash()
    log = load(disk)
    assert (log.end_offset, log.lost_records) == (start, False)


@pytest.mark.parametrize("offset", [0, 5, 10, 900])
@pytest.mark.parametrize("before", [0, 10])
@pytest.mark.parametrize("seed", range(2))
def test_wherever_the_power_goes_a_log_that_starts_anew_misses_nothing(before: int, offset: int, seed: int) -> None:
    """Its first file, its start and its recovery point become durable one after the other."""
    for operation in range(1, 200):
        disk = CrashingDisk(seed)
        store = write(disk, before) if before else open_store(disk)
        log = open_log(store, _CONFIG)
        log.load()
        disk.power_loss_at = disk.operations + operation
        done = False
        with contextlib.suppress(PowerLoss):
            log.truncate_full_and_start_at(offset)
            store.directories[0].write_checkpoints()
            append(log, "new")
            log.flush()
            store.directories[0].write_checkpoints()
            done = True
        disk.crash()
        assert not load(disk).lost_records, operation
        if done:
            return
    raise AssertionError("it takes no more than 200 operations")


def test_a_log_that_was_emptied_just_before_a_clean_stop_is_clean() -> None:
    disk = CrashingDisk()
    store = write(disk, 2)
    open_log(store).delete_records_before(2)
    store.close()
    log = load(disk)
    assert (log.log_start_offset, log.end_offset, log.clean_end_offset) == (2, 2, 2)


@pytest.mark.parametrize("seed", range(3))
def test_wherever_the_power_goes_a_deleted_and_a_new_topic_miss_nothing(seed: int) -> None:
    for operation in range(1, 200):
        disk = CrashingDisk(seed)
        store = write(disk)
        disk.power_loss_at = disk.operations + operation
        done = False
        with contextlib.suppress(PowerLoss):
            store.delete(open_log(store))
            log = store.open("t", 0, _NEW_ID, _CONFIG)
            append(log, "new")
            log.flush()
            store.directories[0].write_checkpoints()
            done = True
        disk.crash()
        log = load(disk, _NEW_ID)
        assert not log.lost_records, operation
        assert values(log) in ([[b"new"]] if done else [[], [b"new"]]), operation
        if done:
            return
    raise AssertionError("it takes no more than 200 operations")
