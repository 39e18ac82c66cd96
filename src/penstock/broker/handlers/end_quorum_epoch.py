"""EndQuorumEpoch (key 54), versions 0–1, controller listeners: a leader goes, naming successors. v1: KIP-853."""

from typing import TYPE_CHECKING

from penstock.broker.quorum_wire import in_version
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.end_quorum_epoch import EndQuorumEpochRequest, EndQuorumEpochResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(
    broker: "Broker", context: "RequestContext", request: EndQuorumEpochRequest
) -> EndQuorumEpochResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return EndQuorumEpochResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None:
        return EndQuorumEpochResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    return in_version(await quorum.end_epoch(request), context.api_version)
