"""The producer's buffer: records become batches per partition, within a bound on memory.

Who finds the buffer full waits in line, first come first served, until batches are done.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from penstock.client.errors import BufferFull, Closed
from penstock.client.producer.batch import Delivery, ProducerBatch
from penstock.client.producer.queue import PartitionQueue
from penstock.client.types import Headers
from penstock.model.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    acks: int = -1
    idempotent: bool = True
    linger_ms: float = 5
    batch_bytes: int = 128 * 1024
    codec: int = 0
    max_request_bytes: int = 1024 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    max_in_flight: int = 5


class Accumulator:
    """`active` holds the partitions that have work. `buffered_bytes` counts every record not yet decided."""

    def __init__(self, options: ProducerOptions) -> None:
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.active: dict[PartitionQueue, None] = {}
        self.buffered_bytes = 0
        self.closed = False
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._granted_bytes = 0

    def append(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        size_bytes: int,
        future: Delivery,
    ) -> tuple[ProducerBatch | None, bool]:
        """Adds a record; returns the batch if it was just opened, and whether another one was filled by this."""
        queue = self.queues.get((topic, partition))
        if queue is None:
            queue = self.queues[topic, partition] = PartitionQueue(topic, partition)
        batch = queue.open
        filled = False
        opened = None
        if batch is not None and batch.size_bytes + size_bytes > self._options.batch_bytes:
            self._close(queue)
            batch, filled = None, True
        if batch is None:
            now = self._loop.time()
            batch = ProducerBatch(topic, partition, now, now + self._options.delivery_timeout_ms / 1000)
            queue.open = opened = batch
            self.buffered_bytes += batch.size_bytes
            self.active[queue] = None
        before = batch.size_bytes
        batch.append(key, value, headers, timestamp_ms, future)
        self.buffered_bytes += batch.size_bytes - before
        if batch.size_bytes >= self._options.batch_bytes:
            self._close(queue)
            filled = True
        return opened, filled

    def _close(self, queue: PartitionQueue) -> None:
        queue.close_open(self._options.codec)

    def has_open_batch(self, topic: str, partition: int) -> bool:
        queue = self.queues.get((topic, partition))
        return queue is not None and queue.open is not None

    def has_room(self, size_bytes: int) -> bool:
        return (
            not self._waiting and self.buffered_bytes + self._granted_bytes + size_bytes <= self._options.buffer_bytes
        )

    @property
    def is_exhausted(self) -> bool:
        """Somebody waits for room: no batch may wait to become larger."""
        return bool(self._waiting)

    async def wait_for_room(self, size_bytes: int) -> None:
        """Returns when there is room; the caller must append before anything else runs."""
        if self.closed:
            raise Closed("the producer is stopped")
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((future, size_bytes))
        try:
            async with asyncio.timeout(self._options.max_block_ms / 1000):
                await future
        except TimeoutError:
            raise BufferFull(
                f"the producer's buffer of {self._options.buffer_bytes} bytes stayed full "
                f"for {self._options.max_block_ms} ms"
            ) from None
        finally:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._granted_bytes -= size_bytes
            future.cancel()
            self._let_in()

    def release(self, batch: ProducerBatch) -> None:
        """A batch is decided: its memory is free."""
        self.buffered_bytes -= batch.size_bytes
        if self._waiting:
            self._let_in()

    def reserve(self, batch: ProducerBatch) -> None:
        """A batch made from another one; it may go over the bound, for the other one is about to leave."""
        self.buffered_bytes += batch.size_bytes

    def _let_in(self) -> None:
        """Whoever is let in has its room granted until it appends."""
        while self._waiting:
            future, size_bytes = self._waiting[0]
            if not future.done():
                taken = self.buffered_bytes + self._granted_bytes
                # A record larger than the whole buffer is let in when nothing else is there.
                if taken and taken + size_bytes > self._options.buffer_bytes:
                    return
                self._granted_bytes += size_bytes
                future.set_result(None)
            self._waiting.popleft()

    def close(self) -> None:
        self.closed = True
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(Closed("the producer was stopped"))
        self._waiting.clear()

    def pending(self) -> list[ProducerBatch]:
        """Every batch that is not decided yet."""
        batches: list[ProducerBatch] = []
        for queue in self.active:
            batches += queue.retries
            batches += queue.inflight
            batches += queue.ready
            if queue.open is not None:
                batches.append(queue.open)
        return batches

    def leave(self, queue: PartitionQueue) -> None:
        """Nothing left to do for a partition; its queue stays, for its place in the sequence."""
        if queue.is_empty:
            self.active.pop(queue, None)

    def queue(self, partition: TopicPartition) -> PartitionQueue | None:
        return self.queues.get(partition)
