"""ControllerRegistration (key 70), version 0, controller listeners: where a controller listens (KIP-919)."""

from typing import TYPE_CHECKING

from penstock.controller.controllers import decide_register_controller
from penstock.metadata.image import ControllerImage
from penstock.metadata.listeners import SECURITY_PROTOCOLS, Listener
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROTOCOLS = {code: name for name, code in SECURITY_PROTOCOLS.items()}


async def handle(
    broker: "Broker", context: "RequestContext", request: ControllerRegistrationRequest
) -> ControllerRegistrationResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return ControllerRegistrationResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if any(listener.security_protocol not in _PROTOCOLS for listener in request.listeners):
        return ControllerRegistrationResponse(error_code=ErrorCode.INVALID_REQUEST)
    controller = ControllerImage(
        request.controller_id,
        request.incarnation_id,
        tuple(Listener(at.name, at.host, at.port, _PROTOCOLS[at.security_protocol]) for at in request.listeners),
        tuple((f.name, f.min_supported_version, f.max_supported_version) for f in request.features),
    )
    refusal: Refusal | None = await broker.controller.submit(
        lambda view: decide_register_controller(view.image, controller), unavailable=lambda refusal: refusal
    )
    if refusal is not None:
        return ControllerRegistrationResponse(error_code=refusal.code, error_message=refusal.message)
    return ControllerRegistrationResponse(error_message=None)
