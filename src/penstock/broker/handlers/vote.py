"""Vote (key 52), versions 0–2, controller listeners. v1: voters by directory (KIP-853). v2: pre-vote (KIP-996)."""

from typing import TYPE_CHECKING

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
    return await quorum.vote(request) if quorum else VoteResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
