"""When a log is compacted, in how much memory, beside whom, and what is on disk when it goes wrong."""

import contextlib
import errno
import logging
import random
from collections.abc import Callable
from typing import TypeVar

import msgspec
import pytest

from penstock.log.checkpoints import decode_offsets, read_whole
from penstock.log.compaction.cleaner import Candidate, Cleaner, RoundLost
from penstock.log.compaction.plan import measure_dirt, plan_round, wants_compaction
from penstock.log.compaction.round import Rewritten, Scanned
from penstock.log.compaction.swap import finish_swaps
from penstock.log.compaction.throttle import Throttle
from penstock.log.partition_log import PartitionLog
from penstock.log.reading import FileSpan
from penstock.log.store import load_quietly
from penstock.records.batch import HEADER, patch_crc
from penstock.records.builder import build_batch
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.compacting import (
    COMPACT,
    InlineWorker,
    batches,
    close_segment,
    compact,
    consume,
    finish,
    new_cleaner,
    put,
    records,
    run_inline,
    table,
)
from tests.log.logs import NOW_MS, StillClock, open_log, open_store
from tests.log.test_compaction import Bench, offsets

T = TypeVar("T")

_PATH = "/data/t-0"


def fill(bench: Bench, count: int = 60, keys: int = 7) -> dict[str, str]:
    for number in range(count):
        put(bench.log, (f"k{number % keys}", f"value {number}"), timestamp_ms=NOW_MS + number)
    close_segment(bench.log)
    return {f"k{number % keys}": f"value {number}" for number in range(count)}


def checkpoint(bench: Bench) -> dict[str, int]:
    return decode_offsets(read_whole(bench.disk, "/data/cleaner-offset-checkpoint") or b"0\n0\n")


# When -------------------------------------------------------------------------------------------------------------


def test_the_dirty_ratio_decides() -> None:
    bench = Bench(min_cleanable_dirty_ratio=0.5, segment_bytes=2000)
    cleaner = new_cleaner(bench.log)
    for number in range(40):
        put(bench.log, (f"k{number}", "v" * 50))
    close_segment(bench.log)
    compact(bench.log, cleaner)
    assert cleaner.rounds == 1, "all of it was dirty"
    ratios = []
    while cleaner.rounds == 1:
        put(bench.log, ("k0", "v" * 50))
        close_segment(bench.log)
        ratios.append(measure_dirt(bench.log, bench.log.end_offset, NOW_MS).ratio)
        compact(bench.log, cleaner)
    assert ratios == sorted(ratios)
    assert ratios[-2] <= 0.5 < ratios[-1]


def test_young_records_are_left_alone() -> None:
    bench = Bench(min_compaction_lag_ms=1000)
    put(bench.log, ("k", "1"))
    put(bench.log, ("k", "2"))
    close_segment(bench.log)
    bench.wait(600)
    put(bench.log, ("k", "3"))
    close_segment(bench.log)
    compact(bench.log)
    assert offsets(bench.log) == [0, 1, 2]
    bench.wait(401)
    compact(bench.log)
    assert offsets(bench.log) == [1, 2]
    bench.wait(600)
    compact(bench.log)
    assert offsets(bench.log) == [2]


def test_old_records_are_compacted_whatever_the_ratio() -> None:
    bench = Bench(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000)
    put(bench.log, ("k", "1"))
    put(bench.log, ("k", "2"))
    bench.log.flush()
    compact(bench.log)
    assert len(bench.log.segments) == 1
    bench.wait(1001)
    compact(bench.log)  # closes the active segment, which is compacted once it is synced
    bench.log.flush()
    compact(bench.log)
    assert offsets(bench.log) == [1]


def test_only_what_is_committed_and_synced_is_compacted() -> None:
    bench = Bench()
    fill(bench)
    log = bench.log
    ends = [segment.base_offset for segment in log.segments[1:]]
    assert measure_dirt(log, ends[1] + 1, NOW_MS).end_offset == ends[1]
    assert measure_dirt(log, ends[1] - 1, NOW_MS).end_offset == ends[0]
    put(log, ("k", "v"))
    log.roll()
    assert measure_dirt(log, log.end_offset, NOW_MS).end_offset == ends[-1], "the last one is not synced"
    log.flush()
    assert measure_dirt(log, log.end_offset, NOW_MS).end_offset == log.end_offset


