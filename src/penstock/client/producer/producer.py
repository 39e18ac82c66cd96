"""`Producer`: sends records, in batches, to the leaders of their partitions.

Order per partition is the order of the `send` calls. With the default (idempotent, acks all) a record is written
exactly once per partition log, however often the network makes the client try.
"""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from penstock.client.cluster import Cluster
from penstock.client.errors import Closed, RecordRefused, UsageError, no_partition
from penstock.client.options import ConnectionArguments, ConnectionOptions
from penstock.client.partitioner import StickyPartitioner, partition_for_key
from penstock.client.producer.accumulator import Accumulator, ProducerOptions
from penstock.client.producer.batch import RECORD_OVERHEAD_BYTES, Delivery
from penstock.client.producer.sender import Sender
from penstock.client.types import NO_HEADERS, Headers, RecordMetadata
from penstock.model.errors import ErrorCode
from penstock.records.compression import codec_by_name

if TYPE_CHECKING:
    from penstock.client.audit import AuditOptions, AuditPublisher

Acks = Literal[0, 1, -1, "all"]


class Producer:
    """Asynchronous producer.

    Arguments
        bootstrap: `host:port[,host:port…]`.
        acks: `"all"` (written by all in-sync replicas), 1 (by the leader), 0 (do not wait; offsets are unknown).
        idempotent: retries never duplicate or reorder. On by default with acks all; needs acks all.
        compression: none, gzip, snappy, lz4 or zstd.
        linger_ms, batch_bytes: a batch leaves when it is this old or this large.
        buffer_bytes, max_block_ms: `send` waits while this much is undelivered, and gives up after this long.
        delivery_timeout_ms: a record is given up when it is not acknowledged after this long.
        max_in_flight: requests on their way per broker, 1 to 5. Without idempotence one batch per partition.
        audit: tell an audit topic what was sent and acknowledged (True, a topic's name, or `AuditOptions`), for
            `penstock pipeline audit` to compare with the log.
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        acks: Acks = "all",
        idempotent: bool | None = None,
        compression: str = "none",
        linger_ms: float = 5,
        batch_bytes: int = 128 * 1024,
        max_request_bytes: int = 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        max_block_ms: int = 60_000,
        delivery_timeout_ms: int = 120_000,
        max_in_flight: int = 5,
        audit: "bool | str | AuditOptions" = False,
        **connection: Unpack[ConnectionArguments],
    ) -> None:
        if idempotent and acks not in ("all", -1):
            raise UsageError("an idempotent producer needs acks=all", hint="leave acks out, or set idempotent=False")
        if not 1 <= max_in_flight <= 5:
            raise UsageError("max_in_flight must be 1 to 5", hint="brokers remember five batches per producer")
        try:
            codec = codec_by_name(compression)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.options = ProducerOptions(
            acks=-1 if acks == "all" else acks,
            idempotent=acks in ("all", -1) if idempotent is None else idempotent,
            linger_ms=linger_ms,
            batch_bytes=min(batch_bytes, max_request_bytes),
            codec=codec,
            max_request_bytes=max_request_bytes,
            buffer_bytes=buffer_bytes,
            max_block_ms=max_block_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight=max_in_flight,
        )
        self._connection_options = ConnectionOptions(bootstrap).with_arguments(connection)
        self._clock = self._connection_options.clock
        self._sticky = StickyPartitioner(self._connection_options.rng)
        self._cluster: Cluster | None = None
        self._accumulator: Accumulator | None = None
        self._sender: Sender | None = None
        self._audit: AuditPublisher | None = None
        self._audit_options: AuditOptions | None = None
        if audit is not False:
            from penstock.client.audit import parse_audit_options

            self._audit_options = parse_audit_options(audit)

    # -- life ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects; raises `ConnectionFailed` if no broker answers within `start_timeout_ms`."""
        cluster = Cluster(self._connection_options, auto_create=True)
        await cluster.start()
        self._cluster = cluster
        self._accumulator = Accumulator(self.options)
        self._sender = Sender(cluster, self._accumulator, self.options)
        self._loop = asyncio.get_running_loop()
        if self._audit_options is not None:
            from penstock.client.audit import AuditPublisher

            self._audit = AuditPublisher(self._audit_options, self._connection_options)
            self._sender.audit = self._audit.counters
            self._audit.start()

    async def stop(self, timeout_ms: int | None = None) -> None:
        """Delivers what is buffered (for at most `timeout_ms`), then disconnects."""
        if self._cluster is None or self._accumulator is None or self._sender is None:
            return
        self._accumulator.close()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self.flush()
        except TimeoutError:
            pass
        finally:
            await self._sender.stop(Closed("the producer was stopped before the record was delivered"))
            await self._cluster.stop()
            self._cluster = None
            if self._audit is not None:
                await self._audit.stop()
                self._audit = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(None if error is None else 0)

    # -- records ------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[RecordMetadata]":
        """Buffers a record; the future is done when it is acknowledged or given up.

        Waits only for the topic to be known and for room in the buffer. Text is encoded as UTF-8. A value of None
        is a tombstone: it deletes its key from a compacted topic.
        """
        future: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        filled = self.try_send(topic, value, key, headers, partition, timestamp_ms, future)
        while filled is None:
            admitted = await self.make_ready(topic, value, key, headers)
            filled = self.try_send(topic, value, key, headers, partition, timestamp_ms, future, admitted=admitted)
        if filled:
            await asyncio.sleep(0)  # a tight loop of sends must let the batches out
        return future

    def try_send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        delivery: Delivery,
        *,
        admitted: bool = False,
    ) -> bool | None:
        """Buffers a record if that needs no waiting; says whether a batch is full, or None if it has to wait.

        `admitted`: `make_ready` has just waited for room, and said so.
        """
        cluster, accumulator = self._cluster, self._accumulator
        if cluster is None or accumulator is None or accumulator.closed:
            raise Closed("the producer is not started")
        info = cluster.metadata.topics.get(topic)
        if info is None or not info.partitions:
            return None
        raw_value = value.encode() if isinstance(value, str) else value
        raw_key = key.encode() if isinstance(key, str) else key
        size = _size_bytes(raw_value, raw_key, headers)  # as `make_ready` has it, or the two would never agree
        if not admitted and not accumulator.has_room(size):
            self._check_size(size)
            return None
        if partition is None:
            if raw_key is not None:
                partition = partition_for_key(raw_key, info.partition_count)
            else:
                available = info.available or list(info.partitions)
                partition = self._sticky.choose(topic, available)
                if not accumulator.has_open_batch(topic, partition):
                    partition = self._sticky.begin(topic, available)
        elif partition not in info.partitions:
            raise no_partition(topic, info.partition_count, partition)
        if size > self.options.max_request_bytes:
            self._check_size(size)
        timestamp = self._clock.now_ms() if timestamp_ms is None else timestamp_ms
        opened, filled = accumulator.append(
            topic, partition, raw_key, raw_value, headers or NO_HEADERS, timestamp, size, delivery
        )
        if opened is not None:
            self._sender.batch_opened(opened)  # type: ignore[union-attr]
        if filled:
            self._sticky.move_on(topic, partition)
            self._sender.wake()  # type: ignore[union-attr]
        return filled

    async def make_ready(
        self, topic: str, value: bytes | str | None, key: bytes | str | None, headers: Headers | None
    ) -> bool:
        """Waits for what `try_send` lacked: the topic, or room (then the answer is True, and good until the next
        await)."""
        cluster, accumulator, sender = self._running()
        await cluster.topic(topic, self.options.max_block_ms)
        raw_value = value.encode() if isinstance(value, str) else value
        raw_key = key.encode() if isinstance(key, str) else key
        size = _size_bytes(raw_value, raw_key, headers)
        if accumulator.has_room(size):
            return False
        sender.wake()  # it looks when this one waits already, and then no batch lingers
        await accumulator.wait_for_room(size)
        return True

    def _running(self) -> tuple[Cluster, Accumulator, Sender]:
        cluster, accumulator, sender = self._cluster, self._accumulator, self._sender
        if cluster is None or accumulator is None or sender is None or accumulator.closed:
            raise Closed("the producer is not started")
        return cluster, accumulator, sender

    def _check_size(self, size: int) -> None:
        limit = min(self.options.max_request_bytes, self.options.buffer_bytes)
        if size > limit:
            raise RecordRefused(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes is over {limit}")

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """As `send`, and waits for the acknowledgement."""
        return await (
            await self.send(topic, value, key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        )

    async def flush(self) -> None:
        """Sends everything buffered so far at once and waits until all of it is acknowledged or given up.

        Does not raise for failed records; their futures do.
        """
        if self._accumulator is None or self._sender is None:
            return
        begun = self._loop.time()
        self._sender.flushing += 1
        self._sender.wake()
        try:
            # Again, since a batch may have become two, which are not always decided in order.
            while pending := [batch for batch in self._accumulator.pending() if batch.created_at <= begun]:
                waiters = [self._loop.create_future() for _ in pending]
                for batch, waiter in zip(pending, waiters, strict=True):
                    batch.waiters.append(waiter)
                await asyncio.gather(*waiters)
            await self._sender.written()
        finally:
            self._sender.flushing -= 1

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        """The partitions of a topic, waiting (for at most `max_block_ms`) until it exists."""
        if self._cluster is None:
            raise Closed("the producer is not started")
        patience = self.options.max_block_ms if timeout_ms is None else timeout_ms
        return list((await self._cluster.topic(topic, patience)).partitions)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are neither acknowledged nor given up."""
        return 0 if self._accumulator is None else self._accumulator.buffered_bytes


def _size_bytes(value: bytes | None, key: bytes | None, headers: Headers | None) -> int:
    """Never less than the record will need."""
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += sum(len(name) * 3 + len(data or b"") + 10 for name, data in headers)
    return size
