"""Power is lost at a random operation of a random workload: what was acknowledged is there, the rest is consistent.

500 seeds, several crashes each. "Acknowledged" is what `synced_end_offset` covered: in flush mode ack nothing
else is ever answered as written.
"""

import random

import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import BatchHeader, iter_headers
from penstock.sim.disk import CrashingDisk, PowerLoss
from tests.log.logs import NOW_MS, StillClock, all_records, batch, code_of, open_log, open_store

SEEDS = 500
_BLOCK = 25


class Workload:
    """Drives one log and remembers what it wrote, so that every survivor can be checked."""

    def __init__(self, seed: int, *, truncating: bool = False) -> None:
        self.truncating = truncating
        """A truncation that was not synced may be undone by a crash; then an older history comes back."""
        self.older: dict[int, set[bytes | None]] = {}
        self.random = random.Random(seed)
        self.disk = CrashingDisk(seed)
        self.clock = StillClock()
        self.config = LogConfig(
            segment_bytes=self.random.choice((1500, 6000, 40_000)),
            index_interval_bytes=self.random.choice((100, 500)),
            file_delete_delay_ms=0,
            retention_ms=-1,
        )
        self.written: list[bytes] = []
        """Value by offset, of the present history."""
        self.acknowledged = 0
        self.start = 0
        self.epoch = 0
        self.sequences: dict[int, int] = {}
        self.values = 0
        self.store: LogStore
        self.log: PartitionLog

    def boot(self) -> None:
        self.store = open_store(self.disk, clock=self.clock)
        self.log = open_log(self.store, self.config)
        self.log.load()

    def append(self) -> None:
        count = self.random.randint(1, 4)
        size = self.random.choice((1, 30, 300))
        values = [b"%d:" % (self.values + i) + b"x" * size for i in range(count)]
        self.values += count
        fields = {}
        if self.random.random() < 0.6:
            producer = self.random.randint(1, 3)
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + count
            fields = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequence}
        base_offset = len(self.written)
        self.written += values  # before the write: power may be lost in it
        self.clock.value_ms += self.random.randint(0, 5)
        result = self.log.append_as_leader(batch(*values, **fields), self.epoch, NOW_MS)
        assert not isinstance(result, Refusal), result
        assert result.base_offset == base_offset

    def sync(self) -> None:
        plan = plan_sync(self.log)
        if plan is not None:
            plan.run(self.disk)
            complete_sync(plan)
        self.acknowledged = max(self.acknowledged, self.log.synced_end_offset)

    def delete_records(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.synced_end_offset)
        self.start = max(self.start, offset)
        assert self.log.delete_records_before(offset) is None

    def truncate(self) -> None:
        offset = self.random.randint(max(self.log.log_start_offset, self.log.end_offset - 40), self.log.end_offset)
        for at, value in enumerate(self.written):
            self.older.setdefault(at, set()).add(value)
        self.acknowledged = min(self.acknowledged, max(0, offset - 3))  # a batch goes as a whole
        self.log.truncate_to(offset)
        del self.written[self.log.end_offset :]
        self.epoch += 1
        self.learn_sequences()

    def bump_epoch(self) -> None:
        self.epoch += 1

    def checkpoint(self) -> None:
        self.store.directories[0].write_checkpoints()

    def restart_cleanly(self) -> None:
        self.store.close()
        self.acknowledged = len(self.written)
        self.boot()
        assert self.log.end_offset == len(self.written)

    def kill(self) -> None:
        """The process dies, the machine does not: the page cache survives."""
        self.boot()
        assert self.log.end_offset == len(self.written)
        self.acknowledged = max(self.acknowledged, self.log.synced_end_offset)

    def step(self) -> None:
        choices = (self.append, self.sync, self.delete_records, self.bump_epoch, self.checkpoint, self.log.roll)
        rare = (self.restart_cleanly, self.kill)
        truncations = 5 if self.truncating else 0
        weights = (60, 20, 3, 3, 5, 3, 1, 1, truncations)
        action = self.random.choices((*choices, *rare, self.truncate), weights=weights)[0]
        action()

    def check(self) -> None:
        """After a crash and recovery."""
        log = self.log
        assert self.acknowledged <= log.end_offset
        assert log.synced_end_offset == log.end_offset
        assert log.log_start_offset <= max(self.start, 0)
        records = all_records(log)
        assert [r.offset for r in records] == list(range(log.log_start_offset, log.end_offset)), "dense"
        for record in records:
            written = self.written[record.offset] if record.offset < len(self.written) else None
            assert record.value == written or (
                record.offset >= self.acknowledged and record.value in self.older.get(record.offset, ())
            ), record
        self.written[log.log_start_offset :] = [r.value or b"" for r in records]
        self.acknowledged = log.end_offset
        self.check_epochs()
        self.check_producers()

    def check_epochs(self) -> None:
        starts: dict[int, int] = {}
        for _, header in iter_headers(self.whole_log()):
            starts.setdefault(header.partition_leader_epoch, header.base_offset)
        known = dict(self.log.leader_epochs.entries())
        first = min(known.values(), default=0)  # what was deleted from the start needs no epochs any more
        for epoch, start in starts.items():
            assert start < first or known.get(epoch) == start, (epoch, start, known)

    def whole_log(self) -> bytes:
        log = self.log
        out = bytearray()
        for segment in log.segments:
            out += log.directory.files.open(segment).read_at(0, segment.size_bytes)
        return bytes(out)

    def check_producers(self) -> None:
        """A repeat of the last batch is recognised, a gap is refused, and the next sequence is accepted."""
        self.learn_sequences()
        for producer, header in self.last_batches().items():
            again = batch(*["v"] * header.record_count, producer_id=producer, producer_epoch=0,
                          base_sequence=header.base_sequence)  # fmt: skip
            result = self.log.append_as_leader(again, self.epoch, NOW_MS)
            assert not isinstance(result, Refusal), result
            assert (result.duplicate, result.base_offset) == (True, header.base_offset)
            gap = batch("v", producer_id=producer, producer_epoch=0, base_sequence=header.last_sequence + 2)
            refused = self.log.append_as_leader(gap, self.epoch, NOW_MS)
            assert code_of(refused) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def last_batches(self) -> dict[int, BatchHeader]:
        """By producer; epochs only ever grow in a log."""
        headers = [header for _, header in iter_headers(self.whole_log())]
        assert [h.partition_leader_epoch for h in headers] == sorted(h.partition_leader_epoch for h in headers)
        return {header.producer_id: header for header in headers if header.producer_id >= 0}

    def learn_sequences(self) -> None:
        last = self.last_batches()
        for producer in self.sequences:
            entry = self.log.producers.get(producer)
            assert producer not in last or (entry and entry.last_sequence == last[producer].last_sequence)
            self.sequences[producer] = entry.last_sequence + 1 if entry else 0


def run_seed(seed: int, *, truncating: bool = False) -> None:
    workload = Workload(seed, truncating=truncating)
    workload.boot()
    for _ in range(3):
        workload.disk.power_loss_at = workload.disk.operations + workload.random.randint(1, 150)
        try:
            for _ in range(200):
                workload.step()
        except PowerLoss:
            pass
        workload.disk.crash()
        workload.boot()
        workload.check()


@pytest.mark.parametrize("block", range(SEEDS // _BLOCK))
def test_what_was_acknowledged_survives_power_loss(block: int) -> None:
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def test_truncation_and_power_loss() -> None:
    for seed in range(150):
        try:
            run_seed(seed, truncating=True)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
