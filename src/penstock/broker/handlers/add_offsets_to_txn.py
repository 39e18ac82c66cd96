"""AddOffsetsToTxn (key 25), versions 0–4: v2 PRODUCER_FENCED (KIP-588), v4 TRANSACTION_ABORTABLE (KIP-890).

Adds the partition that holds the group's offsets to the transaction. Producers of transaction version 2 leave it to
TxnOffsetCommit.
"""

from typing import TYPE_CHECKING

from penstock.broker.topic_creation import ensure_internal_topic
from penstock.metadata.image import OFFSETS_TOPIC
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import TopicPartition
from penstock.security.verdicts import Operation
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=await _add(broker, context, request))


async def _add(broker: "Broker", context: "RequestContext", request: AddOffsetsToTxnRequest) -> ErrorCode:
    if not broker.gate.allows_transaction(context, request.transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    topic = await ensure_internal_topic(broker, OFFSETS_TOPIC)
    if isinstance(topic, Refusal):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    index = coordinator_partition(request.group_id, len(topic.partitions))
    return await broker.transactions.add_offsets(
        request, TopicPartition(OFFSETS_TOPIC, index), context.api_version, context.connection_number
    )
