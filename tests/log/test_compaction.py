"""What a round leaves: the last record of each key, offsets and times, tombstones for a while, producers, markers."""

import msgspec
import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.records.batch import DELETE_HORIZON_BIT
from penstock.records.builder import BatchBuilder, build_batch
from penstock.records.compression import Codec
from penstock.sim.disk import CrashingDisk
from tests.log.compacting import (
    COMPACT,
    batches,
    close_segment,
    compact,
    consume,
    end_transaction,
    put,
    records,
    table,
)
from tests.log.logs import NOW_MS, StillClock, code_of, open_log, open_store

_PATH = "/data/t-0"


class Bench:
    """A log on a disk of its own, with a clock that the test moves."""

    def __init__(self, **config: object) -> None:
        self.clock = StillClock()
        self.disk = CrashingDisk(now_ms=self.clock.now_ms)
        self.config: LogConfig = msgspec.structs.replace(COMPACT, **config)
        self.boot()

    def boot(self) -> None:
        """As after a kill: nothing is closed first."""
        self.store = open_store(self.disk, clock=self.clock)
        self.log: PartitionLog = open_log(self.store, self.config)

    def wait(self, milliseconds: int) -> None:
        self.clock.value_ms += milliseconds


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in records(log)]


def test_the_last_record_of_each_key_stays_at_its_offset() -> None:
    bench = Bench()
    log = bench.log
    for number in range(60):
        put(log, (f"k{number % 7}", f"value {number}"), timestamp_ms=NOW_MS + number)
    close_segment(log)
    before, size = {r.offset: r for r in records(log)}, log.size_bytes
    compact(log)
    found = records(log)
    assert [record.offset for record in found] == list(range(53, 60))
    assert found == [before[record.offset] for record in found], "key, value, timestamp and headers as they were"
    assert log.size_bytes < size / 3
    assert log.end_offset == 60
    assert consume(log, read_committed=False).records == found


def test_the_active_segment_is_not_touched() -> None:
    bench = Bench(segment_bytes=100_000)
    for number in range(20):
        put(bench.log, ("k", f"{number}"))
    bench.log.flush()
    assert compact(bench.log).rounds == 0
    assert offsets(bench.log) == list(range(20))
    close_segment(bench.log)
    put(bench.log, ("k", "newest"))
    compact(bench.log)
    assert offsets(bench.log) == [19, 20], "what the active segment holds supersedes nothing yet"


def test_small_segments_are_merged() -> None:
    bench = Bench(segment_bytes=1000)
    for number in range(80):
        put(bench.log, (f"k{number % 3}", "v" * 20))
    close_segment(bench.log)
    count = len(bench.log.segments)
    compact(bench.log)
    assert len(bench.log.segments) > 2, "judged by their size before"
    put(bench.log, ("k0", "v"))
    close_segment(bench.log)
    compact(bench.log)
    assert len(bench.log.segments) <= 3 < count
    assert not [name for name in bench.disk.list_dir(_PATH) if name.endswith((".deleted", ".cleaned", ".swap"))]
    logs = [name for name in bench.disk.list_dir(_PATH) if name.endswith(".log")]
    assert len(logs) == len(bench.log.segments)


def test_a_group_is_not_larger_than_a_segment_and_its_indexes() -> None:
    bench = Bench(segment_bytes=4000, segment_index_bytes=200, index_interval_bytes=1)
    for number in range(300):
        put(bench.log, (f"k{number}", "v"))
        if number % 10 == 9:
            close_segment(bench.log)
    close_segment(bench.log)
    for _ in range(3):
        compact(bench.log)
        put(bench.log, ("k0", "again"))
        close_segment(bench.log)
    sizes = [segment.size_bytes for segment in bench.log.segments]
    assert max(sizes) <= 4000
    indexes = [bench.disk.size(f"{_PATH}/{segment.base_offset:020d}.index") for segment in bench.log.segments[:-1]]
    assert max(indexes) <= 200
    assert len(table(records(bench.log))) == 300


