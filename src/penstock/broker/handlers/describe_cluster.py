"""DescribeCluster (key 60), versions 0–2. v1: endpoint type (KIP-919). v2: fenced brokers (KIP-1073).

A broker answers for brokers; a client that wants controllers (type 2) is told that it asks the wrong endpoint.
"""

from typing import TYPE_CHECKING

from penstock.broker.addresses import endpoint_of
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import CLUSTER_NAME, ResourceType
from penstock.wire.generated.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_BROKERS, _CONTROLLERS = 1, 2


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeClusterRequest
) -> DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        return DescribeClusterResponse(
            error_code=code, error_message=code.message, endpoint_type=_BROKERS, cluster_id=broker.cluster_id
        )
    response = DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=_brokers(broker, context, request.include_fenced_brokers),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = broker.gate.authorized_operations(
            context, ResourceType.CLUSTER, CLUSTER_NAME
        )
    return response


def _brokers(
    broker: "Broker", context: "RequestContext", include_fenced: bool
) -> list[DescribeClusterResponse.DescribeClusterBroker]:
    rows = []
    for which in sorted(broker.image.brokers.values()):
        endpoint = endpoint_of(broker, context, which)
        if endpoint is not None and (include_fenced or not which.fenced):
            rows.append(
                DescribeClusterResponse.DescribeClusterBroker(
                    which.id, endpoint.host, endpoint.port, which.rack, which.fenced
                )
            )
    return rows
