"""ListGroups (key 16), versions 0–5: groups coordinated here. v4: by state (KIP-518). v5: by type (KIP-848).

Whoever may describe the cluster sees all groups, others those they may describe.
"""

from typing import TYPE_CHECKING

from penstock.security.verdicts import Operation
from penstock.wire.generated.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: "Broker", context: "RequestContext", request: ListGroupsRequest) -> ListGroupsResponse:
    error, groups = await broker.groups.list_groups(request.states_filter, request.types_filter)
    gate = broker.gate
    if not gate.allows_cluster(context, Operation.DESCRIBE):
        groups = [group for group in groups if gate.allows_group(context, Operation.DESCRIBE, group.group_id)]
    return ListGroupsResponse(error_code=error, groups=groups)
