"""Compaction as this broker runs it: small logs in the pool, big ones in a process of their own.

The process is started when the first big log wants compaction, serves all of them one after the other, and ends with
the chore, so that an idle broker has none. It can die at any time; then the round is tried again another time.
"""

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import msgspec

from penstock.log.compaction.cleaner import Candidate, Cleaner, RoundLost, RoundWorker
from penstock.log.compaction.plan import RoundPlan
from penstock.log.compaction.pool_worker import PoolWorker
from penstock.log.compaction.round import Rewritten, Scanned
from penstock.log.compaction.worker import Begin, Fault, Reply, Request, Rewrite, Scan, encode_frame, read_frame
from penstock.log.disk import OsDisk
from penstock.log.errors import CorruptSegment
from penstock.log.partition_log import PartitionLog
from penstock.model.ports import Disk

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.compaction")
T = TypeVar("T")

POOL_BYTES = 1 << 20
"""Logs up to this size are compacted in the pool: quicker than starting a process."""
_MIN_BUFFER_BYTES = 1 << 20


class Compaction:
    """The chore. `run` compacts what wants it and returns; `stop` ends what is under way."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._process: CompactionProcess | None = None
        self.cleaner = Cleaner(broker.clock, self._begin, self._run_in_pool)
        self.cleaner.on_damaged = self._damaged

    async def run(self) -> None:
        settings = self._broker.settings
        if not settings.log_cleaner_enable:
            return
        buffer_bytes = max(settings.log_cleaner_dedupe_buffer_size, _MIN_BUFFER_BYTES)
        try:
            await self.cleaner.compact_all(self._candidates, buffer_bytes)
        finally:
            process, self._process = self._process, None
            if process is not None:
                await process.stop()

    def _candidates(self) -> Iterator[Candidate]:
        for partition in self._broker.partitions:
            if partition.log.config.is_compacted:
                yield Candidate(partition.log, partition.log.last_stable_offset(partition.high_watermark))

    def _damaged(self, damaged: PartitionLog, fault: CorruptSegment) -> None:
        """Where there are other replicas it is fetched anew from the damage on."""
        topic = self._broker.image.topic_by_id(damaged.topic_id)
        if topic is not None and fault.offset >= 0:
            self._broker.replicas.repairs.damaged(topic, damaged.partition, fault.offset, fault.reason)

    def _begin(self, disk: Disk, plan: RoundPlan) -> RoundWorker:
        max_bytes_per_second = self._broker.settings.log_cleaner_io_max_bytes_per_second
        if plan.size_bytes > POOL_BYTES and isinstance(disk, OsDisk):
            process = self._live_process()
            if process is not None:
                return ProcessWorker(process, plan, max_bytes_per_second)
        return PoolWorker(disk, plan, self._broker.pool, max_bytes_per_second)

    def _live_process(self) -> "CompactionProcess | None":
        if self._process is None or not self._process.is_running:
            try:
                self._process = CompactionProcess()
            except OSError as error:
                log.warning("compaction goes on in the pool, a process could not be started: %s", error)
                return None
        return self._process

    async def _run_in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._broker.pool, work)


class CompactionProcess:
    """The parent's end of `log.compaction.worker`. One request at a time."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "penstock.log.compaction.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        # A thread of its own: answers may take minutes, and the pool has few.
        self._thread: Executor = ThreadPoolExecutor(1, thread_name_prefix="penstock-compaction")
        self._decoder = msgspec.msgpack.Decoder(Reply)

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def pid(self) -> int:
        return self._child.pid

    async def send(self, request: Request) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, request)

    async def ask(self, request: Request) -> Scanned | Rewritten:
        """Raises what went wrong there: `CorruptSegment`, OSError, or `RoundLost` when the process is gone."""
        reply = await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, request)
        if isinstance(reply, Fault):
            raise reply.to_exception()
        return reply

    def _write(self, request: Request) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(encode_frame(request))
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._lost() from None

    def _ask(self, request: Request) -> Reply:
        self._write(request)
        assert self._child.stdout is not None
        frame = read_frame(self._child.stdout)
        if frame is None:
            raise self._lost()
        reply: Reply = self._decoder.decode(frame)
        return reply

    def _lost(self) -> RoundLost:
        """Its pipe is closed, so it has ended or is about to."""
        return RoundLost(f"the compaction process has ended with {self._child.wait()}")

    async def stop(self) -> None:
        """Ends the process, whatever it is doing: what it has written without being asked about it is of no use."""
        self._child.kill()
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, self._reap))
        self._thread.shutdown(wait=False)

    def _reap(self) -> None:
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what it was not told before it died
                pipe.close()


class ProcessWorker:
    """A `RoundWorker` in another process."""

    def __init__(self, process: CompactionProcess, plan: RoundPlan, max_bytes_per_second: float) -> None:
        self._process = process
        self._begin: Begin | None = Begin(plan, max_bytes_per_second)

    async def scan(self) -> Scanned:
        assert self._begin is not None
        await self._process.send(self._begin)
        self._begin = None
        reply = await self._process.ask(Scan())
        assert isinstance(reply, Scanned)
        return reply

    async def rewrite(self, number: int) -> Rewritten:
        reply = await self._process.ask(Rewrite(number))
        assert isinstance(reply, Rewritten)
        return reply

    async def close(self) -> None:
        """The process stays for the next round; a round that was given up is forgotten with the next one."""
