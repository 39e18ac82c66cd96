"""Compaction as a broker runs it: in the pool, in a process that may die, and on the coordinators' own topics."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from bench.compaction import BatchWriter
from bench.compaction import main as run_bench
from msgspec.structs import replace

from penstock.broker.compaction import POOL_BYTES, Compaction, CompactionProcess
from penstock.log.compaction.plan import measure_dirt, plan_round
from penstock.log.compaction.worker import Begin, Scan
from penstock.log.disk import OsDisk
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.metadata.image import MetadataImage
from penstock.model.ports import SystemClock
from penstock.testing import Broker
from tests.log.compacting import COMPACT, close_segment, put, records, table
from tests.log.logs import TOPIC_ID
from tests.waiting import eventually, eventually_async

SECONDS = 30.0
KEYS = 5_000


class World:
    """The little of a broker that compaction asks for, with logs on a real disk."""

    def __init__(self, path: Path) -> None:
        self.clock = SystemClock()
        self.pool = ThreadPoolExecutor(2)
        self.logs = LogStore(OsDisk(), self.clock, [str(path)])
        self.logs.load()
        self.partitions: list[SimpleNamespace] = []
        self.settings = SimpleNamespace(
            log_cleaner_enable=True,
            log_cleaner_dedupe_buffer_size=1 << 20,
            log_cleaner_io_max_bytes_per_second=1e308,
        )
        self.image = MetadataImage()
        self.compaction = Compaction(self)  # type: ignore[arg-type]

    def open(self, topic: str, **config: Any) -> PartitionLog:
        log = self.logs.open(topic, 0, TOPIC_ID, replace(COMPACT, segment_bytes=1 << 20, **config))
        self.partitions.append(SimpleNamespace(log=log, high_watermark=1 << 40))
        return log

    def open_big(self) -> PartitionLog:
        """A log that is given to a process: every key is written several times."""
        log = self.open("big")
        writer = BatchWriter(100, self.clock.now_ms())
        for number in range(4 * KEYS // 1000):
            first = number * 1000 % KEYS
            log.append_as_leader(writer.build(range(first, first + 1000)), 0, 0, origin="coordinator")
        close_segment(log)
        assert log.size_bytes > 2 * POOL_BYTES
        return log

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.run(work)
        finally:
            self.pool.shutdown()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def processes(monkeypatch: pytest.MonkeyPatch) -> list[CompactionProcess]:
    """All compaction processes that are started from now on."""
    started: list[CompactionProcess] = []
    init = CompactionProcess.__init__

    def note(self: CompactionProcess) -> None:
        init(self)
        started.append(self)

    monkeypatch.setattr(CompactionProcess, "__init__", note)
    return started


def test_small_logs_are_compacted_in_the_pool(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started = processes(monkeypatch)
    log = world.open("small")
    for number in range(300):
        put(log, (f"k{number % 3}", f"{number}"))
    close_segment(log)
    world.run(world.compaction.run())
    assert table(records(log)) == {"k0": "297", "k1": "298", "k2": "299"}
    assert not started


def test_big_logs_are_compacted_by_a_process(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started = processes(monkeypatch)
    log, other = world.open_big(), world.open("small")
    put(other, ("k", "v"))
    close_segment(other)
    world.run(world.compaction.run())
    assert [record.offset for record in records(log)] == list(range(3 * KEYS, 4 * KEYS))
    assert world.compaction.cleaner.rounds >= 2
    assert len(started) == 1
    assert not started[0].is_running, "it ends with the chore"


def test_a_process_that_is_killed_costs_only_time(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = processes(monkeypatch)
    log = world.open_big()

    async def run() -> None:
        world.settings.log_cleaner_io_max_bytes_per_second = 100_000.0
        task = asyncio.create_task(world.compaction.run())
        await eventually_async(lambda: started, SECONDS)
        os.kill(started[0].pid, signal.SIGKILL)
        await asyncio.wait_for(task, SECONDS)
        assert world.compaction.cleaner.rounds == 0
        assert len(records(log)) == 4 * KEYS
        world.settings.log_cleaner_io_max_bytes_per_second = 1e308
        await world.compaction.run()

    world.run(run())
    assert "is tried again later: the compaction process has ended with -9" in caplog.text
    assert len(records(log)) == KEYS


def test_stopping_ends_the_process_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started = processes(monkeypatch)
    log = world.open_big()

    async def run() -> None:
        world.settings.log_cleaner_io_max_bytes_per_second = 100_000.0
        task = asyncio.create_task(world.compaction.run())
        await eventually_async(lambda: started, SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, SECONDS)
        assert not started[0].is_running

    world.run(run())
    world.logs.close()
    again = World(Path(world.logs.directories[0].path))
    log = again.open("big")
    assert len(records(log)) == 4 * KEYS
    again.run(again.compaction.run())
    assert len(records(log)) == KEYS


def test_a_process_ends_with_its_parent(world: World) -> None:
    log = world.open_big()
    plan = plan_round(log, measure_dirt(log, 1 << 40, 0), 0, 1 << 20)

    async def run() -> None:
        process = CompactionProcess()
        await process.send(Begin(plan, 10_000.0))
        await process.send(Scan())  # takes minutes at this speed
        assert process.is_running
        assert process._child.stdin is not None
        process._child.stdin.close()  # as when the parent dies
        await eventually_async(lambda: not process.is_running, SECONDS)
        await process.stop()

    world.run(run())


def test_damage_is_told_by_the_process(world: World, caplog: pytest.LogCaptureFixture) -> None:
    log = world.open_big()
    path = Path(log.segments[0].path + ".log")
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    reported: list[int] = []
    world.compaction.cleaner.on_damaged = lambda _, fault: reported.append(fault.offset)
    world.run(world.compaction.run())
    assert reported == [0]
    assert "is not compacted any more" in caplog.text
    assert f"{path} is damaged at byte 0: the CRC does not match" in caplog.text
    assert log.offline is None


def test_without_a_process_the_pool_does_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    log = world.open_big()
    world.run(world.compaction.run())
    assert len(records(log)) == KEYS


def test_it_can_be_switched_off(world: World) -> None:
    log = world.open("t")
    put(log, ("k", "1"), ("k", "2"))
    close_segment(log)
    world.settings.log_cleaner_enable = False
    world.run(world.compaction.run())
    assert len(records(log)) == 2


def test_committed_offsets_are_compacted_and_load_quickly(caplog: pytest.LogCaptureFixture) -> None:
    """100,000 commits of 100 partitions; after a restart about as many records are loaded as there are offsets."""
    settings = {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "500000",
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.min.cleanable.ratio": "0.1",
    }
    caplog.set_level(logging.INFO, "penstock")
    with Broker(settings) as broker:
        broker.create_topic("t", 100)
        commit_often(broker.bootstrap, 1000)
        before = offsets_log(broker)
        end_offset = before.end_offset
        assert end_offset >= 100_000
        # One active segment, which is never compacted, and little beside it.
        eventually(lambda: offsets_log(broker).size_bytes < 600_000, SECONDS)
        broker.restart()
        assert committed(broker.bootstrap) == list(range(999, 1099))
        assert offsets_log(broker).end_offset >= end_offset
        loads = [record.args for record in caplog.records if str(record.msg).startswith("loaded %d groups")]
        assert loads, caplog.text
        assert 100 <= loads[-1][2] < 10_000, loads  # type: ignore[index,operator]


def offsets_log(broker: Broker) -> PartitionLog:
    log = broker.node.broker.logs.get("__consumer_offsets", 0)
    assert log is not None
    return log


def commit_often(bootstrap: str, times: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    for number in range(times):
        offsets = [confluent_kafka.TopicPartition("t", partition, number + partition) for partition in range(100)]
        consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def committed(bootstrap: str) -> list[int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    found = consumer.committed([confluent_kafka.TopicPartition("t", partition) for partition in range(100)], 30)
    consumer.close()
    return [place.offset for place in sorted(found, key=lambda place: place.partition)]


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    run_bench(["--keys", "20000", "--segment-bytes", "500KB", "--buffer", "100KiB"])
    printed = capsys.readouterr().out
    assert "records/s" in printed
    assert "peak memory of the rounds" in printed
