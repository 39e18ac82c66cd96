"""AddPartitionsToTxn (key 24), versions 0–5.

v0–3 come from producers of transaction version 1: one transaction, all of its partitions or none. v4–5 come from
brokers, for producers of version 2 (KIP-890): several transactions at a time, and `verify_only` asks whether the
partitions are part of the transaction. v5: TRANSACTION_ABORTABLE where it was INVALID_TXN_STATE.
"""

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.turns import in_turns
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.security.verdicts import Operation
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
Result = AddPartitionsToTxnResponse.AddPartitionsToTxnResult
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult

_BATCHED_FROM = 4
_ABORTABLE_FROM = 5


async def handle(
    broker: "Broker", context: "RequestContext", request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    if context.api_version < _BATCHED_FROM:
        return await _add_for_client(broker, context, request)
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    under_way = [
        asyncio.ensure_future(_for_broker(broker, context, each))
        async for each in in_turns(request.transactions, lambda each: each.transactional_id)
    ]
    outcomes = await asyncio.gather(*under_way)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            Result(each.transactional_id, _results(each.topics, outcome))
            for each, outcome in zip(request.transactions, outcomes, strict=True)
        ]
    )


async def _add_for_client(
    broker: "Broker", context: "RequestContext", request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    transactional_id = request.v3_and_below_transactional_id
    topics = request.v3_and_below_topics
    partitions = _partitions(topics)
    if not broker.gate.allows_transaction(context, transactional_id):
        errors = dict.fromkeys(partitions, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    else:
        errors = {each: _check(broker, context, each) for each in partitions}
        if any(errors.values()):
            # All or none: what is right with the others is not done either.
            errors = {each: error or ErrorCode.OPERATION_NOT_ATTEMPTED for each, error in errors.items()}
        else:
            error = await broker.transactions.add_partitions(
                transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                partitions,
                context.api_version,
                context.connection_number,
            )
            errors = dict.fromkeys(partitions, error)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, errors))


def _check(broker: "Broker", context: "RequestContext", partition: TopicPartition) -> ErrorCode:
    if not broker.gate.allows_topic(context, Operation.WRITE, partition.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    known = broker.image.partition(*partition) is not None
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def _for_broker(
    broker: "Broker", context: "RequestContext", asked: Transaction
) -> dict[TopicPartition, ErrorCode]:
    """The other broker has authorised its client and found the partitions.

    What this broker does not know yet is not added all the same: what a coordinator knows and its image does not
    counts as deleted, and gets no marker.
    """
    partitions = _partitions(asked.topics)
    producer = (asked.producer_id, asked.producer_epoch)
    if not asked.verify_only:
        if any(broker.image.partition(*each) is None for each in partitions):
            return dict.fromkeys(partitions, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = await broker.transactions.add_partitions(
            asked.transactional_id, *producer, partitions, context.api_version, patient=False
        )
        return dict.fromkeys(partitions, error)
    verdicts = await broker.transactions.verify_each(asked.transactional_id, *producer, partitions)
    if context.api_version < _ABORTABLE_FROM:
        renamed = {ErrorCode.TRANSACTION_ABORTABLE: ErrorCode.INVALID_TXN_STATE}
        return {each: renamed.get(error, error) for each, error in verdicts.items()}
    return verdicts


def _partitions(topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _results(
    topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic], errors: dict[TopicPartition, ErrorCode]
) -> list[TopicResult]:
    return [
        TopicResult(
            topic.name,
            [PartitionResult(index, errors[TopicPartition(topic.name, index)]) for index in topic.partitions],
        )
        for topic in topics
    ]
