"""Transactional records may enter a partition only if the coordinator knows that they do. (KIP-890)

Without that, a batch that arrives late, after its transaction has ended, would open a transaction that nobody ever
ends, and readers would hang on it. So the first batch of a transaction in a partition waits for the coordinator;
those that follow find the transaction open here and need not ask.
"""

import struct
from typing import Protocol

from penstock.broker.context import RequestContext
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.replication.partition import Partition
from penstock.replication.verification import Question
from penstock.wire.produce_fast import PartitionRecords, TopicKey

Topics = list[tuple[TopicKey, list[PartitionRecords]]]
# What the coordinator said of each partition, and the question it was asked, by place in the request.
Prepared = dict[int, tuple[ErrorCode, Question | None]]

_NEVER_ASKED = (ErrorCode.NONE, None)

_TRANSACTIONAL_BIT = 0x10
_ATTRIBUTES_LOW_BYTE = 22
_PRODUCER = struct.Struct(">qh")
_PRODUCER_POSITION = 43
_HEADER_BYTES = 61
_IMPLICIT_ADD_FROM = 12
_ABORTABLE_FROM = 11

# The client cannot tell a coordinator's troubles from the partition's: it is to retry, as Kafka makes it.
_RETRY = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Transactions(Protocol):
    """What is asked of the transaction coordinator."""

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition]
    ) -> ErrorCode: ...

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: list[TopicPartition]
    ) -> ErrorCode: ...


def is_transactional(records: memoryview) -> bool:
    return len(records) >= _HEADER_BYTES and records[_ATTRIBUTES_LOW_BYTE] & _TRANSACTIONAL_BIT != 0


def _producer(records: memoryview) -> tuple[int, int]:
    producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
    return producer_id, epoch


def _asking(topics: Topics, found: list[Partition | Refusal]) -> list[tuple[int, Partition, tuple[int, int]]]:
    """Place, partition and producer of every batch that opens a transaction in its partition."""
    asking = []
    records = [part[1] for _, parts in topics for part in parts]
    for place, (partition, batch) in enumerate(zip(found, records, strict=True)):
        if isinstance(partition, Partition) and batch is not None and is_transactional(batch):
            producer = _producer(batch)
            if not partition.has_open_transaction(*producer):
                asking.append((place, partition, producer))
    return asking


def unverified(topics: Topics, found: list[Partition | Refusal]) -> bool:
    return bool(_asking(topics, found))


async def verify(
    transactions: Transactions,
    context: RequestContext,
    transactional_id: str,
    topics: Topics,
    found: list[Partition | Refusal],
) -> Prepared:
    """Asks the coordinator once for all partitions of the request that need it."""
    asking = _asking(topics, found)
    verdicts: Prepared = {}
    for producer in {producer for _, _, producer in asking}:
        mine = [(place, partition) for place, partition, other in asking if other == producer]
        questions = [partition.begin_verification(producer[0]) for _, partition in mine]
        ask = (
            transactions.add_partitions
            if context.api_version >= _IMPLICIT_ADD_FROM
            else transactions.verify_partitions
        )
        wanted = [TopicPartition(partition.topic, partition.index) for _, partition in mine]
        verdict = _for_producer(await ask(transactional_id, *producer, wanted), context.api_version)
        verdicts.update((place, (verdict, each)) for (place, _), each in zip(mine, questions, strict=True))
    return verdicts


def settle(topics: Topics, found: list[Partition | Refusal], prepared: Prepared) -> list[Partition | Refusal]:
    """The partitions that may be appended to; the others with the reason.

    An answer that came too late counts for nothing: the client sends its batch again, and the question is asked
    again. Whether the transaction is over or has only changed its leader, the next answer tells.
    """
    settled = list(found)
    for place, partition, (producer_id, _) in _asking(topics, found):
        verdict, question = prepared.get(place, _NEVER_ASKED)
        in_time = partition.is_verified(producer_id, question)
        if verdict is ErrorCode.NONE and not in_time:
            verdict = ErrorCode.NOT_ENOUGH_REPLICAS
        if verdict is not ErrorCode.NONE:
            settled[place] = Refusal(verdict, verdict.message)
    return settled


def _for_producer(error: ErrorCode, api_version: int) -> ErrorCode:
    if error in _RETRY or (error is ErrorCode.CONCURRENT_TRANSACTIONS and api_version < _IMPLICIT_ADD_FROM):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.INVALID_TXN_STATE and api_version >= _ABORTABLE_FROM:
        return ErrorCode.TRANSACTION_ABORTABLE
    return error
