"""Compaction at speed: `python -m bench.compaction [--keys 10000000] [--updates 0.5] [--buffer 128MiB]`.

Writes a log of that many keys, updates a share of them at random, and has it compacted by the process that a broker
uses for big logs. Prints MB/s and records/s of the log that was read, the longest swap on the event loop, and the
peak memory of that process: what it had before it began, and what the rounds added, which the buffer bounds.
"""

import argparse
import asyncio
import contextlib
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from penstock.broker.compaction import CompactionProcess, ProcessWorker
from penstock.log.compaction import cleaner as cleaner_module
from penstock.log.compaction.cleaned_file import CleanedSegment
from penstock.log.compaction.cleaner import Candidate, Cleaner
from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.round import Rewritten, Scanned
from penstock.log.config import LogConfig
from penstock.log.disk import OsDisk
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.model.ports import Disk, DiskFile, SystemClock
from penstock.model.units import format_bytes, parse_bytes
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_BYTES, patch_crc
from penstock.records.varint import append_varint

T = TypeVar("T")
_TOPIC_ID = bytes(range(16))
_BATCH_RECORDS = 1000
_KEY_BYTES = 16
_UNLIMITED = 1e308


class BatchWriter:
    """Batches of small records, many times faster than building them record by record."""

    def __init__(self, value_bytes: int, now_ms: int) -> None:
        self._now_ms = now_ms
        self._tail = _varint(value_bytes) + b"v" * value_bytes + b"\x00"
        self._heads = []
        for number in range(_BATCH_RECORDS):
            body = b"\x00" + _varint(0) + _varint(number) + _varint(_KEY_BYTES)
            self._heads.append(_varint(len(body) + _KEY_BYTES + len(self._tail)) + body)

    def build(self, keys: Sequence[int]) -> bytearray:
        tail = self._tail
        out = bytearray(HEADER_BYTES)
        out += b"".join([head + b"k%015d" % key + tail for head, key in zip(self._heads, keys, strict=False)])
        size, count = len(out) - LENGTH_BYTES, len(keys)
        HEADER.pack_into(out, 0, 0, size, 0, 2, 0, 0, count - 1, self._now_ms, self._now_ms, -1, -1, -1, count)
        patch_crc(out, 0, len(out))
        return out


def _varint(value: int) -> bytes:
    out = bytearray()
    append_varint(out, value)
    return bytes(out)


def key_batches(keys: int, updates: int, rng: random.Random) -> Iterator[Sequence[int]]:
    for start in range(0, keys, _BATCH_RECORDS):
        yield range(start, min(keys, start + _BATCH_RECORDS))
    for start in range(0, updates, _BATCH_RECORDS):
        yield [rng.randrange(keys) for _ in range(min(_BATCH_RECORDS, updates - start))]


def write_log(log: PartitionLog, keys: int, updates: int, value_bytes: int) -> None:
    now_ms = SystemClock().now_ms()
    writer = BatchWriter(value_bytes, now_ms)
    total = keys + updates
    for number, batch in enumerate(key_batches(keys, updates, random.Random(1))):
        result = log.append_as_leader(writer.build(batch), 0, now_ms, origin="coordinator")
        assert hasattr(result, "base_offset"), result
        if number % 500 == 0:
            _progress(f"writing {log.end_offset:,} of {total:,} records")
    log.roll()
    log.flush()
    _progress("")


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text:<70}", end="", file=sys.stderr, flush=True)


class WatchedWorker(ProcessWorker):
    """Says how far it is, and what a round has found."""

    def __init__(self, process: CompactionProcess, plan: RoundPlan, found: list[Scanned]) -> None:
        super().__init__(process, plan, _UNLIMITED)
        self._found = found
        self._groups = 0

    async def scan(self) -> Scanned:
        _progress("scanning")
        scanned = await super().scan()
        self._found.append(scanned)
        self._groups = scanned.groups
        return scanned

    async def rewrite(self, number: int) -> Rewritten:
        _progress(f"rewriting segment group {number + 1} of {self._groups}")
        return await super().rewrite(number)