def test_a_segment_that_would_not_change_is_left_alone() -> None:
    bench = Bench(segment_bytes=600)
    for number in range(40):
        put(bench.log, (f"k{number}", "v" * 10))
    close_segment(bench.log)
    compact(bench.log)
    before = bench.log.segments
    put(bench.log, ("k39", "new"))
    close_segment(bench.log)
    compact(bench.log)
    assert bench.log.segments[:3] == before[:3], "the very same objects and files"
    assert len(records(bench.log)) == 40


# Tombstones -------------------------------------------------------------------------------------------------------


def test_a_tombstone_stays_for_its_time_and_what_it_deleted_never_comes_back() -> None:
    bench = Bench(delete_retention_ms=1000)
    log = bench.log
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None), ("c", "1"), timestamp_ms=NOW_MS - 5)
    close_segment(log)
    cleaner = compact(log)
    assert offsets(log) == [1, 2, 3]
    header, inside = next(each for each in batches(log) if each[0].base_offset == 2)
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == NOW_MS + 1000, "the time from which the tombstone may go"
    assert [(r.key, r.value, r.timestamp) for r in inside] == [(b"a", None, NOW_MS - 5), (b"c", b"1", NOW_MS - 5)]
    assert header.max_timestamp == NOW_MS - 5
    for step in range(3):
        bench.wait(400)
        put(log, ("d", f"{step}"))
        close_segment(log)
        compact(log, cleaner)
        assert (2 in offsets(log)) == (step < 2), "gone with the first round after its time"
    assert table(records(log)) == {"b": "1", "c": "1", "d": "2"}


def test_a_quiet_log_loses_its_tombstones_too() -> None:
    bench = Bench(delete_retention_ms=1000)
    put(bench.log, ("a", "1"), ("b", "1"))
    put(bench.log, ("a", None))
    close_segment(bench.log)
    cleaner = compact(bench.log)
    assert offsets(bench.log) == [1, 2]
    bench.wait(999)
    compact(bench.log, cleaner)
    assert offsets(bench.log) == [1, 2]
    bench.wait(1)
    compact(bench.log, cleaner)
    assert offsets(bench.log) == [1]
    assert bench.log.end_offset == 3
    rounds = cleaner.rounds
    compact(bench.log, cleaner)
    assert cleaner.rounds == rounds, "and then there is nothing to do"


