"""What the log engine costs by itself, without a broker: `python -m bench.log`.

CPU time, best of several rounds: append of a tiny batch (with and without producer id), of a 1 MB batch, read plans,
and the memory of an idle partition, untouched and with data.
"""

import asyncio
import contextlib
import gc
import os
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.log.config import LogConfig
from penstock.log.disk import OsDisk
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.ports import SystemClock
from penstock.records.batch import patch_crc
from penstock.records.builder import build_batch

_TOPIC_ID = bytes(range(16))
_PARTITIONS = 100_000


def _micros(work: Callable[[], object], calls: int) -> float:
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time() - start) / calls)
    return best * 1e6


def _store(directory: str) -> LogStore:
    store = LogStore(OsDisk(), SystemClock(), [directory])
    store.load()
    return store


def _report(what: str, value: float, unit: str) -> None:
    print(f"{what:<48} {value:>12,.1f} {unit}")


def bench_append(directory: str) -> PartitionLog:
    log = _store(directory).open("bench", 0, _TOPIC_ID, LogConfig(flush_mode="os"))
    now_ms = SystemClock().now_ms()
    tiny = build_batch([(b"k" * 10, b"v" * 70)], timestamp_ms=now_ms)
    append = _micros(lambda: log.append_as_leader(tiny, 0, now_ms), 50_000)

    fd = os.open(f"{directory}/plain", os.O_RDWR | os.O_CREAT)
    position = iter(range(0, 1 << 40, len(tiny)))
    write = _micros(lambda: os.pwrite(fd, tiny, next(position)), 50_000)
    os.close(fd)
    _report(f"append of a {len(tiny)}-byte batch", append, "µs")
    _report("  of which the write call", write, "µs")

    idempotent = build_batch(
        [(b"k" * 10, b"v" * 70)], timestamp_ms=now_ms, producer_id=1, producer_epoch=0, base_sequence=0
    )
    sequence = iter(range(1 << 30))

    def next_batch() -> None:
        struct.pack_into(">i", idempotent, 53, next(sequence))
        patch_crc(idempotent, 0, len(idempotent))

    prepare = _micros(next_batch, 20_000)
    sequence = iter(range(1 << 30))

    def append_next() -> None:
        next_batch()
        log.append_as_leader(idempotent, 0, now_ms)

    _report("append with producer id", _micros(append_next, 20_000) - prepare, "µs")
    large = memoryview(build_batch([(None, os.urandom(1 << 20))], timestamp_ms=now_ms))
    log.config = LogConfig(flush_mode="os", max_message_bytes=2 << 20)
    _report("append of a 1 MB batch", _micros(lambda: log.append_as_leader(large, 0, now_ms), 100), "µs")
    for _ in range(1000):
        log.append_as_leader(tiny, 0, now_ms)
    return log


def bench_read(log: PartitionLog) -> None:
    end = log.end_offset
    _report("read plan at the end of the log", _micros(lambda: log.read(end - 3, 1 << 20, end), 50_000), "µs")
    _report("read plan of 1 MB, going on", _micros(lambda: log.read(50_000, 1 << 20, end), 5_000), "µs")
    offsets = iter(range(0, 1 << 40, 997))
    _report(
        "read plan of 1 MB, anywhere", _micros(lambda: log.read(next(offsets) % 100_000, 1 << 20, end), 5_000), "µs"
    )


def bench_idle(directory: str) -> None:
    store = _store(directory)
    config = LogConfig()
    for touched in (False, True):
        gc.collect()
        tracemalloc.start()
        logs = [store.open(f"idle-{touched}", number, _TOPIC_ID, config) for number in range(_PARTITIONS)]
        if touched:
            for log in logs:
                _ = log.end_offset
        gc.collect()
        per_partition = tracemalloc.get_traced_memory()[0] / _PARTITIONS
        tracemalloc.stop()
        _report(f"idle partition, {'looked at' if touched else 'opened'}", per_partition, "bytes")


def bench_idle_with_data(directory: str, partitions: int = 2_000) -> None:
    now_ms = SystemClock().now_ms()
    store = _store(directory)
    for number in range(partitions):
        log = store.open("full", number, _TOPIC_ID, LogConfig(flush_mode="os"))
        log.append_as_leader(build_batch([(b"k", b"v")], timestamp_ms=now_ms), 0, now_ms)
        log.close()
    store.close()
    gc.collect()
    tracemalloc.start()
    store = _store(directory)
    config = LogConfig()
    start = time.process_time()
    for number in range(partitions):
        store.open("full", number, _TOPIC_ID, config).load()
    elapsed = time.process_time() - start
    gc.collect()
    _report("idle partition with data, loaded", tracemalloc.get_traced_memory()[0] / partitions, "bytes")
    tracemalloc.stop()
    _report("loading one after a clean shutdown (traced)", elapsed / partitions * 1e6, "µs")


async def bench_group_commit(directory: str, logs: int, appends: int) -> None:
    """Wall time, because it waits for the disk."""
    store = _store(directory)
    pool = ThreadPoolExecutor(4)
    store.start(asyncio.get_running_loop(), pool)
    now_ms = SystemClock().now_ms()
    opened = [store.open("commit", number, _TOPIC_ID, LogConfig()) for number in range(logs)]
    batch = build_batch([(b"k", b"v" * 70)], timestamp_ms=now_ms)
    start = time.perf_counter()
    for number in range(appends):
        opened[number % logs].append_as_leader(batch, 0, now_ms)
        if number % 20 == 19:
            await asyncio.sleep(0)
    await store.drain()
    elapsed = time.perf_counter() - start
    commit = store.directories[0].commit
    assert commit is not None
    _report(f"synced appends to {logs} logs", appends / elapsed, "per second")
    _report("  appends per sync", appends / max(1, commit.syncs), "")
    store.close()
    pool.shutdown()


def main() -> None:
    with contextlib.ExitStack() as stack:
        directories = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(5)]
        bench_read(bench_append(directories[0]))
        bench_idle(directories[1])
        bench_idle_with_data(directories[2])
        asyncio.run(bench_group_commit(directories[3], 1, 20_000))
        asyncio.run(bench_group_commit(directories[4], 64, 20_000))


if __name__ == "__main__":
    main()
