"""Many logs: opening costs nothing, files are shared fairly, topics are known by id, deleting is final."""

import asyncio
import errno
import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.log import recovery
from penstock.log.config import LogConfig
from penstock.log.disk import OsDisk
from penstock.log.offset_index import IndexCache
from penstock.log.partition_log import PartitionLog
from penstock.log.reading import FileSpan
from penstock.log.segment import OpenFiles, Segment
from penstock.log.store import load_quietly
from penstock.model.errors import ErrorCode
from penstock.model.ids import format_uuid
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, TOPIC_ID, append, batch, code_of, open_log, open_store, values
from tests.waiting import eventually_async


def test_an_idle_partition_costs_no_file_and_next_to_no_memory() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    config = LogConfig()
    operations = disk.operations
    gc.collect()
    tracemalloc.start()
    logs = [store.open("idle", number, TOPIC_ID, config) for number in range(1000)]
    opened = tracemalloc.get_traced_memory()[0] / 1000
    assert all(log.end_offset == 0 for log in logs)
    looked_at = tracemalloc.get_traced_memory()[0] / 1000
    tracemalloc.stop()
    assert disk.operations == operations, "nothing is created before the first append"
    assert opened < 1000
    assert looked_at < 2000


def test_open_files_are_bounded_and_everything_stays_readable(tmp_path: object) -> None:
    store = open_store(OsDisk(), str(tmp_path), max_open_files=5)
    logs = [open_log(store, LogConfig(flush_mode="os"), partition=number) for number in range(30)]
    for _ in range(3):
        for number, log in enumerate(logs):
            append(log, f"{number}")
            assert len(store.files) <= 5
    for number, log in enumerate(logs):
        assert values(log) == [b"%d" % number] * 3
    store.close()
    assert len(store.files) == 0


def test_the_clock_prefers_files_in_use() -> None:
    disk = CrashingDisk()
    disk.make_dirs("/d")
    files = OpenFiles(disk, 3)
    segments = [Segment("/d", number) for number in range(5)]
    for segment in segments[:3]:
        files.open(segment, create=True)
    for segment in segments[:3]:
        segment.used = False
    segments[0].used = True
    segments[1].dirty = True
    files.open(segments[3], create=True)
    assert [segment.file is not None for segment in segments] == [True, True, False, True, False]
    files.release(segments[0])
    assert segments[0].file is None
    assert len(files) == 2


def test_the_index_cache_is_bounded() -> None:
    disk = CrashingDisk()
    disk.make_dirs("/d")
    cache = IndexCache(disk, capacity_bytes=64)
    for number in range(5):
        disk.open(f"/d/{number}", create=True).write_at(0, (bytes(40),))
        assert len(cache.get(f"/d/{number}").offsets) == 5
    assert len(cache._entries) == 1
    assert len(cache.get("/d/none").offsets) == 0


def test_opening_again_gives_the_same_log_and_another_id_is_refused() -> None:
    store = open_store()
    log = open_log(store)
    assert open_log(store) is log
    assert store.get("t", 0) is log
    assert store.get("t", 1) is None
    with pytest.raises(ValueError, match="is open with topic id"):
        store.open("t", 0, b"another topic id", LogConfig())


def test_new_logs_go_to_the_emptiest_directory_and_stay_there() -> None:
    disk = CrashingDisk()
    store = open_store(disk, "/a", "/b")
    for number in range(4):
        append(open_log(store, partition=number), f"{number}")
    homes = {log.partition: log.directory.path for log in store.logs()}
    assert sorted(homes.values()) == ["/a", "/a", "/b", "/b"]
    store.close()
    store = open_store(disk, "/a", "/b")
    for number in (3, 1, 2, 0):
        log = open_log(store, partition=number)
        assert log.directory.path == homes[number]
        assert values(log) == [b"%d" % number]