def test_a_tombstone_that_is_superseded_goes_at_once() -> None:
    bench = Bench()
    put(bench.log, ("a", "1"))
    put(bench.log, ("a", None))
    put(bench.log, ("a", "2"))
    close_segment(bench.log)
    compact(bench.log)
    assert offsets(bench.log) == [2]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_codec_and_timestamps_stay(codec: Codec, timestamp_type: str) -> None:
    bench = Bench(message_timestamp_type=timestamp_type, segment_bytes=2000)
    for first in (0, 10):
        builder = BatchBuilder(codec)
        for number in range(10):
            value = None if number == 3 else b"v" * 50
            builder.append(b"%d" % (first // 2 + number), value, [("h", b"x")], NOW_MS - 70 * number)
        assert not hasattr(bench.log.append_as_leader(builder.build(), 0, NOW_MS + 7), "code")
    close_segment(bench.log)
    before = {record.offset: record for record in records(bench.log)}
    compact(bench.log)
    found = records(bench.log)
    assert {header.codec for header, _ in batches(bench.log)} == {codec}
    assert [record.offset for record in found] == [0, 1, 2, 3, 4, *range(10, 20)]
    assert found == [before[record.offset] for record in found]


def test_the_largest_timestamp_is_that_of_what_stayed() -> None:
    bench = Bench()
    builder = BatchBuilder()
    for number, timestamp in enumerate((NOW_MS + 1, NOW_MS + 9, NOW_MS + 3)):
        builder.append(b"%d" % number, b"v", (), timestamp)
    bench.log.append_as_leader(builder.build(), 0, NOW_MS)
    put(bench.log, ("1", "w"), timestamp_ms=NOW_MS + 2)
    close_segment(bench.log)
    compact(bench.log)
    assert [header.max_timestamp for header, _ in batches(bench.log)] == [NOW_MS + 3, NOW_MS + 2]
    assert bench.log.max_timestamp_offset() == (NOW_MS + 3, 2, 0)
    assert bench.log.find_by_timestamp(NOW_MS + 2) == (NOW_MS + 3, 2, 0)
    assert bench.log.find_by_timestamp(NOW_MS + 4) is None


def test_records_without_key_go() -> None:
    """They can only be there from before the topic was compacted; Kafka drops them as well."""
    bench = Bench(cleanup_policy=frozenset({"delete"}))
    bench.log.append_as_leader(build_batch([(None, b"1"), (b"k", b"2"), (b"", b"3")], timestamp_ms=NOW_MS), 0, NOW_MS)
    close_segment(bench.log)
    bench.log.config = COMPACT
    compact(bench.log)
    assert [(r.offset, r.key, r.value) for r in records(bench.log)] == [(1, b"k", b"2"), (2, b"", b"3")]


def test_records_without_key_are_refused() -> None:
    bench = Bench()
    keyless = build_batch([(b"k", b"v"), (None, b"v")], timestamp_ms=NOW_MS)
    assert code_of(bench.log.append_as_leader(keyless, 0, NOW_MS)) is ErrorCode.INVALID_RECORD
    assert bench.log.end_offset == 0


# Producers and transactions ---------------------------------------------------------------------------------------


def test_the_last_batch_of_a_producer_stays_as_an_empty_one() -> None:
    bench = Bench(segment_bytes=100_000)
    for sequence in range(3):
        put(bench.log, ("k", f"{sequence}"), producer_id=5, producer_epoch=2, base_sequence=sequence)
    put(bench.log, ("k", "last"))
    close_segment(bench.log)
    compact(bench.log)
    left = [(header.base_offset, header.record_count) for header, _ in batches(bench.log)]
    assert left == [(2, 0), (3, 1)]
    for clean in (False, True):
        if clean:
            bench.store.close()
        for name in bench.disk.list_dir(_PATH):
            if name.endswith(".snapshot"):
                bench.disk.remove(f"{_PATH}/{name}")
        bench.boot()
        entry = bench.log.producers.get(5)
        assert entry is not None
        assert (entry.producer_epoch, entry.last_sequence, entry.last_offset) == (2, 2, 2)
    gap = build_batch([(b"k", b"v")], timestamp_ms=NOW_MS, producer_id=5, producer_epoch=2, base_sequence=4)
    assert code_of(bench.log.append_as_leader(gap, 0, NOW_MS)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    put(bench.log, ("k", "next"), producer_id=5, producer_epoch=2, base_sequence=3)
    assert consume(bench.log, read_committed=False).records[-1].value == b"next"


def test_the_empty_batch_goes_when_the_producer_is_forgotten_or_goes_on() -> None:
    bench = Bench()
    put(bench.log, ("k", "0"), producer_id=5, producer_epoch=0, base_sequence=0)
    put(bench.log, ("k", "1"), producer_id=6, producer_epoch=0, base_sequence=0)
    put(bench.log, ("k", "2"))
    close_segment(bench.log)
    compact(bench.log)
    assert [header.base_offset for header, _ in batches(bench.log)] == [0, 1, 2]
    put(bench.log, ("j", "3"), producer_id=6, producer_epoch=0, base_sequence=1)
    close_segment(bench.log)
    bench.log.producers.expire(NOW_MS, 10**9)
    bench.log.producers.expire(NOW_MS + 10**9, 10**9)
    compact(bench.log)
    assert [header.base_offset for header, _ in batches(bench.log)] == [2, 3]


def transactional(sequence: int, producer_id: int = 9) -> dict[str, int]:
    return {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence, "transactional": True}


def test_aborted_records_go_and_supersede_nothing() -> None:
    bench = Bench(delete_retention_ms=100)
    log = bench.log
    put(log, ("a", "kept"), ("b", "old"))
    put(log, ("a", "aborted"), ("x", "aborted"), **transactional(0))
    end_transaction(log, 9, commit=False)
    put(log, ("b", "new"), **transactional(2))
    end_transaction(log, 9, commit=True)
    close_segment(log)
    cleaner = compact(log)
    assert table(records(log)) == {"a": "kept", "b": "new"}
    assert table(consume(log, read_committed=True).records) == {"a": "kept", "b": "new"}
    kinds = [(header.base_offset, header.is_control) for header, _ in batches(log)]
    assert kinds == [(0, False), (4, True), (5, False), (6, True)], "the marker stays while its records were there"
    assert log.aborted_transactions(0, 100) == [(9, 2)]
    put(log, ("c", "1"))
    close_segment(log)
    compact(log, cleaner)
    header = next(header for header, _ in batches(log) if header.base_offset == 4)
    assert header.is_control
    assert header.has_delete_horizon, "nothing is left of its transaction: its time runs"
    assert log.aborted_transactions(0, 100) == []
    bench.wait(100)
    put(log, ("c", "2"))
    close_segment(log)
    compact(log, cleaner)
    assert [header.base_offset for header, _ in batches(log)] == [0, 5, 6, 8]
    assert table(consume(log, read_committed=True).records) == {"a": "kept", "b": "new", "c": "2"}


def test_an_aborted_transaction_may_end_behind_what_is_compacted() -> None:
    bench = Bench()
    put(bench.log, ("a", "kept"))
    put(bench.log, ("a", "aborted"), **transactional(0))
    close_segment(bench.log)
    end_transaction(bench.log, 9, commit=False)
    bench.log.flush()
    compact(bench.log)
    assert table(records(bench.log)) == {"a": "kept"}
    assert table(consume(bench.log, read_committed=True).records) == {"a": "kept"}


def test_nothing_of_an_open_transaction_is_compacted() -> None:
    bench = Bench()
    put(bench.log, ("a", "1"))
    put(bench.log, ("a", "2"))
    close_segment(bench.log)
    put(bench.log, ("a", "open"), **transactional(0))
    put(bench.log, ("a", "3"))
    close_segment(bench.log)
    compact(bench.log)
    assert offsets(bench.log) == [1, 2, 3]
    end_transaction(bench.log, 9, commit=True)
    close_segment(bench.log)
    compact(bench.log)
    assert offsets(bench.log) == [3]
    assert table(consume(bench.log, read_committed=True).records) == {"a": "3"}


def test_an_epoch_that_only_a_marker_tells_is_kept() -> None:
    bench = Bench(delete_retention_ms=0)
    put(bench.log, ("a", "1"), **transactional(0))
    end_transaction(bench.log, 9, commit=True, producer_epoch=4)  # as a fencing coordinator writes it
    put(bench.log, ("a", "2"))
    close_segment(bench.log)
    for _ in range(4):
        compact(bench.log)
        put(bench.log, ("b", "x"))
        close_segment(bench.log)
        bench.wait(10)
    for name in bench.disk.list_dir(_PATH):
        if name.endswith(".snapshot"):
            bench.disk.remove(f"{_PATH}/{name}")
    bench.boot()
    entry = bench.log.producers.get(9)
    assert entry is not None
    assert entry.producer_epoch == 4


def test_the_largest_timestamp_is_never_that_of_an_empty_batch() -> None:
    bench = Bench()
    put(bench.log, ("j", "1"), timestamp_ms=NOW_MS + 1)
    put(bench.log, ("k", "1"), timestamp_ms=NOW_MS + 9, producer_id=5, producer_epoch=0, base_sequence=0)
    put(bench.log, ("k", "2"), timestamp_ms=NOW_MS + 2)
    close_segment(bench.log)
    assert bench.log.max_timestamp_offset() == (NOW_MS + 9, 1, 0)
    compact(bench.log)
    assert bench.log.max_timestamp_offset() == (NOW_MS + 2, 2, 0)
    assert bench.log.find_by_timestamp(NOW_MS + 3) is None
