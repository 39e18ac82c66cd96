"""FetchSnapshot (key 59), versions 0–1, controller listeners: the leader's snapshot, piece by piece (KIP-630)."""

from typing import TYPE_CHECKING

from penstock.broker.quorum_wire import in_version
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.fetch_snapshot import FetchSnapshotRequest, FetchSnapshotResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext


async def handle(broker: "Broker", context: "RequestContext", request: FetchSnapshotRequest) -> FetchSnapshotResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return FetchSnapshotResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None:
        return FetchSnapshotResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
    return in_version(await quorum.fetch_snapshot(request), context.api_version)
