"""Heartbeat (key 12), versions 0–4. v3: static members (KIP-345)."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: "Broker", context: "RequestContext", request: HeartbeatRequest) -> HeartbeatResponse:
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return HeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return HeartbeatResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    return HeartbeatResponse(error_code=broker.groups.heartbeat(request))