def test_the_dirtiest_log_comes_first_and_others_are_left_alone() -> None:
    store = open_store(CrashingDisk(), clock=StillClock())
    dirty, dirtier, deleting = (open_log(store, COMPACT, topic) for topic in ("dirty", "dirtier", "deleting"))
    deleting.config = msgspec.structs.replace(COMPACT, cleanup_policy=frozenset({"delete"}))
    order: list[str] = []

    def begin(disk: CrashingDisk, plan: object) -> InlineWorker:
        order.append(plan.path)  # type: ignore[attr-defined]
        return InlineWorker(disk, plan)  # type: ignore[arg-type]

    cleaner = Cleaner(store.clock, begin, run_inline)  # type: ignore[arg-type]
    for log in (dirty, dirtier, deleting):
        put(log, ("k", "v" * 100))
        close_segment(log)
    finish(cleaner.compact_all(lambda: [Candidate(dirty, 99)], 1 << 20))
    put(dirty, ("k", "w"))
    close_segment(dirty)
    order.clear()
    finish(cleaner.compact_all(lambda: [Candidate(log, 99) for log in (dirty, deleting, dirtier)], 1 << 20))
    assert order == ["/data/dirtier-0", "/data/dirty-0"]
    assert len(records(deleting)) == 1


# The checkpoint ---------------------------------------------------------------------------------------------------


def test_the_checkpoint_says_how_far_it_got() -> None:
    bench = Bench()
    fill(bench)
    compact(bench.log)
    assert read_whole(bench.disk, "/data/cleaner-offset-checkpoint") == b"0\n1\nt 0 60\n"
    bench.store.close()
    bench.boot()
    assert not wants_compaction(bench.log, measure_dirt(bench.log, 60, NOW_MS))
    put(bench.log, ("k1", "newest"))
    close_segment(bench.log)
    dirt = measure_dirt(bench.log, 61, NOW_MS)
    assert (dirt.first_dirty_offset, dirt.end_offset) == (60, 61)
    compact(bench.log)
    assert checkpoint(bench) == {"t-0": 61}


@pytest.mark.parametrize("content", [None, b"garbage", b"0\n1\nt 0 9999\n"])
def test_a_lost_or_wrong_checkpoint_costs_only_work(content: bytes | None) -> None:
    bench = Bench()
    expected = fill(bench)
    compact(bench.log)
    bench.store.close()
    path = "/data/cleaner-offset-checkpoint"
    bench.disk.remove(path)
    if content is not None:
        bench.disk.open(path, create=True).write_at(0, (content,))
    bench.boot()
    assert measure_dirt(bench.log, 60, NOW_MS).first_dirty_offset == 0
    compact(bench.log)
    assert table(records(bench.log)) == expected
    assert checkpoint(bench) == {"t-0": 60}


def test_truncation_and_deletion_lower_the_checkpoint() -> None:
    bench = Bench()
    fill(bench)
    compact(bench.log)
    bench.log.truncate_to(57)
    assert measure_dirt(bench.log, 60, NOW_MS).first_dirty_offset == bench.log.end_offset <= 57
    bench.store.delete(bench.log)
    again = open_log(bench.store, COMPACT)
    put(again, ("k", "v"))
    assert measure_dirt(again, 1, NOW_MS).first_dirty_offset == 0


