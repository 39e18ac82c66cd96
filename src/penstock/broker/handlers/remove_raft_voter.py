"""RemoveRaftVoter (key 81), version 0: a voter becomes an observer, or is forgotten when it is gone (KIP-853)."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.quorum.election_state import ReplicaKey
from penstock.security.verdicts import Operation
from penstock.wire.generated.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_TIMEOUT_MS = 5_000  # the request has none


async def handle(
    broker: "Broker", context: "RequestContext", request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return RemoveRaftVoterResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    quorum = broker.driver.quorum
    if quorum is None or quorum.leader is None:
        return RemoveRaftVoterResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if request.cluster_id not in (None, broker.cluster_id):
        return RemoveRaftVoterResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    refusal = await quorum.remove_voter(ReplicaKey(request.voter_id, request.voter_directory_id), _TIMEOUT_MS)
    if refusal is None:
        return RemoveRaftVoterResponse()
    return RemoveRaftVoterResponse(error_code=refusal.code, error_message=refusal.message)
