"""Compaction against a dictionary: random writes, transactions, rounds, restarts and losses of power.

After every round and every start: the last value of each key is there at its own offset, what a tombstone deleted
stays deleted, no tombstone goes before its time, no aborted record is ever shown, no acknowledged record is lost that
was not superseded, producers are known, and the log has no gap between segments.
"""

import random
from typing import NamedTuple

import msgspec
import pytest

from penstock.log.compaction.cleaner import Candidate, Cleaner
from penstock.log.compaction.plan import measure_dirt
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.builder import BatchBuilder
from penstock.records.reader import Record
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.compacting import COMPACT, batches, consume, end_transaction, finish, new_cleaner
from tests.log.logs import NOW_MS, StillClock, code_of, open_log, open_store

SEEDS = 200
_BLOCK = 25
_CODECS = (0, 0, 0, 1, 2, 3, 4)


class Written(NamedTuple):
    key: bytes
    value: bytes | None
    timestamp: int
    producer_id: int
    transaction: int
    """Number of its transaction; −1 outside of any."""


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = CrashingDisk(seed, now_ms=lambda: self.clock.now_ms())
        self.clock = StillClock()
        self.config = msgspec.structs.replace(
            COMPACT,
            segment_bytes=self.random.choice((600, 1500, 5000)),
            index_interval_bytes=self.random.choice((1, 200, 4096)),
            delete_retention_ms=self.random.choice((0, 50, 400)),
            min_cleanable_dirty_ratio=self.random.choice((0.0, 0.3)),
            min_compaction_lag_ms=self.random.choice((0, 0, 30)),
            message_timestamp_type=self.random.choice(("CreateTime", "CreateTime", "LogAppendTime")),
        )
        self.keys = [b"k%d" % number for number in range(self.random.choice((3, 12, 60)))]
        self.buffer_bytes = self.random.choice((100, 400, 2000, 1 << 20))
        self.written: dict[int, Written] = {}
        self.fates: dict[int, bool] = {}
        """Transactions by number: whether they were committed; open ones are absent."""
        self.markers: dict[int, tuple[int, bool]] = {}
        """Offset of a marker: transaction and whether it committed."""
        self.covered_ms: dict[int, int] = {}
        """When an offset was first compacted, or might have been."""
        self.sequences: dict[int, int] = {}
        self.open: dict[int, int] = {}
        """Transaction by producer."""
        self.transactions = 0
        self.next_offset = 0
        self.acknowledged = 0
        self.store: LogStore
        self.log: PartitionLog
        self.cleaner: Cleaner
        self.boot()

    def boot(self) -> None:
        self.store = open_store(self.disk, clock=self.clock, max_open_files=3, index_cache_bytes=100)
        self.log = open_log(self.store, self.config)
        self.log.load()
        self.cleaner = new_cleaner(self.log)

    # Operations ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        producer = self.random.choice((-1, -1, 1, 2, 11, 12))
        fields: dict[str, int] = {}
        transaction = -1
        count = self.random.randint(1, 6)
        if producer >= 0:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        if producer > 10:
            if producer not in self.open:
                self.open[producer] = self.transactions
                self.transactions += 1
            transaction = self.open[producer]
        builder = BatchBuilder(self.random.choice(_CODECS), transactional=producer > 10, **fields)
        for _ in range(count):
            key = self.random.choice(self.keys)
            value = (
                None if self.random.random() < 0.2 else b"%d" % self.next_offset + b"." * self.random.choice((0, 40))
            )
            timestamp = self.clock.now_ms() - self.random.randint(0, 20)
            builder.append(key, value, [("h", b"1")] if self.random.random() < 0.2 else [], timestamp)
            if self.config.log_append_time:
                timestamp = self.clock.now_ms()
            self.written[self.next_offset] = Written(key, value, timestamp, producer, transaction)
            self.next_offset += 1
        result = self.log.append_as_leader(builder.build(), 0, self.clock.now_ms())
        assert not isinstance(result, Refusal), result
        assert result.end_offset == self.next_offset

    def end(self) -> None:
        if self.open:
            producer, transaction = self.open.popitem()
            commit = self.random.random() < 0.5
            self.fates[transaction] = commit
            self.markers[self.next_offset] = transaction, commit
            self.next_offset += 1
            end_transaction(self.log, producer, commit=commit)

    def sync(self) -> None:
        self.log.flush()
        self.acknowledged = max(self.acknowledged, self.log.synced_end_offset)

    def roll(self) -> None:
        self.log.roll()

    def wait(self) -> None:
        self.clock.value_ms += self.random.choice((1, 10, 100, 500))

    def checkpoint(self) -> None:
        self.store.write_checkpoints()

    def compact(self) -> None:
        stable = self.log.last_stable_offset(self.acknowledged)
        dirt = measure_dirt(self.log, stable, self.clock.now_ms())
        for offset in range(dirt.end_offset):
            self.covered_ms.setdefault(offset, self.clock.now_ms())
        self.cleaner._damaged.clear()
        before = self.cleaner.rounds
        try:
            finish(self.cleaner.compact_all(lambda: [Candidate(self.log, stable)], self.buffer_bytes))
        finally:
            assert not self.cleaner._damaged
        if self.cleaner.rounds > before:
            self.check()

    def restart_cleanly(self) -> None:
        self.store.close()
        self.boot()
        assert self.log.end_offset == self.next_offset
        self.acknowledged = self.next_offset
        self.check()

    def kill(self) -> None:
        self.boot()
        assert self.log.end_offset == self.next_offset
        self.acknowledged = self.next_offset
        self.check()

    def step(self) -> None:
        operations = {
            self.append: 50, self.end: 8, self.sync: 12, self.roll: 6, self.wait: 8, self.checkpoint: 2,
            self.compact: 8, self.restart_cleanly: 1, self.kill: 1,
        }  # fmt: skip
        self.random.choices(list(operations), list(operations.values()))[0]()

    # What must hold -----------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        self.disk.crash()
        self.boot()
        end = self.log.end_offset
        assert self.acknowledged <= end <= self.next_offset
        self.acknowledged = self.next_offset = end
        for offset in [at for at in self.written if at >= end]:
            del self.written[offset]
        for offset in [at for at in self.markers if at >= end]:
            del self.fates[self.markers.pop(offset)[0]]
        self.open = {
            written.producer_id: written.transaction
            for written in self.written.values()
            if written.transaction >= 0 and written.transaction not in self.fates
        }
        self.check()
        for producer in self.sequences:
            entry = self.log.producers.get(producer)
            self.sequences[producer] = entry.last_sequence + 1 if entry else 0

    def is_committed(self, written: Written) -> bool:
        return written.transaction < 0 or self.fates.get(written.transaction, False)

    def check(self) -> None:
        everything = batches(self.log)
        found = [record for header, inside in everything if not header.is_control for record in inside]
        self.check_records(found)
        max_bytes = self.random.choice((1, 500, 10_000))
        seen = consume(self.log, read_committed=True, max_bytes=max_bytes, high_watermark=self.acknowledged).records
        self.check_keys(seen, self.log.last_stable_offset(self.acknowledged))
        self.check_tombstones(found)
        self.check_producers()
        self.check_times(found)
        if self.written:
            self.check_reads()

    def check_records(self, found: list[Record]) -> None:
        for record in found:
            written = self.written[record.offset]
            assert (record.key, record.value, record.timestamp) == written[:3]

    def check_keys(self, seen: list[Record], stable: int) -> None:
        """What a read-committed reader sees."""
        offsets = [record.offset for record in seen]
        assert offsets == sorted(set(offsets))
        for record in seen:
            assert self.is_committed(self.written[record.offset]), f"aborted record {record.offset} is shown"
        latest: dict[bytes, int] = {}
        for offset in sorted(self.written):
            if offset < stable and self.is_committed(self.written[offset]):
                latest[self.written[offset].key] = offset
        shown: dict[bytes | None, int] = {record.key: record.offset for record in seen}
        for key, offset in latest.items():
            if self.written[offset].value is not None or key in shown:
                assert shown.get(key) == offset, f"the last record of {key!r} is at {offset}"

    def check_tombstones(self, found: list[Record]) -> None:
        there = {record.offset for record in found}
        newest = {written.key: at for at, written in sorted(self.written.items()) if self.is_committed(written)}
        for offset in newest.values():
            if self.written[offset].value is None and offset not in there:
                assert offset in self.covered_ms
                assert self.clock.now_ms() >= self.covered_ms[offset] + self.config.delete_retention_ms

    def check_producers(self) -> None:
        """A repeat of the last batch is known, a gap is refused."""
        last: dict[int, int] = {}
        for written in self.written.values():
            if written.producer_id >= 0:
                last[written.producer_id] = last.get(written.producer_id, -1) + 1
        for producer, sequence in last.items():
            entry = self.log.producers.get(producer)
            assert entry is not None, f"producer {producer} is forgotten"
            assert entry.last_sequence == sequence
            assert (entry.current_txn_first_offset >= 0) == (producer in self.open)
            builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=sequence + 2)
            builder.append(b"k", b"v", (), self.clock.now_ms())
            refused = self.log.append_as_leader(builder.build(), 0, self.clock.now_ms())
            assert code_of(refused) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def check_times(self, found: list[Record]) -> None:
        timestamp = NOW_MS + self.random.randint(-30, self.clock.now_ms() - NOW_MS + 30)
        expected = next((record for record in found if record.timestamp >= timestamp), None)
        place = self.log.find_by_timestamp(timestamp)
        if expected is None or place is None:
            assert place is None or place.offset in self.markers or place.offset < 0 or expected is not None, place
        else:
            assert place.offset <= expected.offset
            if place.offset not in self.markers:
                assert (place.timestamp, place.offset) == (expected.timestamp, expected.offset)

    def check_reads(self) -> None:
        """From any offset a reader comes to the next batch, through the indexes."""
        for _ in range(3):
            offset = self.random.randint(0, self.log.end_offset - 1)
            data = self.log.read_bytes(offset, 1)
            assert isinstance(data, bytes)
            expected = next(header for header, _ in batches(self.log) if header.last_offset >= offset)
            assert int.from_bytes(data[:8], "big") == expected.base_offset


def run_seed(seed: int, *, crashes: int = 3, steps: int = 120) -> World:
    world = World(seed)
    for _ in range(crashes):
        world.disk.power_loss_at = world.disk.operations + world.random.randint(1, 500)
        try:
            for _ in range(steps):
                world.step()
        except PowerLoss:
            pass
        world.lose_power()
    return world


@pytest.mark.parametrize("block", range(SEEDS // _BLOCK))
def test_what_stays_is_the_last_of_each_key(block: int) -> None:
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.soak
def test_many_more_seeds() -> None:
    for seed in range(SEEDS, SEEDS + 5000):
        try:
            run_seed(seed, crashes=6, steps=250)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