@pytest.mark.parametrize("more", [False, True])
def test_a_clean_segment_that_was_closed_anew_is_synced_first(more: bool) -> None:
    """Cut just where it ends, it was the active one once more. The sync looks for it under its own name, which is
    gone when it has become one with its neighbour."""
    bench = Bench()
    log = bench.log
    for value in ("1", "2"):
        put(log, ("a", value * 300), (f"deleted {value}", None))
        close_segment(log)
    put(log, ("b", "1"))
    log.flush()
    cleaner = compact(log)
    log.truncate_to(4)
    log.roll()
    if more:
        put(log, ("c", "1"))
        log.roll()
    bench.clock.value_ms += COMPACT.delete_retention_ms + 1
    compact(log, cleaner)
    log.flush()
    assert log.directory.failure is None
    compact(log, cleaner)
    assert [record.value for record in records(log)] == [b"2" * 300, *([b"1"] if more else [])], "tombstones went"


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_bytes", [1, 50, 150, 400, 1000])
def test_what_does_not_fit_is_left_to_the_next_round(buffer_bytes: int) -> None:
    bench = Bench(segment_bytes=1200)
    rng = random.Random(buffer_bytes)
    expected = {}
    for number in range(60):
        pairs = [(f"k{rng.randrange(90)}", f"{number}.{at}") for at in range(rng.randint(1, 8))]
        expected.update(pairs)
        put(bench.log, *pairs)
    close_segment(bench.log)
    cleaner = compact(bench.log, buffer_bytes=buffer_bytes)
    assert cleaner.rounds > 1
    assert table(records(bench.log)) == expected
    assert len(records(bench.log)) == len(expected), "in the end nothing superseded is left"
    assert checkpoint(bench) == {"t-0": bench.log.end_offset}


def test_few_keys_with_many_updates_need_one_round() -> None:
    bench = Bench(segment_bytes=100_000)
    for number in range(300):
        put(bench.log, *((f"k{at}", f"{number}") for at in range(10)))
    close_segment(bench.log)
    cleaner = compact(bench.log, buffer_bytes=8000)  # a byte for each record, and room for some keys
    assert cleaner.rounds == 1
    assert len(records(bench.log)) == 10


# Beside others ----------------------------------------------------------------------------------------------------


def test_spans_of_replaced_segments_stay_readable() -> None:
    bench = Bench()
    fill(bench)
    spans = [bench.log.read(segment.base_offset, 10_000, 60) for segment in bench.log.segments[:-1]]
    before = [span.read() for span in spans if isinstance(span, FileSpan)]
    compact(bench.log)
    assert [span.read() for span in spans if isinstance(span, FileSpan)] == before
    fresh = bench.log.read(0, 10_000, 60)
    assert isinstance(fresh, FileSpan)
    assert fresh.read() not in before


def test_readers_in_the_pool_look_again_when_segments_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    expected = fill(bench)
    log = bench.log
    compacted = []

    def compact_in_between() -> None:
        if not compacted:
            compacted.append(True)
            compact(log)

    find, read = log.find_by_timestamp, PartitionLog.read

    def slow_read(self: PartitionLog, *arguments: int) -> object:
        span = read(self, *arguments)
        compact_in_between()
        return span

    monkeypatch.setattr(PartitionLog, "read", slow_read)
    data = log.read_bytes(0, 10_000)
    assert isinstance(data, bytes)
    assert int.from_bytes(data[:8], "big") == batches(log)[0][0].base_offset, "what is there now"
    monkeypatch.undo()
    assert find(NOW_MS + 20) == (NOW_MS + 53, 53, 0)
    assert table(consume(log, read_committed=False).records) == expected


def test_indexes_lead_to_every_batch() -> None:
    bench = Bench(index_interval_bytes=1, segment_bytes=3000)
    rng = random.Random(5)
    for number in range(200):
        put(bench.log, (f"k{rng.randrange(100)}", "v" * 30), timestamp_ms=NOW_MS + number)
    close_segment(bench.log)
    compact(bench.log)
    there = offsets(bench.log)
    for cached in (True, False):
        if not cached:
            bench.store.close()
            bench.boot()
        for offset in range(200):
            data = bench.log.read_bytes(offset, 1)
            assert isinstance(data, bytes)
            following = next(header for header, _ in batches(bench.log) if header.last_offset >= offset)
            assert int.from_bytes(data[:8], "big") == following.base_offset
            place = bench.log.find_by_timestamp(NOW_MS + offset)
            expected = next((at for at in there if at >= offset), None)
            assert (place.offset if place else None) == expected


