"""The transaction coordinator of this broker: takes each request to the shard of its transactional id.

Methods answer a response or an `ErrorCode`, which the handlers turn into one. A request that comes while its shard
loads waits a little, then is told so; one that would begin a transaction while the last one is still being ended
waits a little for its markers, then is told CONCURRENT_TRANSACTIONS. One loop timer serves all shards.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from penstock.broker.coordinator_leadership import CoordinatorLeadership, OnLost
from penstock.broker.coordinator_log import LoadFailed
from penstock.broker.group_partition import CoordinatorPartition, OpenPartition
from penstock.broker.transaction_loader import TransactionLoader
from penstock.broker.transaction_markers import MarkerSender, MarkerTarget
from penstock.broker.transaction_producer_ids import NoProducerIds, SpareProducerIds
from penstock.broker.transaction_shards import LedTransactions
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import TRANSACTION_VERSION
from penstock.metadata.image import TRANSACTION_TOPIC, MetadataImage, TopicImage
from penstock.metadata.settings.broker_settings import BrokerSettings
from penstock.model.errors import ErrorCode
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import TopicPartition
from penstock.model.ports import Clock
from penstock.transactions.config import TransactionConfig
from penstock.transactions.connections import NO_CONNECTION
from penstock.transactions.decision import Decision, Now, WriteMarkers
from penstock.transactions.shard import TransactionShard
from penstock.transactions.state import Identity
from penstock.transactions.transitions import ProducerIds
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.describe_transactions import DescribeTransactionsResponse
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.generated.list_transactions import ListTransactionsRequest, ListTransactionsResponse

log = logging.getLogger("penstock.transactions")

_DEADLINES_PER_WAKE = 200  # then others get their turn on the loop
# What stands for a producer of transaction version 2 in the coordinator: a broker adds for it. (KIP-890)
_ADD_BY_BROKER_VERSION = 5

Decide = Callable[[TransactionShard, "asyncio.Future[Any]", Now], Decision]
ListedTransaction = ListTransactionsResponse.TransactionState
DescribedTransaction = DescribeTransactionsResponse.TransactionState


def transaction_config(settings: BrokerSettings) -> TransactionConfig:
    return TransactionConfig(
        max_timeout_ms=settings.transaction_max_timeout_ms,
        transactional_id_expiration_ms=settings.transactional_id_expiration_ms,
        expiration_check_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
        two_phase_commit_enable=settings.transaction_two_phase_commit_enable,
        refuse_late_requests=settings.transaction_late_request_check_enable,
    )


class TransactionService:
    """Changed only on the event loop."""

    def __init__(
        self,
        settings: Callable[[], BrokerSettings],
        node_id: int,
        clock: Clock,
        pool: Executor | None,
        open_partition: OpenPartition,
        markers: MarkerTarget,
        producer_ids: SpareProducerIds,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._pool = pool
        self._producer_ids = producer_ids
        self.markers = markers
        self._sender = MarkerSender(markers, self._marker_written)
        self._config = transaction_config(settings())
        self._leadership = CoordinatorLeadership("transactions", node_id, open_partition, self._load, self._on_ready)
        self._topic: TopicImage | None = None
        self._version = 0
        self._wake_ms: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Called with every published image, in order."""
        version = image.features.get(TRANSACTION_VERSION, 0)
        if version != self._version:
            self._version = version
            for led in self._leadership.active.values():
                led.shard.transaction_version = version
        topic = image.topic(TRANSACTION_TOPIC)
        if topic is not self._topic:
            self._topic = topic
            self._leadership.follow(topic)
        changed = {change.name for change in delta.topic_changes.values()}
        changed.update(deleted.name for deleted in delta.deleted_topics.values())
        if changed:
            self._sender.hurry(changed)

    def stop(self) -> None:
        """Everybody who waits is sent away; nothing is served any more."""
        self._leadership.resign_all()
        self._sender.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- producers --------------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, request: InitProducerIdRequest, api_version: int
    ) -> InitProducerIdResponse | ErrorCode:
        """For a transactional id; it is not null."""
        async with self._producer_ids.reserved():
            answer: InitProducerIdResponse | ErrorCode = await self._submit_patiently(
                request.transactional_id or "",
                lambda shard, waiter, now: shard.decide_init_producer_id(
                    request, api_version, self._producer_ids, waiter, now
                ),
            )
        return answer

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Collection[TopicPartition],
        api_version: int = _ADD_BY_BROKER_VERSION,
        connection: int = NO_CONNECTION,
        patient: bool = True,
    ) -> ErrorCode:
        """With the default version: by this broker, for a producer of transaction version 2."""
        producer = Identity(producer_id, producer_epoch)
        submit = self._submit_patiently if patient else self._submit
        answer: ErrorCode = await submit(
            transactional_id,
            lambda shard, waiter, now: shard.decide_add_partitions(
                transactional_id, producer, partitions, api_version, waiter, now, connection
            ),
        )
        return answer

    async def add_offsets(
        self, request: AddOffsetsToTxnRequest, offsets_partition: TopicPartition, api_version: int, connection: int
    ) -> ErrorCode:
        answer: ErrorCode = await self._submit_patiently(
            request.transactional_id,
            lambda shard, waiter, now: shard.decide_add_offsets(
                request, offsets_partition, api_version, waiter, now, connection
            ),
        )
        return answer

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Whether all these partitions are part of the open transaction; INVALID_TXN_STATE when one is not."""
        settings = self._settings()
        if not settings.transaction_partition_verification_enable:
            return ErrorCode.NONE
        verdicts = await self.verify_each(transactional_id, producer_id, producer_epoch, partitions)
        errors = [error for error in verdicts.values() if error is not ErrorCode.NONE]
        if not errors:
            return ErrorCode.NONE
        return ErrorCode.INVALID_TXN_STATE if errors[0] is ErrorCode.TRANSACTION_ABORTABLE else errors[0]

    async def verify_each(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """TRANSACTION_ABORTABLE is for a partition that was not added."""
        index = self._index(transactional_id)
        led = self._leadership.active.get(index) or await self._leadership.find(index)
        if isinstance(led, ErrorCode):
            return dict.fromkeys(partitions, led)
        return led.shard.verify_partitions(transactional_id, Identity(producer_id, producer_epoch), partitions)

    async def end_transaction(
        self, request: EndTxnRequest, api_version: int, connection: int
    ) -> EndTxnResponse | ErrorCode:
        """Never waits for another end: a request that was held back could meet the next transaction."""
        # Only when the epochs are used up is there an id to be had from the controller, which may not be there.
        none = NoProducerIds()
        answer = await self._end(request, api_version, connection, none)
        if none.was_wanted:
            async with self._producer_ids.reserved():
                answer = await self._end(request, api_version, connection, self._producer_ids)
        return answer

    def _end(
        self, request: EndTxnRequest, api_version: int, connection: int, producer_ids: ProducerIds
    ) -> Awaitable[EndTxnResponse | ErrorCode]:
        return self._submit(
            request.transactional_id,
            lambda shard, waiter, now: shard.decide_end_txn(
                request, api_version, producer_ids, waiter, now, connection
            ),
        )

    # -- administration ---------------------------------------------------------------------------------------------

    async def list_transactions(
        self, request: ListTransactionsRequest, matches: Callable[[str], bool]
    ) -> tuple[ErrorCode, list[ListedTransaction]]:
        """Transactions of all shards led here; with an error, and nothing else, when one could not be asked."""
        listed: list[ListedTransaction] = []
        for index in self._leadership.led_indexes():
            led = await self._leadership.find(index)
            if isinstance(led, LedTransactions):
                listed += led.shard.list_transactions(request, matches, self._now())
            elif led is not ErrorCode.NOT_COORDINATOR:  # moved away meanwhile: another broker lists it
                return led, []
        return ErrorCode.NONE, listed

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction:
        led = await self._leadership.find(self._index(transactional_id))
        if isinstance(led, LedTransactions):
            return led.shard.describe_transaction(transactional_id)
        return DescribedTransaction(led, transactional_id)

    # -- shards -----------------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1000), self._clock.now_ms())

    def _index(self, transactional_id: str) -> int:
        count = self._leadership.partition_count
        return coordinator_partition(transactional_id, count) if count else -1

    def _submit(self, transactional_id: str, decide: Decide) -> Awaitable[Any]:
        led = self._leadership.active.get(self._index(transactional_id))
        return self._submit_later(transactional_id, decide) if led is None else self._decide(led, decide)

    async def _submit_later(self, transactional_id: str, decide: Decide) -> Any:
        led = await self._leadership.find(self._index(transactional_id))
        return await self._decide(led, decide) if isinstance(led, LedTransactions) else led

    async def _submit_patiently(self, transactional_id: str, decide: Decide) -> Any:
        """A transaction that was just decided has its markers within milliseconds; a client would come back later."""
        answer = await self._submit(transactional_id, decide)
        if answer is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return answer
        settings = self._settings()
        deadline = self._clock.monotonic() + settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while answer is ErrorCode.CONCURRENT_TRANSACTIONS:
            left = deadline - self._clock.monotonic()
            led = self._leadership.active.get(self._index(transactional_id))
            if left <= 0 or led is None or not await led.settled(transactional_id, left):
                break
            answer = await self._submit(transactional_id, decide)
        return answer

    def _decide(self, led: LedTransactions, decide: Decide) -> "asyncio.Future[Any]":
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        now = self._now()
        led.apply(decide(led.shard, waiter, now), now)
        self._schedule(led)
        return waiter

    def _marker_written(self, led: LedTransactions, order: WriteMarkers, where: TopicPartition) -> None:
        now = self._now()
        led.apply(led.shard.decide_markers_written(order, (where,), now), now)
        self._schedule(led)

    # -- loading ----------------------------------------------------------------------------------------------------

    async def _load(self, partition: CoordinatorPartition, index: int, on_lost: OnLost) -> LedTransactions:
        await _all_committed(partition)
        shard = TransactionShard(self._config, partition.leader_epoch, self._version)
        settings = self._settings()
        loader = TransactionLoader(shard, partition, settings.transaction_state_log_load_buffer_size)
        loop = asyncio.get_running_loop()
        while loader.has_more:
            await loop.run_in_executor(self._pool, loader.step)
        shard.transaction_version = self._version
        if loader.record_count:
            log.info(
                "loaded %d transactional ids from %d records of partition %d",
                len(shard.states),
                loader.record_count,
                index,
            )
        return LedTransactions(shard, partition, self._sender.carry_out, on_lost)

    def _on_ready(self, index: int, led: LedTransactions) -> None:
        now = self._now()
        led.apply(led.shard.finish_load(now), now)
        self._schedule(led)

    # -- time -------------------------------------------------------------------------------------------------------

    def _schedule(self, led: LedTransactions) -> None:
        """Makes sure that the timer rings in time for this shard."""
        deadline_ms = led.next_deadline_ms()
        if deadline_ms is not None and (self._wake_ms is None or deadline_ms < self._wake_ms):
            self._wake_at(deadline_ms)

    def _wake_at(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._wake_ms = deadline_ms
        # Half a millisecond late rather than too early by a rounding, which would ring twice.
        delay = max((deadline_ms + 0.5) / 1000 - self._clock.monotonic(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._wake)

    def _wake(self) -> None:
        now = self._now()
        self._timer = self._wake_ms = None
        budget = _DEADLINES_PER_WAKE
        for led in list(self._leadership.active.values()):
            led.expire_answers(now)
            while budget and not led.closed and (decision := led.shard.decide_timeout(now)) is not None:
                led.apply(decision, now)
                budget -= 1
        for led in self._leadership.active.values():
            self._schedule(led)


async def _all_committed(partition: CoordinatorPartition) -> None:
    """What a crash left at the end of the log counts once it is known to stay there."""
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    partition.when_committed(partition.end_offset, partial(_resolve, outcome))
    error = await outcome
    if error is not ErrorCode.NONE:
        raise LoadFailed(error.message)


def _resolve(outcome: "asyncio.Future[ErrorCode]", error: ErrorCode) -> None:
    if not outcome.done():
        outcome.set_result(error)
