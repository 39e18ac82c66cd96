"""DeleteGroups (key 42), versions 0–3: empty groups, with their offsets. v3: a message with the error (KIP-1043)."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Result = DeleteGroupsResponse.DeletableGroupResult


async def handle(broker: "Broker", context: "RequestContext", request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    allowed = [name for name in names if broker.gate.allows_group(context, Operation.DELETE, name)]
    results = await broker.groups.delete_groups(allowed)
    forbidden = set(names).difference(allowed)
    results += [Result(name, ErrorCode.GROUP_AUTHORIZATION_FAILED) for name in names if name in forbidden]
    for result in results:
        if result.error_code != ErrorCode.NONE:
            result.error_message = ErrorCode(result.error_code).message
    return DeleteGroupsResponse(results=results)
