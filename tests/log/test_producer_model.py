"""Producers and aborted transactions against a model that tells both from the list of what was written.

Random appends, markers, rolls, cuts, deletions and checkpoints, also in the midst of a sync; disks that fill up, also
under a recovery; clean stops, kills and losses of power. After each step the log knows every producer that ever wrote
to what is left of its history, though retention has taken the records, and nobody else: whoever is forgotten writes
its retry twice, and whoever is known by mistake is told that it was written.
"""

import contextlib
import random
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest

from penstock.log.config import LogConfig
from penstock.log.errors import NoRoom
from penstock.log.partition_log import PartitionLog
from penstock.log.sync import SyncPlan
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.model.errors import Refusal
from penstock.records.batch import iter_headers
from penstock.records.markers import build_end_marker
from penstock.records.reader import read_records
from penstock.sim.disk import CrashingDisk
from tests.log.logs import NOW_MS, batch, new_log

SEEDS = 120
_BLOCK = 20
_STEPS = 150
_NOBODY = -1
_CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=1, file_delete_delay_ms=0)


class Written(NamedTuple):
    """What stands at an offset: each batch holds one record or marker."""

    kind: Literal["data", "commit", "abort"]
    producer_id: int
    sequence: int
    transactional: bool
    value: bytes


class Producer(NamedTuple):
    last_sequence: int = -1
    open_offset: int = -1
    """The first offset of its open transaction."""


class Aborted(NamedTuple):
    producer_id: int
    first_offset: int
    marker_offset: int


def tell(history: list[Written]) -> tuple[dict[int, Producer], list[Aborted]]:
    """Who has written, and what was aborted."""
    producers: dict[int, Producer] = {}
    aborted = []
    for offset, written in enumerate(history):
        if written.producer_id == _NOBODY:
            continue
        last_sequence, open_offset = producers.get(written.producer_id, Producer())
        if written.kind == "data":
            begins = written.transactional and open_offset < 0
            after = Producer(written.sequence, offset if begins else open_offset)
        else:
            after = Producer(last_sequence)
            if written.kind == "abort" and open_offset >= 0:
                aborted.append(Aborted(written.producer_id, open_offset, offset))
        producers[written.producer_id] = after
    return producers, aborted


