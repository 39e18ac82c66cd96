"""UpdateRaftVoter (key 82), version 0, controller listeners: a voter tells the leader its new addresses (KIP-853)."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Endpoint
from penstock.security.verdicts import Operation
from penstock.wire.generated.update_raft_voter import UpdateRaftVoterRequest, UpdateRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_TIMEOUT_MS = 2_000  # the request has none


async def handle(
    broker: "Broker", context: "RequestContext", request: UpdateRaftVoterRequest
) -> UpdateRaftVoterResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return UpdateRaftVoterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None or quorum.leader is None:
        return UpdateRaftVoterResponse(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if request.cluster_id not in (None, broker.cluster_id):
        return UpdateRaftVoterResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    if request.current_leader_epoch != quorum.core.epoch:
        older = request.current_leader_epoch < quorum.core.epoch
        code = ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        return UpdateRaftVoterResponse(error_code=code)
    endpoints = tuple(Endpoint(each.name, each.host, each.port) for each in request.listeners)
    key = ReplicaKey(request.voter_id, request.voter_directory_id)
    refusal = await quorum.update_voter(key, endpoints, _TIMEOUT_MS)
    return UpdateRaftVoterResponse(error_code=refusal.code if refusal is not None else ErrorCode.NONE)
