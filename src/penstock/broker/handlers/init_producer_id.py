"""InitProducerId (key 22), versions 0–6: v3 goes on after an error (KIP-360), v4 PRODUCER_FENCED, v6 two-phase commit
(KIP-939).

Without a transactional id a producer always gets a new id, as in Kafka. With one the transaction coordinator answers.
Version 6 is not advertised, because Kafka holds it unstable: who knows of it may use it.
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return await _transactional(broker, context, request, request.transactional_id)
    if not broker.gate.allows_cluster(context, Operation.IDEMPOTENT_WRITE):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    producer_id = await broker.producer_ids.next_producer_id()
    if isinstance(producer_id, Refusal):
        return _refused(producer_id.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _transactional(
    broker: "Broker", context: "RequestContext", request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    if not broker.gate.allows_transaction(context, transactional_id):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    answer = await broker.transactions.init_producer_id(request, context.api_version)
    return _refused(answer) if isinstance(answer, ErrorCode) else answer


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
