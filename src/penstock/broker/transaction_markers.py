"""Markers: the control records that end a transaction in each of its partitions.

An order is carried out partition by partition. What is refused is tried again for as long as the shard that gave the
order is served; a partition that does not exist any more counts as written. Each partition that has its marker on
stable storage is reported once: a marker is never sent again after that, because under transaction version 1 it
would end the next transaction too.

`MarkerTarget` is where a marker goes: `LocalMarkers` for the partitions of this broker, `RoutedMarkers` for all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container
from typing import Protocol

from penstock.broker.deadlines import Deadlines
from penstock.broker.partitions import NOT_OPEN, PartitionTable
from penstock.broker.transaction_shards import COMMIT_TIMEOUT_MS, LedTransactions
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.model.ports import Clock
from penstock.records.markers import EndMarker
from penstock.replication.partition import Partition
from penstock.transactions.decision import WriteMarkers

log = logging.getLogger("penstock.transactions")

_RETRY_SECONDS = 0.1
_MAX_RETRY_SECONDS = 5.0
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

Done = Callable[[ErrorCode], None]


class MarkerTarget(Protocol):
    def write(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
        """Calls back once: NONE when the marker is committed there, or why it is not. May do so before it returns."""


class GroupMarkers(Protocol):
    """The group coordinator: offsets of the transaction count, or are dropped, in the order of its log."""

    def write_marker(self, index: int, marker: EndMarker) -> Awaitable[ErrorCode]: ...


class LocalMarkers:
    """A `MarkerTarget` over the partitions of this broker, opened where they are closed."""

    def __init__(self, partitions: PartitionTable, groups: GroupMarkers, clock: Clock) -> None:
        self._partitions = partitions
        self._groups = groups
        self._clock = clock
        self._deadlines = Deadlines()
        # The event loop keeps only weak references to tasks.
        self._tasks: set[asyncio.Future[ErrorCode]] = set()

    def write(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
        found = self._partitions.find(*where)
        if found is NOT_OPEN:
            self._follow(self._open_and_write(marker, where), done)
        elif isinstance(found, Partition):
            self._write(found, marker, done)
        else:
            done(found.code)

    def _write(self, partition: Partition, marker: EndMarker, done: Done) -> None:
        if partition.topic == OFFSETS_TOPIC:
            self._follow(self._groups.write_marker(partition.index, marker), done)
        else:
            self._append(partition, marker, done)

    def _append(self, partition: Partition, marker: EndMarker, done: Done) -> None:
        written = partition.write_marker(marker, self._clock.now_ms())
        if isinstance(written, Refusal):
            done(written.code)
        else:
            _Written(partition, written.end_offset, self._deadlines, done)

    async def _open_and_write(self, marker: EndMarker, where: TopicPartition) -> ErrorCode:
        partition = await self._partitions.open(*where)
        if isinstance(partition, Refusal):
            return partition.code
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._write(partition, marker, lambda error: None if outcome.done() else outcome.set_result(error))
        return await outcome

    def _follow(self, writing: Awaitable[ErrorCode], done: Done) -> None:
        task = asyncio.ensure_future(writing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.result()))


class _Written:
    """A marker that is not committed yet. Whoever ordered it asks again, so nothing may stay of one that came to
    nothing; it may yet be committed, and the same marker once more does no harm."""

    __slots__ = ("_deadlines", "_done", "_waiter")

    def __init__(self, partition: Partition, end_offset: int, deadlines: Deadlines, done: Done) -> None:
        self._deadlines = deadlines
        self._done = done
        self._waiter = partition.when_committed(end_offset, self._committed)
        if self._waiter is not None:
            deadlines.add(self, COMMIT_TIMEOUT_MS)

    def _committed(self, error: ErrorCode) -> None:
        self._deadlines.remove(self, COMMIT_TIMEOUT_MS)
        self._done(_below_watermark(error))

    def time_out(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        self._done(ErrorCode.REQUEST_TIMED_OUT)


def _below_watermark(error: ErrorCode) -> ErrorCode:
    """With too few replicas in sync by now the marker stays committed all the same."""
    return ErrorCode.NONE if error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND else error


class _Retry:
    """A marker that is tried again when its time has come, or sooner."""

    __slots__ = ("attempts", "led", "order", "timer", "where")

    timer: asyncio.TimerHandle

    def __init__(self, led: LedTransactions, order: WriteMarkers, where: TopicPartition, attempts: int) -> None:
        self.led = led
        self.order = order
        self.where = where
        self.attempts = attempts


class MarkerSender:
    """Carries out the orders of all shards."""

    def __init__(
        self, target: MarkerTarget, report: Callable[[LedTransactions, WriteMarkers, TopicPartition], None]
    ) -> None:
        """`report` is called once for each partition of an order, unless its shard is closed."""
        self._target = target
        self._report = report
        self._retries: dict[_Retry, None] = {}  # in the order in which they were refused

    def carry_out(self, led: LedTransactions, order: WriteMarkers) -> None:
        for where in order.partitions:
            self._send(led, order, where, 0)

    def stop(self) -> None:
        for retry in self._retries:
            retry.timer.cancel()
        self._retries.clear()

    def hurry(self, topics: Container[str]) -> None:
        """The image says something new of these topics: whatever waits to be tried again there need not wait."""
        for retry in [retry for retry in self._retries if retry.where.topic in topics]:
            retry.timer.cancel()
            retry.attempts = 0
            self._try_again(retry)

    def _send(self, led: LedTransactions, order: WriteMarkers, where: TopicPartition, attempts: int) -> None:
        marker = EndMarker(
            order.producer_id,
            order.producer_epoch,
            order.coordinator_epoch,
            order.commit,
            order.transaction_version,
        )
        self._target.write(marker, where, lambda error: self._told(led, order, where, attempts, error))

    def _told(
        self, led: LedTransactions, order: WriteMarkers, where: TopicPartition, attempts: int, error: ErrorCode
    ) -> None:
        if led.closed:
            return  # whoever leads it now orders all its markers again
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            # A later identity has written there, so what this marker was to end is not open there any more.
            log.error("%s has a newer epoch than the marker of %s", where, order.transactional_id)
        elif error is not ErrorCode.NONE and error not in _GONE:
            self._retry(led, order, where, attempts + 1, error)
            return
        self._report(led, order, where)

    def _retry(
        self, led: LedTransactions, order: WriteMarkers, where: TopicPartition, attempts: int, error: ErrorCode
    ) -> None:
        if attempts & (attempts - 1) == 0:  # the first, second, fourth, eighth …
            log.warning(
                "the marker of %s for %s is tried again (attempt %d): %s",
                order.transactional_id,
                where,
                attempts + 1,
                error.message,
            )
        delay = min(_RETRY_SECONDS * attempts, _MAX_RETRY_SECONDS)
        retry = _Retry(led, order, where, attempts)
        retry.timer = asyncio.get_running_loop().call_later(delay, self._try_again, retry)
        self._retries[retry] = None

    def _try_again(self, retry: _Retry) -> None:
        self._retries.pop(retry, None)
        if not retry.led.closed:
            self._send(retry.led, retry.order, retry.where, retry.attempts)
