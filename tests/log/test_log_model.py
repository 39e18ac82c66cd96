"""A log against the simplest model of one: a list of records. Random operations, restarts and kills, all checked."""

import random

import pytest

from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import parse_header
from penstock.records.builder import BatchBuilder
from penstock.records.reader import read_all_records
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, StillClock, all_records, open_log, open_store

_DAY_MS = 86_400_000


class Model:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = CrashingDisk(seed)
        self.clock = StillClock()
        self.config = LogConfig(
            segment_bytes=self.random.choice((3000, 20_000)),
            index_interval_bytes=self.random.choice((1, 300, 4096)),
            segment_index_bytes=self.random.choice((120, 10_000)),
            retention_bytes=self.random.choice((-1, 10_000)),
            retention_ms=-1,
            message_timestamp_after_max_ms=10 * _DAY_MS,
            compression_type=self.random.choice(("producer", "producer", "zstd", "uncompressed")),
            file_delete_delay_ms=0,
        )
        self.records: list[tuple[int, bytes, int, int]] = []
        """Timestamp, value, leader epoch, base offset of the batch: by offset."""
        self.epoch = 0
        self.count = 0
        self.windows: dict[int, list[tuple[int, int, int]]] = {}
        """(base sequence, count, base offset) of all batches, by producer id."""
        self.log: PartitionLog
        self.boot()

    def boot(self) -> None:
        self.store = open_store(self.disk, clock=self.clock, max_open_files=2, index_cache_bytes=64)
        self.log = open_log(self.store, self.config)

    # Operations ---------------------------------------------------------------------------------------------

    def build(self, count: int, **fields: int) -> tuple[bytearray, list[tuple[int, bytes]]]:
        builder = BatchBuilder(self.random.choice((0, 0, 4)), **fields)
        content = []
        for _ in range(count):
            timestamp = NOW_MS + self.random.randint(-100_000, 100_000)
            value = b"%d" % self.count + b"." * self.random.choice((0, 50, 500))
            self.count += 1
            builder.append(b"k", value, (), timestamp)
            content.append((timestamp, value))
        return builder.build(), content

    def append(self) -> None:
        fields: dict[str, int] = {}
        count = self.random.randint(1, 5)
        if self.random.random() < 0.5:
            producer = self.random.randint(1, 3)
            last = self.windows.get(producer)
            fields = {
                "producer_id": producer,
                "producer_epoch": 0,
                "base_sequence": last[-1][0] + last[-1][1] if last else 0,
            }
        data, content = self.build(count, **fields)
        result = self.log.append_as_leader(data, self.epoch, NOW_MS)
        assert not isinstance(result, Refusal), result
        base = len(self.records)
        assert (result.base_offset, result.end_offset, result.duplicate) == (base, base + count, False)
        self.records += [(timestamp, value, self.epoch, base) for timestamp, value in content]
        if fields:
            self.windows.setdefault(fields["producer_id"], []).append((fields["base_sequence"], count, base))

    def append_several(self) -> None:
        """As coordinators do."""
        joined = bytearray()
        offset = len(self.records)
        for _ in range(self.random.randint(1, 4)):
            data, content = self.build(self.random.randint(1, 3))
            joined += data
            base = offset
            self.records += [(timestamp, value, self.epoch, base) for timestamp, value in content]
            offset += len(content)
        result = self.log.append_as_leader(joined, self.epoch, NOW_MS, origin="coordinator")
        assert not isinstance(result, Refusal), result
        assert result.end_offset == offset

    def repeat(self) -> None:
        """One of the last five batches of a producer, again: the window survives restarts."""
        if not self.windows:
            return
        producer, batches = self.random.choice(list(self.windows.items()))
        sequence, count, base = self.random.choice(batches[-2:])
        data, _ = self.build(count, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        result = self.log.append_as_leader(data, self.epoch, NOW_MS)
        if isinstance(result, Refusal):  # a window may be shorter after a restart, but is never wrong
            assert result.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            assert (sequence, count, base) != batches[-1]
        else:
            assert (result.duplicate, result.base_offset) == (True, base)

    def read(self) -> None:
        log = self.log
        offset = self.random.randint(0, len(self.records) + 1)
        end = self.random.choice((len(self.records), self.random.randint(0, len(self.records))))
        max_bytes = self.random.choice((1, 500, 3000, 100_000))
        min_one = self.random.random() < 0.5
        span = log.read(offset, max_bytes, end, min_one)
        if not log.log_start_offset <= offset <= len(self.records):
            assert span is ErrorCode.OFFSET_OUT_OF_RANGE
            return
        assert not isinstance(span, ErrorCode), span
        data = span.read()
        records = [r for r in read_all_records(data) if r.offset >= offset]
        assert [(r.timestamp, r.value) for r in records] == [self.records[r.offset][:2] for r in records]
        assert [r.offset for r in records] == list(range(offset, offset + len(records)))
        assert all(r.offset < end for r in records) or self.records[end - 1][3] == self.records[end][3]
        if offset < end and min_one and self.whole_batch_below(offset, end):
            assert records
        if data and not min_one:
            assert len(data) <= max_bytes
        if data:
            assert len(data) <= max(max_bytes, parse_header(data).size_bytes)

    def whole_batch_below(self, offset: int, end: int) -> bool:
        base = self.records[offset][3]
        return all(self.records[at][3] != base for at in range(end, len(self.records)))

    def truncate(self) -> None:
        offset = self.random.randint(max(0, len(self.records) - 30), len(self.records))
        self.log.truncate_to(offset)
        start = self.log.log_start_offset
        end = len(self.records) if offset == len(self.records) else self.records[offset][3]
        end = max(end, start) if offset >= start else start
        assert self.log.end_offset == end
        del self.records[end:]
        self.epoch += 1
        self.learn_windows()

    def learn_windows(self) -> None:
        """What is in the log must be known; of what was deleted or truncated from it, an older state may be left."""
        for producer in range(1, 4):
            entry = self.log.producers.get(producer)
            known = [batch for batch in self.windows.get(producer, ()) if batch[2] < len(self.records)]
            if known and known[-1][2] >= self.log.log_start_offset:
                assert entry is not None
                assert entry.last_sequence == known[-1][0] + known[-1][1] - 1
            self.windows.pop(producer, None)
            if entry is not None:
                self.windows[producer] = [
                    (batch.base_sequence, batch.last_sequence - batch.base_sequence + 1, batch.base_offset)
                    for batch in entry.batches
                ]

    def delete_records(self) -> None:
        offset = self.random.randint(0, len(self.records))
        if self.random.random() < 0.8:
            offset = min(offset, self.log.log_start_offset + 20)
        start = max(self.log.log_start_offset, offset)
        assert self.log.delete_records_before(offset) is None
        assert self.log.log_start_offset == start
        self.store.write_checkpoints()

    def retain(self) -> None:
        self.log.flush()
        before = self.log.log_start_offset
        self.log.apply_retention(NOW_MS)
        assert self.log.log_start_offset >= before
        if self.config.retention_bytes >= 0 and len(self.log.segments) > 1:
            assert self.log.size_bytes - self.log.segments[0].size_bytes < self.config.retention_bytes

    def find_time(self) -> None:
        timestamp = NOW_MS + self.random.randint(-110_000, 110_000)
        start = self.log.log_start_offset
        expected = next(
            ((r[0], at, r[2]) for at, r in enumerate(self.records) if at >= start and r[0] >= timestamp), None
        )
        assert self.log.find_by_timestamp(timestamp) == expected
        largest = self.log.max_timestamp_offset()
        live = [(r[0], -at, r[2]) for at, r in enumerate(self.records) if at >= start]
        if live and max(live)[0] >= max((s.max_timestamp for s in self.log.segments), default=0):
            best = max(live)
            assert largest == (best[0], -best[1], best[2])

    def bump_epoch(self) -> None:
        self.epoch += self.random.randint(1, 3)

    def epochs(self) -> None:
        epoch = self.random.randint(0, self.epoch + 1)
        live = self.records[self.log.log_start_offset :]
        known, end = self.log.epoch_end_offset(epoch)
        if known >= 0 and any(r[2] == known for r in live):
            assert end == max(at for at, r in enumerate(self.records) if r[2] == known) + 1
        if any(r[2] > epoch for r in live):
            assert end == next(
                at for at, r in enumerate(self.records) if at >= self.log.log_start_offset and r[2] > epoch
            )

    def restart(self) -> None:
        start = self.log.log_start_offset
        self.store.close()
        self.boot()
        self.check(start)

    def kill(self) -> None:
        self.store.write_checkpoints()
        start = self.log.log_start_offset
        self.boot()
        self.check(start)
        self.learn_windows()

    def flush(self) -> None:
        self.log.flush()
        assert self.log.synced_end_offset == self.log.end_offset

    def check(self, start: int) -> None:
        log = self.log
        assert (log.log_start_offset, log.end_offset) == (start, len(self.records))
        records = all_records(log, max_bytes=self.random.choice((1, 1000, 50_000)))
        assert [(r.offset, r.timestamp, r.value) for r in records] == [
            (at, *self.records[at][:2]) for at in range(start, len(self.records))
        ]
        assert log.size_bytes == sum(segment.size_bytes for segment in log.segments)

    def step(self) -> None:
        operations = {
            self.append: 30, self.append_several: 8, self.repeat: 8, self.read: 25, self.truncate: 2,
            self.delete_records: 2, self.retain: 3, self.find_time: 8, self.bump_epoch: 2, self.epochs: 5,
            self.restart: 1, self.kill: 1, self.flush: 5, self.log.roll: 3,
        }  # fmt: skip
        self.random.choices(list(operations), list(operations.values()))[0]()


@pytest.mark.parametrize("block", range(8))
def test_log_does_what_a_list_does(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        model = Model(seed)
        try:
            for _ in range(150):
                model.step()
            model.check(model.log.log_start_offset)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
