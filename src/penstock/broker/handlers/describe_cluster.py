"""DescribeCluster (key 60), versions 0–2. v1: endpoint type (KIP-919). v2: fenced brokers (KIP-1073).

Brokers on the listeners of clients, controllers on those of the controller; whoever asks for the others is told that
it asks the wrong endpoint. A client's controller is a broker: each forwards what is for the controller. Unclean
elections are told in a tagged field of our own, which is there only when there were some.
"""

from typing import TYPE_CHECKING

from penstock.broker.addresses import controller_for, endpoint_of, reachable_brokers
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import CLUSTER_NAME, ResourceType
from penstock.wire.generated.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Row = DescribeClusterResponse.DescribeClusterBroker
_BROKERS, _CONTROLLERS = 1, 2


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeClusterRequest
) -> DescribeClusterResponse:
    served = _CONTROLLERS if context.listener_name in broker.router.controller_listeners else _BROKERS
    if request.endpoint_type != served:
        known = request.endpoint_type in (_BROKERS, _CONTROLLERS)
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        told = served if context.api_version > 0 else _BROKERS  # which v0 means, and has no room for
        return DescribeClusterResponse(
            error_code=code, error_message=code.message, endpoint_type=told, cluster_id=broker.cluster_id
        )
    response = DescribeClusterResponse(endpoint_type=served, cluster_id=broker.cluster_id)
    response.unclean_elections = broker.controller_clock.counters.unclean_elections
    if served == _BROKERS:
        response.controller_id = controller_for(broker, reachable_brokers(broker, context))
        response.brokers = _brokers(broker, context, request.include_fenced_brokers)
    else:
        response.controller_id = -1 if broker.driver.leader_id is None else broker.driver.leader_id
        response.brokers = _controllers(broker, context)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = broker.gate.authorized_operations(
            context, ResourceType.CLUSTER, CLUSTER_NAME
        )
    return response


def _brokers(broker: "Broker", context: "RequestContext", include_fenced: bool) -> list[Row]:
    rows = []
    for which in sorted(broker.image.brokers.values()):
        endpoint = endpoint_of(broker, context, which)
        if endpoint is not None and (include_fenced or not which.fenced):
            rows.append(Row(which.id, endpoint.host, endpoint.port, which.rack, which.fenced))
    return rows


def _controllers(broker: "Broker", context: "RequestContext") -> list[Row]:
    rows = []
    for controller in sorted(broker.image.controllers.values()):
        listeners = {listener.name: listener for listener in controller.listeners}
        listener = listeners.get(context.listener_name)
        if listener is not None:
            rows.append(Row(controller.id, listener.host, listener.port))
    return rows
