"""JoinGroup (key 11), versions 0–9.

v1: a rebalance timeout of its own (KIP-62). v4: a member gets its id first and joins with it (KIP-394). v5: static
members (KIP-345). v7: the protocol type is answered (KIP-559). v8: the reason, which is not kept (KIP-800). v9: a
returning static leader is told to skip the assignment (KIP-814).
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROTOCOL_TYPE_FROM = 7


async def handle(broker: "Broker", context: "RequestContext", request: JoinGroupRequest) -> JoinGroupResponse:
    answer: JoinGroupResponse | ErrorCode
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        answer = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif not request.group_id:
        answer = ErrorCode.INVALID_GROUP_ID
    else:
        # Kafka writes the host as Java prints an address; its tools show it as it is.
        host = f"/{context.client_host}"
        answer = await broker.groups.join_group(request, context.client_id or "", host, context.api_version)
    if isinstance(answer, ErrorCode):
        nothing = None if context.api_version >= _PROTOCOL_TYPE_FROM else ""
        return JoinGroupResponse(error_code=answer, protocol_name=nothing, member_id=request.member_id)
    return answer