class World:
    """One log, and what was written to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = CrashingDisk(seed)
        self.disk.before_sync = self.interrupt
        self.max_open_files = self.random.choice((1, 100))
        self.history: list[Written] = []
        self.committed_end_offset = 0
        """The high watermark: nothing below is cut off, nothing above is deleted."""
        self.count = 0
        self.plan: SyncPlan | None = None
        self.plan_has_run = False
        self.may_interrupt = False
        """A sync is running in the pool, and the loop has a turn."""
        self.log = self.boot()

    def boot(self) -> PartitionLog:
        return new_log(_CONFIG, self.disk, max_open_files=self.max_open_files)

    # Operations on the loop -----------------------------------------------------------------------------------

    def append(self) -> None:
        producers, _ = tell(self.history)
        open_ids = [producer_id for producer_id, producer in producers.items() if producer.open_offset >= 0]
        if open_ids and self.random.random() < 0.5:
            self.end_transaction(self.random.choice(open_ids))
            return
        producer_id = self.random.choice((_NOBODY, 1, 2, 3, 4))
        self.count += 1
        value = b"%d" % self.count + b"x" * self.random.randrange(60)
        if producer_id == _NOBODY:
            self.write(batch(value), Written("data", _NOBODY, -1, False, value))
            return
        last_sequence, open_offset = producers.get(producer_id, Producer())
        transactional = open_offset >= 0 or (producer_id > 2 and self.random.random() < 0.7)
        written = Written("data", producer_id, last_sequence + 1, transactional, value)
        data = batch(
            value,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=written.sequence,
            transactional=transactional,
        )
        self.write(data, written)

    def end_transaction(self, producer_id: int) -> None:
        commit = self.random.random() < 0.3
        marker = build_end_marker(producer_id, 0, 0, commit, NOW_MS)
        self.write(marker, Written("commit" if commit else "abort", producer_id, -1, True, b""))

    def write(self, data: bytearray, written: Written) -> None:
        origin: Literal["client", "coordinator"] = "client" if written.kind == "data" else "coordinator"
        result = self.log.append_as_leader(data, 0, NOW_MS, origin=origin)
        if not isinstance(result, Refusal):  # the disk is full
            assert result.base_offset == len(self.history), "taken for one that was written before"
            self.history.append(written)

    def roll(self) -> None:
        self.log.roll()

    def cut(self) -> None:
        log = self.log
        lowest = max(self.committed_end_offset, log.log_start_offset + 1)
        if log.segments and lowest <= log.end_offset:
            offset = self.random.randint(lowest, log.end_offset)
            if log.truncate_to(offset) is None:
                assert log.end_offset == offset
                del self.history[offset:]

    def commit(self) -> None:
        """Everybody has what is synced."""
        if self.log.synced_end_offset > self.committed_end_offset:
            some = self.random.randint(self.committed_end_offset, self.log.synced_end_offset)
            self.committed_end_offset = self.random.choice((some, self.log.synced_end_offset))

    def delete(self) -> None:
        assert self.log.delete_records_before(self.random.randint(0, self.committed_end_offset)) is None

    def expire(self) -> None:
        """All that is committed has grown old, and a checkpoint for another log tells it at once."""
        self.commit()
        self.log.roll()
        assert self.log.delete_records_before(self.committed_end_offset) is None
        with contextlib.suppress(OSError):
            self.log.directory.write_log_start_offsets()

    def fill_disk(self) -> None:
        is_full = self.random.random() < 0.4
        self.disk.capacity_bytes = self.disk.used_bytes() + self.random.randrange(150) if is_full else None

    def write_checkpoints(self) -> None:
        with contextlib.suppress(OSError):
            self.log.directory.write_checkpoints()

    def act(self) -> None:
        actions: dict[Callable[[], None], int] = {
            self.append: 55, self.roll: 7, self.cut: 10, self.commit: 4, self.delete: 4, self.expire: 3,
            self.fill_disk: 8, self.write_checkpoints: 4,
        }  # fmt: skip
        self.random.choices(list(actions), list(actions.values()))[0]()

    # A sync, step by step -------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Plans one on the loop; the next time runs it in the pool; the next time completes it on the loop."""
        if self.plan is None:
            self.plan = plan_sync(self.log)
            self.plan_has_run = False
        elif not self.plan_has_run:
            self.may_interrupt = True
            self.plan.run(self.disk)
            self.may_interrupt = False
            self.plan_has_run = True
        else:
            complete_sync(self.plan)
            self.plan = None

    def interrupt(self, path: str) -> None:
        """Before each file that the pool syncs the loop may come first."""
        if self.may_interrupt and path.startswith(self.log.path):
            self.may_interrupt = False  # what the loop syncs is not interrupted
            for _ in range(self.random.randrange(3)):
                self.act()
            self.may_interrupt = True

    # Starts ---------------------------------------------------------------------------------------------------

    def start_again(self) -> None:
        how = self.random.choices(("stop", "kill", "power loss"), (4, 2, 4))[0]
        if how == "stop":
            self.stop()
        start_offset, durable_end_offset = self.log.log_start_offset, len(self.history)
        if how == "power loss":
            durable_end_offset = self.log.synced_end_offset
            self.disk.crash()
        self.plan = None
        self.load()
        assert durable_end_offset <= self.log.end_offset <= len(self.history)
        assert self.log.log_start_offset <= start_offset
        del self.history[self.log.end_offset :]
        self.committed_end_offset = min(self.committed_end_offset, self.log.end_offset)
        self.check_records()

    def stop(self) -> None:
        while self.plan is not None:
            self.sync()
        self.disk.capacity_bytes = None
        self.log.close()
        self.log.directory.write_checkpoints(closing=True)
        self.log.directory.write_clean_shutdown()

    def load(self) -> None:
        """On a disk that may be too full for it; then it is tried again when there is room."""
        is_full = self.random.random() < 0.4
        self.disk.capacity_bytes = self.disk.used_bytes() + self.random.randrange(-300, 150) if is_full else None
        self.log = self.boot()
        with contextlib.suppress(NoRoom):
            self.log.load()
        self.disk.capacity_bytes = None
        self.log.load()

    # What must hold -------------------------------------------------------------------------------------------

    def check(self) -> None:
        log = self.log
        assert (log.directory.failure, log.offline) == (None, None)
        assert log.end_offset == len(self.history)
        producers, aborted = tell(self.history)
        assert producers == {
            producer_id: Producer(entry.last_sequence, entry.current_txn_first_offset)
            for producer_id, entry in log.producers.items()
        }
        start = log.log_start_offset
        seen: set[tuple[int, int]] = set()
        for segment in log.segments:
            seen.update(log.aborted_transactions(max(segment.base_offset, start), log.end_offset))
        assert seen >= {entry[:2] for entry in aborted if entry.marker_offset >= start}
        assert seen <= {entry[:2] for entry in aborted}, "they would hide others"

    def check_records(self) -> None:
        offset = self.log.log_start_offset
        while offset < self.log.end_offset:
            data = self.log.read_bytes(offset, 1000)
            assert isinstance(data, bytes)
            assert data, f"nothing at {offset}"
            for pos, header in iter_headers(data):
                written = self.history[header.base_offset]
                assert header.is_control == (written.kind != "data")
                assert header.is_control or [r.value for r in read_records(data, pos)] == [written.value]
                offset = header.next_offset


def run_seed(seed: int) -> None:
    world = World(seed)
    for _ in range(_STEPS):
        world.random.choices((world.act, world.sync, world.start_again), (70, 26, 4))[0]()
        world.check()


@pytest.mark.parametrize("block", range(SEEDS // _BLOCK))
def test_producers_are_those_of_the_history(block: int) -> None:
    for seed in range(block * _BLOCK, (block + 1) * _BLOCK):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.soak
def test_many_more_seeds() -> None:
    for seed in range(SEEDS, SEEDS + 5000):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
