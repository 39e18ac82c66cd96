"""Vote (key 52), versions 0–2, controller listeners. v1: voters by directory (KIP-853). v2: pre-vote (KIP-996)."""

from typing import TYPE_CHECKING

from penstock.broker.quorum_wire import in_version
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.vote import VoteRequest, VoteResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: "Broker", context: "RequestContext", request: VoteRequest) -> VoteResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return VoteResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None:
        return VoteResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    return in_version(await quorum.vote(request), context.api_version)
