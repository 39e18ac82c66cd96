"""Elections: asking for votes, giving them, counting them; learning of a leader's beginning and end.

Hard rules: one vote per epoch, on stable storage before the answer leaves (R3: the bundle's order sees to it); only
for a log at least as fresh as ours (R4); a pre-vote gives nothing away and is refused to who has a leader (R15).
"""

from typing import TYPE_CHECKING, Any

from penstock.model.errors import ErrorCode
from penstock.quorum.election_state import NOBODY, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochResponse,
    VoteRequest,
    VoteResponse,
    is_addressed_to,
)
from penstock.quorum.roles import Candidate, Follower, Prospective, Resigned, Unattached

if TYPE_CHECKING:
    from penstock.quorum.core import Quorum


# --- giving -------------------------------------------------------------------------------------------------------


def answer_vote(quorum: "Quorum", request: VoteRequest, token: Any, now_ms: float) -> None:
    error = ErrorCode.NONE
    granted = False
    if not is_addressed_to(request.voter, quorum.local):
        error = ErrorCode.INVALID_VOTER_KEY
    elif request.epoch < quorum.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    else:
        if request.epoch > quorum.epoch:
            quorum.become_unattached(request.epoch, now_ms)
        granted = _would_grant(quorum, request, now_ms) if request.pre_vote else _grants(quorum, request, now_ms)
    # Who grants a vote does not send the asker back to a leader that both have lost.
    quorum.reply(token, VoteResponse(quorum.epoch, NOBODY if granted else quorum.leader_id, error, granted))


def _would_grant(quorum: "Quorum", request: VoteRequest, now_ms: float) -> bool:
    role = quorum.role
    if isinstance(role, Leader) or (isinstance(role, Follower) and role.is_sure_of_leader(now_ms)):
        return False
    return is_fresh(quorum, request)


def _grants(quorum: "Quorum", request: VoteRequest, now_ms: float) -> bool:
    election = quorum.election
    if election.leader_id != NOBODY:
        return False
    if election.voted is not None:
        return election.voted == request.candidate
    if not is_fresh(quorum, request):
        return False
    quorum.election = election._replace(voted=request.candidate)
    if isinstance(quorum.role, Prospective):
        quorum.become_unattached(quorum.epoch, now_ms)
    if isinstance(quorum.role, Unattached):
        quorum.role.deadline_ms = now_ms + quorum.election_wait_ms()  # gives the candidate time
    return True


def is_fresh(quorum: "Quorum", request: VoteRequest) -> bool:
    """Whether the candidate has everything that could be committed here (R4)."""
    return (request.last_epoch, request.end_offset) >= (quorum.log.last_epoch, quorum.log.end_offset)


# --- asking and counting --------------------------------------------------------------------------------------------


def ask(quorum: "Quorum", *, pre_vote: bool) -> None:
    log = quorum.log
    for voter in quorum.voters.by_id.values():
        if voter.key.id != quorum.local.id:
            quorum.request(
                voter.key.id,
                VoteRequest(quorum.epoch, quorum.local, voter.key, log.last_epoch, log.end_offset, pre_vote),
            )


def count_vote(quorum: "Quorum", sender: int, response: VoteResponse, now_ms: float) -> None:
    """An answer in our epoch; a leader that it named has been followed already."""
    role = quorum.role
    if not isinstance(role, Prospective | Candidate):
        return
    voter = quorum.voters.by_id.get(sender)
    if response.granted and voter is not None:
        count_grant(quorum, role, voter.key, now_ms)
    else:
        count_rejection(quorum, role, sender, now_ms)


def count_grant(quorum: "Quorum", role: Prospective | Candidate, voter: ReplicaKey, now_ms: float) -> None:
    role.grant(voter)
    if not role.is_elected(quorum.voters):
        return
    if isinstance(role, Prospective):
        quorum.become_candidate(now_ms)
    else:
        quorum.become_leader(role, now_ms)


def count_rejection(quorum: "Quorum", role: Prospective | Candidate, voter_id: int, now_ms: float) -> None:
    """With a majority out of reach there is no use in waiting for the deadline."""
    role.rejected.add(voter_id)
    if role.is_lost(quorum.voters):
        role.deadline_ms = min(role.deadline_ms, now_ms + _lost_wait_ms(quorum))


def _lost_wait_ms(quorum: "Quorum") -> float:
    wait_ms = quorum.timeouts.election_timeout_ms
    return wait_ms / 5 + quorum.rng.uniform(0, wait_ms * 4 / 5)


# --- the leader's beginning and end ---------------------------------------------------------------------------------


def answer_begin_epoch(quorum: "Quorum", request: BeginEpochRequest, token: Any, now_ms: float) -> None:
    error = ErrorCode.NONE
    if not is_addressed_to(request.voter, quorum.local):
        error = ErrorCode.INVALID_VOTER_KEY
    elif not quorum.observe(request.epoch, request.leader_id, now_ms):
        error = ErrorCode.FENCED_LEADER_EPOCH
    quorum.reply(token, EpochResponse(quorum.epoch, quorum.leader_id, error))


def answer_end_epoch(quorum: "Quorum", request: EndEpochRequest, token: Any, now_ms: float) -> None:
    """The leader has gone. Those it prefers stand first; the others give them a moment."""
    if not quorum.observe(request.epoch, request.leader_id, now_ms):
        error = ErrorCode.FENCED_LEADER_EPOCH
    else:
        error = ErrorCode.NONE
        role = quorum.role
        if isinstance(role, Follower) and role.leader_id == request.leader_id:
            ids = [key.id for key in request.preferred]
            place = ids.index(quorum.local.id) if quorum.local.id in ids else len(ids)
            role.stand_at_ms = now_ms + place * quorum.timeouts.election_timeout_ms / 5
        elif isinstance(role, Resigned):
            error = ErrorCode.BROKER_NOT_AVAILABLE
    quorum.reply(token, EpochResponse(quorum.epoch, quorum.leader_id, error))
