"""AddRaftVoter (key 80), versions 0–1: an observer becomes a voter (KIP-853). v1: AckWhenCommitted.

The node must follow the metadata log already: until it has caught up the answer waits, as long as the timeout allows.
Somebody must listen at its address, too: a voter that cannot be asked for its vote would make the quorum weaker.
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Endpoint
from penstock.security.verdicts import Operation
from penstock.wire.generated.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PROBE_MS = 2_000


async def handle(broker: "Broker", context: "RequestContext", request: AddRaftVoterRequest) -> AddRaftVoterResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return AddRaftVoterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None or quorum.leader is None:
        return AddRaftVoterResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if request.cluster_id not in (None, broker.cluster_id):
        return AddRaftVoterResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    endpoints = tuple(Endpoint(each.name, each.host, each.port) for each in request.listeners)
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    if not await _can_be_reached(broker, endpoints, request.timeout_ms):
        where = ", ".join(f"{each.host}:{each.port}" for each in endpoints) or "no address at all"
        message = (
            f"nobody listens at the address given for node {key.id} ({where}); give that of its controller listener"
        )
        return AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message)
    refusal = await quorum.add_voter(key, endpoints, request.timeout_ms, until_committed=request.ack_when_committed)
    if refusal is None:
        return AddRaftVoterResponse()
    return AddRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)


async def _can_be_reached(broker: "Broker", endpoints: tuple[Endpoint, ...], timeout_ms: int) -> bool:
    for each in endpoints:
        if await broker.peers.probe((each.host, each.port), min(timeout_ms, _PROBE_MS)) == "listens":
            return True
    return False
