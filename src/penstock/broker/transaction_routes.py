"""What partition leaders and group coordinators ask of a transaction's coordinator, wherever that is. (KIP-890)

A coordinator on this broker is asked directly, one on another broker with AddPartitionsToTxn. Such requests carry
many transactions, so none of them is held back over there: when the last transaction is still being ended, this side
asks again after a pause.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.broker.coordinator_leadership import LOAD_WAIT_SECONDS
from penstock.broker.peer_batches import AskBroker, PeerBatches, Question
from penstock.broker.peers import PeerUnreachable
from penstock.broker.transaction_shards import COMMIT_TIMEOUT_MS
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import TRANSACTION_TOPIC, MetadataImage
from penstock.metadata.partition import NO_LEADER
from penstock.metadata.settings.broker_settings import BrokerSettings
from penstock.model.errors import ErrorCode, error_of
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import TopicPartition

if TYPE_CHECKING:
    from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

# What goes over the wire is imported with the first question to another broker: a node that is alone never needs it.

# Longer than a coordinator may take to find that a transaction must be asked for again: one slow partition of the
# transaction state must not cost all the others in the request their answer, and the connection.
_WAY_MS = 2_000.0
_TIMEOUT_MS = LOAD_WAIT_SECONDS * 1000 + COMMIT_TIMEOUT_MS + _WAY_MS
TRANSACTIONS_CHANNEL = "transactions"


class LocalCoordinator(Protocol):
    """The coordinator on this broker."""

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode: ...

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode: ...


class _Claim(NamedTuple):
    """Who asks. `verify_only`: the partitions must be part of the transaction already."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


class _Asked(Question):
    __slots__ = ("claim", "partitions")

    def __init__(
        self, claim: _Claim, partitions: Sequence[TopicPartition], told: Callable[[ErrorCode], None]
    ) -> None:
        super().__init__(claim, told)
        self.claim = claim
        self.partitions = partitions


class TransactionRoutes:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        settings: Callable[[], BrokerSettings],
        local: LocalCoordinator,
        ask: AskBroker,
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._settings = settings
        self._local = local
        self._ask = ask
        self._batches = PeerBatches(self._carry)

    def on_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Who waits for a coordinator that has been replaced is told so; its client comes again."""
        if delta.topic_changes or delta.deleted_topics:
            self._batches.recall(
                lambda broker_id, asked: _coordinator(image, asked.claim.transactional_id) == broker_id,
                ErrorCode.NOT_COORDINATOR,
            )

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Whether all these partitions are part of the open transaction; INVALID_TXN_STATE when one is not."""
        coordinator = _coordinator(self._image(), transactional_id)
        if coordinator == self._node_id:
            return await self._local.verify_partitions(transactional_id, producer_id, producer_epoch, partitions)
        if not self._settings().transaction_partition_verification_enable:
            return ErrorCode.NONE
        claim = _Claim(transactional_id, producer_id, producer_epoch, verify_only=True)
        error = await self._ask_remote(coordinator, claim, partitions)
        return ErrorCode.INVALID_TXN_STATE if error is ErrorCode.TRANSACTION_ABORTABLE else error

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Makes the partitions part of the transaction, for a producer of transaction version 2."""
        claim = _Claim(transactional_id, producer_id, producer_epoch, verify_only=False)
        settings = self._settings()
        pause = settings.add_partitions_to_txn_retry_backoff_ms / 1000
        left = settings.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            coordinator = _coordinator(self._image(), transactional_id)
            if coordinator == self._node_id:
                return await self._local.add_partitions(transactional_id, producer_id, producer_epoch, partitions)
            error = await self._ask_remote(coordinator, claim, partitions)
            if error is not ErrorCode.CONCURRENT_TRANSACTIONS or left < pause:
                return error
            left -= pause
            await asyncio.sleep(pause)

    async def _ask_remote(self, coordinator: int, claim: _Claim, partitions: Sequence[TopicPartition]) -> ErrorCode:
        if coordinator == NO_LEADER:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def told(error: ErrorCode) -> None:
            if not answer.done():  # cancelled with its connection
                answer.set_result(error)

        self._batches.put(coordinator, _Asked(claim, partitions, told))
        return await answer

    async def _carry(self, broker_id: int, questions: Sequence[_Asked]) -> None:
        from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnResponse

        try:
            response = await self._ask(
                broker_id, _request(questions), AddPartitionsToTxnResponse, _TIMEOUT_MS, channel=TRANSACTIONS_CHANNEL
            )
        except PeerUnreachable:
            for asked in questions:
                asked.tell(ErrorCode.NETWORK_EXCEPTION)
            return
        outcome = _outcome(response)
        refused = error_of(response.error_code) or ErrorCode.NETWORK_EXCEPTION
        for asked in questions:
            errors = [
                error_of(outcome.get((asked.claim.transactional_id, *where), refused)) for where in asked.partitions
            ]
            asked.tell(next((error for error in errors if error), ErrorCode.NONE))


def _coordinator(image: MetadataImage, transactional_id: str) -> int:
    topic = image.topic(TRANSACTION_TOPIC)
    if topic is None or not topic.partitions:
        return NO_LEADER
    return topic.partitions[coordinator_partition(transactional_id, len(topic.partitions))].leader


def _request(questions: Sequence[_Asked]) -> "AddPartitionsToTxnRequest":
    from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest

    topic_of = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    topics: dict[_Claim, dict[str, list[int]]] = defaultdict(dict)
    for asked in questions:
        named = topics[asked.claim]
        for topic, index in asked.partitions:
            indexes = named.setdefault(topic, [])
            if index not in indexes:
                indexes.append(index)
    return AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                *claim, topics=[topic_of(*topic) for topic in named.items()]
            )
            for claim, named in topics.items()
        ]
    )


def _outcome(response: "AddPartitionsToTxnResponse") -> dict[tuple[str, str, int], int]:
    return {
        (result.transactional_id, topic.name, partition.partition_index): partition.partition_error_code
        for result in response.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
