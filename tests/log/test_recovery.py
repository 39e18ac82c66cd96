"""Starting again: after a clean stop or a kill, with torn and flipped tails, damaged indexes, strays."""

import logging
import random

import pytest

from penstock.log.config import LogConfig
from penstock.log.errors import CorruptSegment
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore, load_quietly
from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, TOPIC_ID, all_records, append, batch, code_of, open_log, open_store, values

_CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=200)
_PATH = "/data/t-0"


def fill(disk: CrashingDisk, count: int = 40, config: LogConfig = _CONFIG) -> LogStore:
    """A store with a log of several segments, synced, its recovery point in a checkpoint."""
    store = open_store(disk)
    log = open_log(store, config)
    for number in range(count):
        fields = {"producer_id": 1 + number % 2, "producer_epoch": 0, "base_sequence": number // 2}
        append(log, f"value {number}", epoch=number // 15, timestamp_ms=NOW_MS + number, **fields)
    log.flush()
    return store


def restart(disk: CrashingDisk, config: LogConfig = _CONFIG) -> PartitionLog:
    return open_log(open_store(disk), config)


def expected(count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(count)]


def last_log(disk: CrashingDisk) -> str:
    return max(f"{_PATH}/{name}" for name in disk.list_dir(_PATH) if name.endswith(".log"))


def logs_on(disk: CrashingDisk) -> list[str]:
    return sorted(f"{_PATH}/{name}" for name in disk.list_dir(_PATH) if name.endswith(".log"))


def test_clean_restart_finds_everything_without_walking() -> None:
    disk = CrashingDisk()
    store = fill(disk)
    before = store.get("t", 0)
    assert before is not None
    epochs, start = before.leader_epochs.entries(), before.producers.get(1)
    store.close()
    operations = disk.operations
    store = open_store(disk)
    assert store.directories[0].was_clean
    log = open_log(store, _CONFIG)
    assert log.end_offset == log.synced_end_offset == 40
    assert disk.operations <= operations + 3, "loading changes nothing but the clean-shutdown marker"
    assert values(log) == expected(40)
    assert log.leader_epochs.entries() == epochs == [(0, 0), (1, 15), (2, 30)]
    assert start is not None
    assert log.producers.get(1).batches == start.batches, "the whole window of five"  # type: ignore[union-attr]
    assert log.find_by_timestamp(NOW_MS + 33) == (NOW_MS + 33, 33, 2)
    assert append(log, "more", epoch=2) == 40


def test_the_marker_holds_for_one_start_only() -> None:
    disk = CrashingDisk()
    fill(disk).close()
    open_store(disk)
    assert not open_store(disk).directories[0].was_clean


def test_killed_broker_finds_all_that_was_written() -> None:
    disk = CrashingDisk()
    fill(disk)
    log = restart(disk)
    assert values(log) == expected(40)
    assert log.synced_end_offset == 40, "recovery made it durable"
    assert log.find_by_timestamp(NOW_MS + 12) == (NOW_MS + 12, 12, 0)
    again = log.append_as_leader(batch("x", producer_id=1, producer_epoch=0, base_sequence=19), 2, NOW_MS)
    assert (again.duplicate, again.base_offset) == (True, 38)  # type: ignore[union-attr]


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 61, b"x", bytes(range(200))])
def test_a_torn_tail_is_cut_off(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()
    fill(disk)
    path = last_log(disk)
    size = disk.size(path)
    disk.open(path).write_at(size, (garbage,))
    with caplog.at_level(logging.WARNING):
        log = restart(disk)
        assert log.end_offset == 40
    assert disk.size(path) == size
    assert f"the last {len(garbage)} bytes are cut off" in caplog.text
    assert append(log, "more", epoch=2) == 40
    assert values(log) == [*expected(40), b"more"]


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_in_the_active_segment_ends_the_log_there(seed: int) -> None:
    rng = random.Random(seed)
    disk = CrashingDisk()
    fill(disk)
    path = last_log(disk)
    content = disk.open(path).read_at(0, disk.size(path))
    position = rng.randrange(len(content))
    disk.flip_bit(path, position, rng.randrange(8))
    batches = list(iter_headers(content))
    pos, hit = next((p, h) for p, h in batches if p <= position < p + h.size_bytes)
    log = restart(disk)
    harmless = 12 <= position - pos < 16  # the leader epoch is not under the CRC; a larger one passes unnoticed
    assert log.end_offset == hit.base_offset or harmless
    assert values(log) == expected(log.end_offset)
    assert append(log, "more", epoch=2**31 - 1) == log.end_offset - 1


def test_a_damaged_closed_segment_keeps_the_partition_offline() -> None:
    disk = CrashingDisk()
    store = fill(disk)
    store.write_checkpoints()
    other = store.open("other", 0, TOPIC_ID, _CONFIG)
    append(other, "fine")
    other.flush()
    path = logs_on(disk)[0]
    disk.flip_bit(path, disk.size(path) - 5)
    store = open_store(disk)
    log = open_log(store, _CONFIG)
    with pytest.raises(CorruptSegment, match=r"00000000000000000000\.log is damaged at byte \d+: the CRC .*Restore"):
        log.load()
    assert code_of(log.append_as_leader(batch("v"), 9, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.read(0, 100, 10) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.find_by_timestamp(0) is None
    refusal = load_quietly(log)
    assert refusal is not None
    assert path in refusal.message
    assert len(logs_on(disk)) > 3, "nothing was dropped"
    assert values(store.open("other", 0, TOPIC_ID, _CONFIG)) == [b"fine"], "the rest lives on"
    store.close()
    disk.flip_bit(path, disk.size(path) - 5)
    assert values(restart(disk)) == expected(40), "repaired, it is back"


def test_a_closed_segment_cut_short_keeps_the_partition_offline() -> None:
    disk = CrashingDisk()
    fill(disk).write_checkpoints()
    path = logs_on(disk)[1]
    disk.open(path).truncate(disk.size(path) - 10)
    with pytest.raises(CorruptSegment, match="ends within a batch"):
        restart(disk).load()


def test_lazy_access_to_a_damaged_log_is_refused_not_raised() -> None:
    disk = CrashingDisk()
    fill(disk).write_checkpoints()
    disk.flip_bit(logs_on(disk)[0], disk.size(logs_on(disk)[0]) - 1)
    log = restart(disk)
    assert code_of(log.append_as_leader(batch("v"), 9, NOW_MS)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.offline is not None


def forget_epochs(disk: CrashingDisk, how: str) -> None:
    """A log that is synced and checkpointed, whose epochs the next start has to learn from the batches."""
    store = fill(disk)
    store.write_checkpoints()
    if how == "their file is gone":
        disk.remove(f"{_PATH}/leader-epoch-checkpoint")
    else:
        log = open_log(store)
        log.delete_records_before(5)
        log.flush()  # the epochs begin at 5 now, and the log start is not durable before the next checkpoint


@pytest.mark.parametrize("how", ["their file is gone", "records were deleted"])
def test_synced_segments_are_not_dropped_where_epochs_must_be_learned_again(how: str) -> None:
    disk = CrashingDisk()
    forget_epochs(disk, how)
    paths = logs_on(disk)
    disk.flip_bit(paths[1], disk.size(paths[1]) - 1)
    disk.crash()
    with pytest.raises(CorruptSegment, match="the CRC does not match"):
        restart(disk).load()
    assert logs_on(disk) == paths, "nothing was dropped"


@pytest.mark.parametrize("how", ["their file is gone", "records were deleted"])
def test_a_synced_end_that_is_gone_is_noticed_where_epochs_must_be_learned_again(how: str) -> None:
    disk = CrashingDisk()
    forget_epochs(disk, how)
    disk.flip_bit(last_log(disk), disk.size(last_log(disk)) - 1)
    disk.crash()
    log = restart(disk)
    assert (log.end_offset, log.lost_records) == (39, True)


def test_segments_behind_a_bad_one_above_the_recovery_point_go(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()
    fill(disk)  # no checkpoint: the recovery point is 0
    paths = logs_on(disk)
    disk.flip_bit(paths[1], disk.size(paths[1]) - 1)
    with caplog.at_level(logging.WARNING):
        log = restart(disk)
        end = log.end_offset
    assert values(log) == expected(end)
    assert logs_on(disk) == paths[:2]
    assert "is dropped" in caplog.text
    assert append(log, "more", epoch=2) == end


def test_a_missing_segment_in_the_middle_ends_the_log(caplog: pytest.LogCaptureFixture) -> None:
    disk = CrashingDisk()
    fill(disk)
    paths = logs_on(disk)
    disk.remove(paths[1])
    log = restart(disk)
    assert log.end_offset == int(paths[1][-24:-4])
    assert values(log) == expected(log.end_offset)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_lost_indexes_of_the_active_segment_are_rebuilt(suffix: str, clean: bool) -> None:
    disk = CrashingDisk()
    store = fill(disk)
    if clean:
        store.close()
    else:
        open_log(store).close()
    path = last_log(disk).replace(".log", suffix)
    content = disk.open(path).read_at(0, 10_000)
    disk.remove(path)
    log = restart(disk)
    assert values(log) == expected(40)
    log.close()
    assert disk.open(path).read_at(0, 10_000) == content


@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 64])
def test_damaged_indexes_after_a_kill_do_no_harm(content: bytes) -> None:
    disk = CrashingDisk()
    fill(disk).write_checkpoints()
    for path in [*logs_on(disk)[:1], last_log(disk)]:
        file = disk.open(path.replace(".log", ".index"), create=True)
        file.truncate(0)
        file.write_at(0, (content,))
    assert values(restart(disk)) == expected(40)


@pytest.mark.parametrize("clean", [True, False])
def test_damaged_snapshots_are_replaced_by_older_ones(clean: bool) -> None:
    disk = CrashingDisk()
    store = fill(disk)
    store.write_checkpoints()
    if clean:
        store.close()
    for name in sorted(disk.list_dir(_PATH))[-8:]:
        if name.endswith(".snapshot"):
            disk.flip_bit(f"{_PATH}/{name}", 8)
    log = restart(disk)
    for producer in (1, 2):
        assert log.producers.get(producer).last_sequence == 19  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [None, b"", b"0\n7\n1 2\n", b"junk"])
def test_a_lost_epoch_checkpoint_is_rebuilt(content: bytes | None) -> None:
    disk = CrashingDisk()
    store = fill(disk)
    store.close()
    path = f"{_PATH}/leader-epoch-checkpoint"
    if content is None:
        disk.remove(path)
    else:
        file = disk.open(path)
        file.truncate(0)
        file.write_at(0, (content,))
    assert restart(disk).leader_epochs.entries() == [(0, 0), (1, 15), (2, 30)]


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_damaged_offset_checkpoints_cost_only_work(name: str) -> None:
    disk = CrashingDisk()
    fill(disk).close()
    disk.open(f"/data/{name}").write_at(0, (b"garbage",))
    assert values(restart(disk)) == expected(40)


def test_a_directory_of_another_topic_is_moved_aside() -> None:
    disk = CrashingDisk()
    fill(disk).close()
    store = open_store(disk)
    log = store.open("t", 0, b"another topic id", _CONFIG)
    assert log.end_offset == 0
    assert append(log, "new") == 0
    assert any(name.startswith("t-0.") and name.endswith("-stray") for name in disk.list_dir("/data"))
    store.close()
    log = open_store(disk).open("t", 0, b"another topic id", _CONFIG)
    assert values(log) == [b"new"]


def test_a_directory_without_topic_id_is_adopted() -> None:
    disk = CrashingDisk()
    fill(disk).close()
    disk.remove(f"{_PATH}/partition.metadata")
    assert restart(disk).end_offset == 40
    content = disk.open(f"{_PATH}/partition.metadata").read_at(0, 100)
    assert content == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


def test_a_log_that_was_not_recovered_does_not_become_clean_by_a_clean_stop() -> None:
    disk = CrashingDisk()
    fill(disk)
    path = last_log(disk)
    disk.open(path).write_at(disk.size(path), (b"torn",))
    store = open_store(disk)  # after a crash, and nobody touches the log
    store.close()
    store = open_store(disk)
    assert store.directories[0].was_clean
    log = open_log(store, _CONFIG)
    assert log.end_offset == 40
    assert values(log) == expected(40)
    assert disk.size(path) == log.segments[-1].size_bytes


def test_leftovers_are_swept_up() -> None:
    disk = CrashingDisk()
    fill(disk).close()
    for name in ("00000000000000000000.log.deleted", "x.tmp", "00000000000000099999.index", "y.cleaned"):
        disk.open(f"{_PATH}/{name}", create=True)
    restart(disk).load()
    left = disk.list_dir(_PATH)
    assert not [name for name in left if name.endswith((".deleted", ".tmp", ".cleaned")) or "99999" in name]


def test_records_read_back_are_those_written_whatever_the_window() -> None:
    disk = CrashingDisk()
    fill(disk)
    log = restart(disk)
    for max_bytes in (1, 71, 500, 5000):
        assert [r.value for r in all_records(log, max_bytes=max_bytes)] == expected(40)
