"""SyncGroup (key 14), versions 0–5. v3: static members (KIP-345). v5: protocol type and name checked (KIP-559)."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROTOCOL_FROM = 5


async def handle(broker: "Broker", context: "RequestContext", request: SyncGroupRequest) -> SyncGroupResponse:
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return SyncGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if context.api_version >= _PROTOCOL_FROM and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    answer = await broker.groups.sync_group(request)
    return SyncGroupResponse(error_code=answer) if isinstance(answer, ErrorCode) else answer