def test_compact_and_delete_together() -> None:
    bench = Bench(cleanup_policy=frozenset({"compact", "delete"}), retention_ms=1000)
    fill(bench)
    compact(bench.log)
    assert bench.log.apply_retention(NOW_MS + 500) == 0
    bench.wait(1500)
    put(bench.log, ("new", "1"))
    put(bench.log, ("new", "2"))
    close_segment(bench.log)
    assert bench.log.apply_retention(bench.clock.now_ms()) > 0
    assert bench.log.log_start_offset == 60
    compact(bench.log)
    assert table(records(bench.log)) == {"new": "2"}
    assert bench.log.size_bytes == sum(segment.size_bytes for segment in bench.log.segments)
    bench.store.close()
    bench.boot()
    assert bench.log.log_start_offset == 60


class MeddlingWorker(InlineWorker):
    """Something happens to the log while it is being read or rewritten."""

    meddle = staticmethod(lambda: None)
    moment = ""

    async def scan(self) -> Scanned:
        self._reach("before it is read")
        return await super().scan()

    async def rewrite(self, number: int) -> Rewritten:
        if number == 1:
            self._reach("before it is rewritten")
        rewritten = await super().rewrite(number)
        if number == 1:
            self._reach("before it is swapped in")
        return rewritten

    def _reach(self, moment: str) -> None:
        if type(self).moment == moment:
            type(self).meddle()


@pytest.mark.parametrize("moment", ["before it is read", "before it is rewritten", "before it is swapped in"])
@pytest.mark.parametrize("what", ["delete records", "truncate", "delete topic", "lose the process"])
def test_a_round_that_is_overtaken_is_given_up(what: str, moment: str) -> None:
    bench = Bench(cleanup_policy=frozenset({"compact", "delete"}))
    expected = fill(bench, 90)
    log = bench.log

    def meddle() -> None:
        if what == "delete records":
            log.delete_records_before(80)
        elif what == "truncate":
            log.truncate_to(89)
        elif what == "delete topic":
            bench.store.delete(log)
        else:
            raise RoundLost("the process has ended with -9")

    MeddlingWorker.meddle = staticmethod(meddle)
    MeddlingWorker.moment = moment
    cleaner = Cleaner(bench.clock, MeddlingWorker, run_inline)
    compact(log, cleaner)
    assert cleaner.rounds == 0
    assert log.directory.failure is None
    if what == "delete topic":
        assert not bench.disk.exists(_PATH)
        return
    assert checkpoint(bench) == {"t-0": 0}, "nothing counts as compacted"
    assert not [name for name in bench.disk.list_dir(_PATH) if name.endswith(".cleaned")]
    compact(log)
    seen = table(records(log))
    assert all(seen[key] == value for key, value in expected.items() if int(value[6:]) in range(80, 89))
    bench.store.write_checkpoints()
    bench.boot()
    assert table(records(bench.log)) == seen


@pytest.mark.parametrize("what", ["truncate", "delete topic"])
def test_a_log_that_changes_while_its_round_is_written_down_is_given_up(what: str) -> None:
    bench = Bench()
    fill(bench, 90)
    log = bench.log

    async def run(work: Callable[[], T]) -> T:
        result = await run_inline(work)
        if cleaner.rounds == 1:
            if what == "truncate":
                log.truncate_to(10)
            else:
                bench.store.delete(log)
        return result

    cleaner = Cleaner(bench.clock, InlineWorker, run)
    compact(log, cleaner)
    assert cleaner.rounds == 1
    assert log.directory.failure is None


def test_a_damaged_segment_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    fill(bench)
    path = f"{_PATH}/{bench.log.segments[1].base_offset:020d}.log"
    bench.disk.flip_bit(path, 100)
    before = {name: bench.disk.size(f"{_PATH}/{name}") for name in bench.disk.list_dir(_PATH)}
    cleaner = new_cleaner(bench.log)
    reported: list[int] = []
    cleaner.on_damaged = lambda _, fault: reported.append(fault.offset)
    for _ in range(2):
        compact(bench.log, cleaner)
    assert cleaner.rounds == 0
    assert reported == [bench.log.segments[1].base_offset + 1]
    assert {name: bench.disk.size(f"{_PATH}/{name}") for name in bench.disk.list_dir(_PATH)} == before
    assert caplog.text.count("is not compacted any more") == 1
    assert bench.log.offline is None, "what is sound of it is served"


