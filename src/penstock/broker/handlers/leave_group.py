"""LeaveGroup (key 13), versions 0–5.

v3: several members at once, also by instance id, with an answer for each (KIP-345). v5: the reason, which is not
kept (KIP-800).
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_MANY_MEMBERS_FROM = 3


async def handle(broker: "Broker", context: "RequestContext", request: LeaveGroupRequest) -> LeaveGroupResponse:
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    if context.api_version < _MANY_MEMBERS_FROM:
        request.members = [LeaveGroupRequest.MemberIdentity(member_id=request.member_id)]
    answer = await broker.groups.leave_group(request)
    if isinstance(answer, ErrorCode):
        return LeaveGroupResponse(error_code=answer)
    if context.api_version < _MANY_MEMBERS_FROM:
        return LeaveGroupResponse(error_code=answer.members[0].error_code)
    return answer
