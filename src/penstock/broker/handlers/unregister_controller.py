"""UnregisterController (key 94), version 0: forgets where a controller listened that is there no more."""

from typing import TYPE_CHECKING

from penstock.controller.controllers import decide_unregister_controller
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.unregister_controller import UnregisterControllerRequest, UnregisterControllerResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: UnregisterControllerRequest
) -> UnregisterControllerResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return UnregisterControllerResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    refusal: Refusal | None = await broker.controller.submit(
        lambda view: decide_unregister_controller(view.image, request.controller_id),
        unavailable=lambda refusal: refusal,
    )
    if refusal is not None:
        return UnregisterControllerResponse(error_code=refusal.code, error_message=refusal.message)
    return UnregisterControllerResponse(error_message=None)