def test_a_damaged_log_that_was_mended_is_compacted_again() -> None:
    bench = Bench()
    fill(bench)
    damaged = bench.log.segments[1].base_offset
    bench.disk.flip_bit(f"{_PATH}/{damaged:020d}.log", 100)
    cleaner = new_cleaner(bench.log)
    compact(bench.log, cleaner)
    assert cleaner.rounds == 0
    bench.log.truncate_to(damaged)  # as a repair does, before the rest is fetched anew
    fill(bench)
    compact(bench.log, cleaner)
    assert cleaner.rounds > 0


def test_a_full_disk_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(segment_bytes=10_000)
    expected = fill(bench, 100, 90)
    bench.disk.capacity_bytes = bench.disk.used_bytes() + 500
    cleaner = new_cleaner(bench.log)
    with caplog.at_level(logging.WARNING):
        compact(bench.log, cleaner)
    assert cleaner.rounds == 0
    assert bench.log.directory.failure is None
    assert not [name for name in bench.disk.list_dir(_PATH) if name.endswith(".cleaned")]
    assert "No space left" in caplog.text
    bench.disk.capacity_bytes = None
    compact(bench.log, cleaner)
    assert len(records(bench.log)) == 90
    assert table(records(bench.log)) == expected


def test_a_failing_disk_fails_the_directory() -> None:
    bench = Bench()
    fill(bench)
    bench.disk.sync_error = errno.EIO
    compact(bench.log)
    assert bench.log.directory.failure is not None


def test_unreadable_records_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """A batch with a valid CRC whose content is no records: nobody can tell its keys."""
    bench = Bench()
    put(bench.log, ("k", "1"))
    broken = bytearray(HEADER.size) + b"\xff" * 30
    HEADER.pack_into(broken, 0, 0, len(broken) - 12, 0, 2, 0, 0, 2, NOW_MS, NOW_MS, -1, -1, -1, 3)
    patch_crc(broken, 0, len(broken))
    bench.log.append_as_leader(broken, 0, NOW_MS, origin="coordinator")
    put(bench.log, ("k", "2"))
    close_segment(bench.log)
    compact(bench.log)
    data = bench.log.read_bytes(0, 10_000)
    assert isinstance(data, bytes)
    assert bytes(broken[20:]) in data
    assert [int.from_bytes(data[:8], "big"), len(bench.log.segments)] == [1, 2]
    assert "is kept as it is" in caplog.text


# On disk ----------------------------------------------------------------------------------------------------------


def test_gaps_are_no_damage_after_the_topic_stopped_being_compacted() -> None:
    """The gap before the last batch of a segment is damage in a log that was never compacted."""
    bench = Bench()
    expected = fill(bench, 60, 2)
    compact(bench.log)
    bench.config = msgspec.structs.replace(bench.config, cleanup_policy=frozenset({"delete"}))
    bench.boot()  # no recovery point was written: everything is walked
    assert load_quietly(bench.log) is None
    assert bench.log.end_offset == 60
    assert table(records(bench.log)) == expected


