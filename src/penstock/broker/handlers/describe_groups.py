"""DescribeGroups (key 15), versions 0–6: classic groups.

A group that does not exist is answered as Dead without an error, from v6 with GROUP_ID_NOT_FOUND (KIP-1043).
v3: authorised operations (KIP-430). v4: instance ids (KIP-345).
"""

from typing import TYPE_CHECKING

from penstock.broker.turns import in_turns
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation, ResourceType
from penstock.wire.generated.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

DescribedGroup = DescribeGroupsResponse.DescribedGroup


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    groups = [
        await _describe(broker, context, group_id, request.include_authorized_operations)
        async for group_id in in_turns(request.groups, str)
    ]
    return DescribeGroupsResponse(groups=groups)


async def _describe(
    broker: "Broker", context: "RequestContext", group_id: str, with_operations: bool
) -> DescribedGroup:
    if not broker.gate.allows_group(context, Operation.DESCRIBE, group_id):
        return DescribedGroup(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, group_id=group_id)
    answer = await broker.groups.describe_group(group_id, context.api_version)
    if isinstance(answer, ErrorCode):
        return DescribedGroup(error_code=answer, group_id=group_id)
    if with_operations and answer.error_code == ErrorCode.NONE:
        answer.authorized_operations = broker.gate.authorized_operations(context, ResourceType.GROUP, group_id)
    return answer
