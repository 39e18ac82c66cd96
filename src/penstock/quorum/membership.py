"""Changes of the voter set (KIP-853): one at a time, and only by a leader that has committed in its own epoch.

Both rules keep the majorities of the old and the new set overlapping (R12). A new voter must have caught up as an
observer first, so that adding it does not stop commits; a removed leader leads on, not counting itself, until the
removal is committed.
"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.voters import Voter, VoterSet

if TYPE_CHECKING:
    from penstock.quorum.core import Quorum


def add_voter(quorum: "Quorum", voter: Voter, now_ms: float) -> Refusal | None:
    role = _leader_that_may_change(quorum)
    if isinstance(role, Refusal):
        return role
    if voter.key.id in quorum.voters.by_id:
        return Refusal(ErrorCode.DUPLICATE_VOTER, f"node {voter.key.id} is a voter already")
    if not _has_caught_up(quorum, role, voter.key, now_ms):
        reason = f"node {voter.key.id} does not follow the metadata log closely yet"
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, reason)
    return _change(quorum, role, quorum.voters.with_voter(voter), now_ms)


def remove_voter(quorum: "Quorum", key: ReplicaKey, now_ms: float) -> Refusal | None:
    role = _leader_that_may_change(quorum)
    if isinstance(role, Refusal):
        return role
    known = quorum.voters.by_id.get(key.id)
    if known is None or known.key != key:
        return Refusal(ErrorCode.VOTER_NOT_FOUND, f"node {key.id} with this directory is not a voter")
    if len(quorum.voters) == 1:
        return Refusal(ErrorCode.INVALID_REQUEST, "the last voter cannot be removed")
    return _change(quorum, role, quorum.voters.without(key), now_ms)


def update_voter(quorum: "Quorum", voter: Voter, now_ms: float) -> Refusal | None:
    """A voter has new addresses; its directory stays what it was."""
    role = _leader_that_may_change(quorum)
    if isinstance(role, Refusal):
        return role
    known = quorum.voters.by_id.get(voter.key.id)
    if known is None or known.key != voter.key:
        return Refusal(ErrorCode.VOTER_NOT_FOUND, f"node {voter.key.id} with this directory is not a voter")
    return None if known == voter else _change(quorum, role, quorum.voters.with_voter(voter), now_ms)


def pin_voters(quorum: "Quorum", role: Leader) -> None:
    """Writes the voters' directory ids once all are known; until then a wiped disk could pass for the old one."""
    if quorum.voters.is_pinned or role.high_watermark is None or not is_settled(quorum, role):
        return
    pinned = []
    for voter in quorum.voters.by_id.values():
        key = voter.key if voter.key.directory_id != ZERO_UUID else role.learned_key(voter.key)
        if key is None:
            return
        pinned.append(voter._replace(key=key))
    quorum.append_voters(VoterSet(pinned))


def is_settled(quorum: "Quorum", role: Leader) -> bool:
    """Whether the current set is committed."""
    return quorum.history.last_offset < (role.high_watermark or 0)


def _leader_that_may_change(quorum: "Quorum") -> Leader | Refusal:
    role = quorum.role
    if not isinstance(role, Leader):
        return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the metadata quorum")
    if role.high_watermark is None:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, "the leader has not committed anything in its epoch yet")
    if not is_settled(quorum, role):
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, "another change of the voters is under way")
    if not quorum.voters.is_pinned:
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, "not every voter of the first start has been seen yet")
    return role


def _change(quorum: "Quorum", role: Leader, voters: VoterSet, now_ms: float) -> Refusal | None:
    """Not if a majority of the new voters is silent: the leader would lose its quorum by its own hand."""
    if now_ms >= role.quorum_lost_at_ms(quorum.local, voters, quorum.timeouts):
        return Refusal(ErrorCode.REQUEST_TIMED_OUT, "too few of the voters that would be left follow the leader")
    quorum.append_voters(voters)
    return None


def _has_caught_up(quorum: "Quorum", role: Leader, key: ReplicaKey, now_ms: float) -> bool:
    progress = role.progress.get(key)
    return progress is not None and now_ms - progress.caught_up_ms < quorum.timeouts.fetch_timeout_ms