def test_every_state_of_a_swap_is_finished_or_undone() -> None:
    """Renames happen one after the other; whatever prefix of them a crash leaves is put right."""
    states = 0
    for crash_at in range(1, 400):
        bench = Bench(segment_bytes=1000)
        expected = fill(bench, 60)
        put(bench.log, ("k0", "aborted"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
        bench.log.flush()
        bench.disk.power_loss_at = bench.disk.operations + crash_at
        with contextlib.suppress(PowerLoss):
            compact(bench.log)
            break
        states += 1
        bench.disk.power_loss_at = -1
        bench.boot()  # the page cache survives: exactly the operations so far
        load_quietly(bench.log)
        seen = [record for record in records(bench.log) if record.value != b"aborted"]
        assert table(seen) == expected, f"after operation {crash_at}"
        assert bench.log.end_offset == 61
        names = bench.disk.list_dir(_PATH)
        assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert len([name for name in names if name.endswith(".log")]) == len(bench.log.segments)
    assert states > 60


@pytest.mark.parametrize("refused_at", range(9))
def test_a_name_that_finds_no_room_leaves_no_half_of_a_swap(refused_at: int) -> None:
    bench = Bench(segment_bytes=1000)
    for number in range(12):
        put(bench.log, (f"k{number % 3}", f"{number}" * (number % 5)))
        if number % 3 == 2:
            close_segment(bench.log)
    expected = table(records(bench.log))
    rename, left = bench.disk.rename, refused_at

    def refuse(old: str, new: str) -> None:
        nonlocal left
        if new.endswith((".swap", ".deleted")) or old.endswith(".swap"):
            left -= 1
            if left == -1:
                raise OSError(errno.ENOSPC, "no room for another name", new)
        rename(old, new)

    bench.disk.rename = refuse  # type: ignore[method-assign]
    cleaner = new_cleaner(bench.log)
    compact(bench.log, cleaner)
    bench.disk.rename = rename  # type: ignore[method-assign]
    assert left < 0, "there are as many renames"
    if refused_at < 6:
        assert bench.log.directory.failure is None
        assert table(consume(bench.log, read_committed=False).records) == expected
        assert not [name for name in bench.disk.list_dir(_PATH) if name.endswith((".cleaned", ".swap", ".deleted"))]
        compact(bench.log, cleaner)
        assert bench.log.directory.failure is None
        assert len(bench.log.segments) == 2
        assert table(records(bench.log)) == expected
    else:
        assert bench.log.directory.failure is not None
    bench.boot()
    assert table(records(bench.log)) == expected


def test_finishing_a_swap_twice_does_no_harm() -> None:
    """Power may be lost again while a swap is being finished."""
    bench = Bench(segment_bytes=1000)
    expected = fill(bench, 60)
    compact(bench.log)
    segment = bench.log.segments[0]
    for suffix in (".index", ".timeindex", ".log"):
        bench.disk.rename(segment.path + suffix, segment.path + suffix + ".swap")
    leftover = f"{_PATH}/{segment.base_offset + 3:020d}.log"
    bench.disk.open(leftover, create=True).write_at(0, (build_batch([(b"k0", b"old")], base_offset=3),))
    for crash_at in range(1, 10):
        bench.disk.power_loss_at = bench.disk.operations + crash_at
        with contextlib.suppress(PowerLoss):
            finish_swaps(bench.disk, _PATH)
            break
    bench.disk.power_loss_at = -1
    bench.boot()
    assert table(records(bench.log)) == expected
    assert not bench.disk.exists(leftover)


def test_the_plan_is_plain_data() -> None:
    bench = Bench()
    fill(bench)
    put(bench.log, ("k", "v"), producer_id=3, producer_epoch=1, base_sequence=0)
    plan = plan_round(bench.log, measure_dirt(bench.log, 61, NOW_MS), NOW_MS, 1 << 20)
    content = msgspec.msgpack.encode(plan)
    assert msgspec.msgpack.decode(content, type=type(plan)) == plan


def test_the_throttle_keeps_the_average() -> None:
    throttle = Throttle(1000, now=0.0)
    now = 0.0
    done = 0
    for size in (100, 1, 900, 300, 10_000, 5):
        now += 0.01
        pause = throttle.pause_s(size, now)
        done += size
        while pause > 1e-9:
            assert pause <= 1.0, "no pause is long"
            now += pause
            pause = throttle.pause_s(0, now)
    assert done / now == pytest.approx(1000, rel=0.02)
    assert Throttle(1e308, now=0.0).pause_s(1 << 40, 1.0) < 1e-6


def test_scanned_is_what_the_round_found() -> None:
    bench = Bench()
    fill(bench, 60, 7)
    worker = InlineWorker(bench.disk, plan_round(bench.log, measure_dirt(bench.log, 60, NOW_MS), NOW_MS, 1 << 20))
    scanned: Scanned = finish(worker.scan())
    assert (scanned.unique_keys, scanned.records_read, scanned.covered_end_offset) == (7, 60, 60)
