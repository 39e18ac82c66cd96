"""UnregisterBroker (key 64), version 0: removes a broker for good.

Replicas that it still holds stay named and count as dead; drain it first.
"""

from typing import TYPE_CHECKING

from penstock.controller.brokers import decide_unregister_broker
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return UnregisterBrokerResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    refusal: Refusal | None = await broker.controller.submit(
        lambda view: decide_unregister_broker(view, request.broker_id, broker.settings),
        unavailable=lambda refusal: refusal,
    )
    if refusal is not None:
        return UnregisterBrokerResponse(error_code=refusal.code, error_message=refusal.message)
    return UnregisterBrokerResponse(error_message=None)
