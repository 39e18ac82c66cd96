"""InitProducerId (key 22), versions 0–5, for idempotent producers.

An id that the producer already has is not continued: as in Kafka, a producer without transactional id always gets a
new one. A transactional id is refused: transactions are not served by this release.
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
        return _refused(ErrorCode.INVALID_REQUEST)
    if not broker.gate.allows_cluster(context, Operation.IDEMPOTENT_WRITE):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    producer_id = await broker.controller.next_producer_id()
    if isinstance(producer_id, Refusal):
        return _refused(producer_id.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refused(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