@contextlib.contextmanager
def watched_swaps() -> Iterator[list[float]]:
    """How long each swap took: the only thing that happens on the loop."""
    seconds = [0.0]
    swap_in = cleaner_module.swap_in

    def timed(log: PartitionLog, cleaned: CleanedSegment) -> list[DiskFile] | None:
        start = time.perf_counter()
        replaced = swap_in(log, cleaned)
        seconds.append(time.perf_counter() - start)
        return replaced

    cleaner_module.swap_in = timed
    yield seconds
    cleaner_module.swap_in = swap_in


def _peak_bytes(pid: int) -> int:
    """Largest resident size so far; of a process that still runs, so from /proc."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


async def compact(log: PartitionLog, buffer_bytes: int) -> None:
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(2)
    process = CompactionProcess()
    found: list[Scanned] = []
    base_bytes = await _settled_bytes(process)

    def begin(disk: Disk, plan: RoundPlan) -> ProcessWorker:
        return WatchedWorker(process, plan, found)

    async def run_in_pool(work):  # type: ignore[no-untyped-def]
        return await loop.run_in_executor(pool, work)

    size_bytes, records = log.size_bytes, log.end_offset
    cleaner = Cleaner(SystemClock(), begin, run_in_pool)
    start = time.perf_counter()
    with watched_swaps() as swaps:
        await cleaner.compact(Candidate(log, log.end_offset), buffer_bytes)
    elapsed = time.perf_counter() - start
    peak_bytes = _peak_bytes(process.pid)
    await process.stop()
    _progress("")
    assert cleaner.rounds, "nothing was compacted"
    report(size_bytes, log.size_bytes, records, found, elapsed, _child_cpu_s())
    print(f"{'peak memory of the rounds':<28} {format_bytes(peak_bytes - base_bytes)}"
          f"  (buffer {format_bytes(buffer_bytes)}, process before it {format_bytes(base_bytes)})")  # fmt: skip
    print(f"{'longest swap on the loop':<28} {max(swaps) * 1000:.1f} ms")


async def _settled_bytes(process: CompactionProcess) -> int:
    """What the process takes once its imports are done."""
    last = -1
    while (now := _peak_bytes(process.pid)) != last:
        last = now
        await asyncio.sleep(0.3)
    return now


def _child_cpu_s() -> float:
    """Of the one child there was: the process at low priority, on a busy machine, may wait more than it works."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def report(before: int, after: int, records: int, found: list[Scanned], elapsed: float, cpu_s: float) -> None:
    keys = sum(scanned.unique_keys for scanned in found)
    print(f"{'log':<28} {records:,} records, {before / 1e6:,.0f} MB; now {after / 1e6:,.0f} MB")
    print(f"{'rounds':<28} {len(found)}, with {keys:,} keys")
    print(f"{'time':<28} {elapsed:.1f} s, {cpu_s:.1f} s of CPU")
    for what, seconds in (("speed", elapsed), ("speed per CPU second", cpu_s)):
        print(f"{what:<28} {before / 1e6 / seconds:,.1f} MB/s, {records / seconds:,.0f} records/s")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compaction", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--updates", type=float, default=0.5, help="updates written behind the keys, per key")
    parser.add_argument("--value-bytes", type=int, default=64)
    parser.add_argument("--buffer", type=parse_bytes, default=128 << 20, help="log.cleaner.dedupe.buffer.size")
    parser.add_argument("--segment-bytes", type=parse_bytes, default=256 << 20)
    options = parser.parse_args(arguments)
    directory = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        store = LogStore(OsDisk(), SystemClock(), [directory])
        store.load()
        config = LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=options.segment_bytes,
            flush_mode="os",
            min_cleanable_dirty_ratio=0.0,
        )
        log = store.open("bench", 0, _TOPIC_ID, config)
        write_log(log, options.keys, int(options.keys * options.updates), options.value_bytes)
        asyncio.run(compact(log, options.buffer))
        store.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
