"""AllocateProducerIds (key 67), version 0, controller listeners: a block of producer ids for one broker."""

from typing import TYPE_CHECKING

from penstock.controller.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.allocate_producer_ids import AllocateProducerIdsRequest, AllocateProducerIdsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return AllocateProducerIdsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    block: ProducerIdBlock | Refusal = await broker.controller.submit(
        lambda view: decide_allocate_producer_ids(view.image, request.broker_id, request.broker_epoch),
        unavailable=lambda refusal: refusal,
    )
    if isinstance(block, Refusal):
        return AllocateProducerIdsResponse(error_code=block.code)
    return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=block.end - block.first)