def test_a_deleted_log_is_gone_at_once_and_its_name_is_free() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store)
    append(log, "old")
    span = log.read(0, 100, 1)
    store.delete(log)
    assert store.get("t", 0) is None
    assert code_of(log.append_as_leader(batch("v"), 0, NOW_MS)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert isinstance(span, FileSpan)
    assert span.read(), "whoever is reading may finish"
    fresh = store.open("t", 0, b"another topic id", LogConfig())
    assert append(fresh, "new") == 0
    store.close()
    assert disk.list_dir("/data/t-0")
    assert values(open_store(disk).open("t", 0, b"another topic id", LogConfig())) == [b"new"]


def test_a_log_that_was_never_touched_can_be_deleted() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    append(open_log(store))
    store.close()
    store = open_store(disk)
    store.delete(open_log(store))
    assert not disk.exists("/data/t-0")
    store.close()
    assert b"t 0" not in disk.open("/data/recovery-point-offset-checkpoint").read_at(0, 1000)


def test_what_a_crash_left_of_a_deletion_is_removed_after_the_start() -> None:
    async def scenario() -> None:
        disk = CrashingDisk()
        disk.make_dirs("/data/t-0.AAAA-delete/x")
        store = open_store(disk)
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            await eventually_async(lambda: disk.list_dir("/data") == [])

    asyncio.run(scenario())


def doomed(disk: CrashingDisk) -> list[str]:
    return [name for name in disk.list_dir("/data") if name.endswith("-delete")]


def test_a_replica_that_leaves_again_does_not_wait_for_the_files_of_the_first_time() -> None:
    """Removing a large partition takes its time; meanwhile it may have come back and be gone once more."""
    disk = CrashingDisk()
    store = open_store(disk)

    async def leave(times: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            store.start(asyncio.get_running_loop(), pool)
            pool.submit(go_on.wait, 20)
            for _ in range(times):
                log = open_log(store)
                append(log)
                log.flush()
                store.delete(log)
            assert store.directories[0].failure is None
            assert len(doomed(disk)) == times
            go_on.set()
            await eventually_async(lambda: doomed(disk) == [])

    go_on = threading.Event()
    asyncio.run(leave(3))


def test_nor_does_it_meet_what_an_earlier_process_left() -> None:
    disk = CrashingDisk()
    for _ in range(3):
        store = open_store(disk)
        log = open_log(store)
        append(log)
        aside = store.directories[0].path_aside(log.name, log.topic_id, "delete")
        disk.rename(log.path, aside)  # and is killed
    assert len(doomed(disk)) == 3


@pytest.mark.parametrize("length", [1, 215, 249])
def test_a_topic_with_the_longest_name_can_be_deleted(length: int) -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store, topic="t" * length, partition=12345 if length < 249 else 0)
    append(log)
    store.delete(log)
    assert store.directories[0].failure is None
    assert doomed(disk) == []
    assert not disk.exists(log.path)


def test_strays_are_found_and_moved_aside() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    append(open_log(store))
    append(open_log(store, topic="gone"))
    store.close()
    store = open_store(disk)
    open_log(store)
    ((directory, name),) = store.strays()
    assert name == "gone-0"
    store.move_stray_aside(directory, name)
    assert store.strays() == []
    (aside,) = strays_aside(disk)
    assert aside == f"gone-0.{format_uuid(TOPIC_ID)}-1-stray"
    assert disk.exists(f"/data/{aside}/00000000000000000000.log")
    assert open_store(disk).strays()[0][1] == "t-0", "a stray is not taken for a topic named so"


def strays_aside(disk: CrashingDisk) -> list[str]:
    return [name for name in disk.list_dir("/data") if name.endswith("-stray")]


@pytest.mark.parametrize("tells_its_topic", [True, False])
def test_a_stray_may_come_again(tells_its_topic: bool) -> None:
    disk = CrashingDisk()
    for _ in range(3):
        store = open_store(disk)
        append(open_log(store))
        store.close()
        if not tells_its_topic:
            disk.remove("/data/t-0/partition.metadata")
        store = open_store(disk)
        for directory, name in store.strays():
            store.move_stray_aside(directory, name)
        assert store.strays() == []
    assert len(strays_aside(disk)) == 3


def test_the_directory_of_another_topic_may_come_again() -> None:
    disk = CrashingDisk()
    for _ in range(2):
        for topic_id in (TOPIC_ID, b"another topic id"):
            store = open_store(disk)
            log = store.open("t", 0, topic_id, LogConfig())
            append(log)
            assert log.end_offset == 1
            store.close()
    assert len(strays_aside(disk)) == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_stray_that_cannot_be_moved_keeps_nobody_from_starting(code: int) -> None:
    """A disk that is broken fails as a whole, others live on; on a full one the next start tries again."""
    disk = CrashingDisk()
    store = open_store(disk)
    for topic in ("gone", "too"):
        append(open_log(store, topic=topic))
    store.close()
    store = open_store(disk)
    disk.failing["/data/gone-0"] = code
    for directory, name in store.strays():
        store.move_stray_aside(directory, name)
    assert (store.directories[0].failure is not None) == (code == errno.EIO)
    disk.failing.clear()
    left = {name for _, name in open_store(disk).strays()}
    assert left == ({"gone-0"} if code == errno.ENOSPC else {"gone-0", "too-0"})


def test_high_watermarks_and_starts_of_untouched_logs_survive() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    for topic in ("t", "untouched"):
        log = open_log(store, topic=topic)
        for _ in range(6):
            append(log)
        log.flush()
        log.high_watermark = 5
        log.delete_records_before(3)
    store.close()
    for _ in range(3):
        store = open_store(disk)
        assert open_log(store).log_start_offset == 3
        store.write_checkpoints()
        store.close()
    log = open_log(open_store(disk), topic="untouched")
    assert (log.high_watermark, log.log_start_offset, log.end_offset) == (5, 3, 6)


def test_kafka_names_and_formats() -> None:
    disk = CrashingDisk()
    store = open_store(disk)
    log = open_log(store, topic="my.topic-1", partition=12)
    append(log, epoch=3)
    append(log, epoch=4)
    log.high_watermark = 2
    store.close()
    assert sorted(disk.list_dir("/data")) == [
        ".kafka_cleanshutdown",
        "log-start-offset-checkpoint",
        "my.topic-1-12",
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "topic-id-checkpoint",
    ]
    assert sorted(disk.list_dir("/data/my.topic-1-12")) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000002.snapshot",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]

    def content(path: str) -> bytes:
        return disk.open(path).read_at(0, 1000)

    assert content("/data/recovery-point-offset-checkpoint") == b"0\n1\nmy.topic-1 12 2\n"
    assert content("/data/replication-offset-checkpoint") == b"0\n1\nmy.topic-1 12 2\n"
    assert content("/data/log-start-offset-checkpoint") == b"0\n0\n"
    assert content("/data/topic-id-checkpoint") == b"0\n1\nmy.topic-1 12 AAECAwQFBgcICQoLDA0ODw\n"
    assert content("/data/my.topic-1-12/leader-epoch-checkpoint") == b"0\n2\n3 0\n4 1\n"
    assert content("/data/my.topic-1-12/partition.metadata").startswith(b"version: 0\ntopic_id: ")


def test_a_topic_that_is_deleted_while_its_log_recovers_is_no_fault_of_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = CrashingDisk()
    for name in ("t", "other"):
        log = open_log(open_store(disk), topic=name)
        append(log, "a")
        log.flush()
    disk.crash()
    store = open_store(disk)
    log = open_log(store)
    find = recovery._find_segments

    def meanwhile(which: PartitionLog, start_offset: int) -> list[Segment]:
        segments = find(which, start_offset)
        if which is log:
            store.delete(log)
        return segments

    monkeypatch.setattr(recovery, "_find_segments", meanwhile)
    assert load_quietly(log) is not None
    assert store.directories[0].failure is None
    assert values(open_log(store, topic="other")) == [b"a"]
    again = store.open("t", 0, b"a new topic's id", LogConfig())
    assert append(again, "new") == 0
