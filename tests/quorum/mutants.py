"""The quorum with one mistake each: what the simulator must not let pass. Each names the rule that it breaks."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from penstock.model.errors import ErrorCode, Refusal
from penstock.quorum import following, leading, membership, voting
from penstock.quorum.bundle import Bundle
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import NOBODY, ElectionState
from penstock.quorum.leader import Leader
from penstock.quorum.messages import EpochEnd, FetchResponse, VoteRequest
from penstock.quorum.roles import Follower
from penstock.quorum.voters import VoterHistory, VoterSet
from penstock.sim.quorum_node import SeededRng, SimNode
from penstock.sim.quorum_world import QuorumWorld

Mutant = Callable[[], AbstractContextManager[Any]]


def replaced(owner: Any, name: str, new: Any) -> Mutant:
    return lambda: patch.object(owner, name, new)


def _persists_nothing(self: SimNode, state: ElectionState) -> None:
    self.world.checks.persists(self, state)


def _speaks_first(self: SimNode, bundle: Bundle, real: Any = SimNode.carry_out) -> None:
    for reply in bundle.replies:
        self.world.send_response(self, reply.token, reply.response)
    real(self, bundle._replace(replies=()))


def _votes_again(quorum: Quorum, request: VoteRequest, now_ms: float) -> bool:
    if quorum.election.leader_id != NOBODY or not voting.is_fresh(quorum, request):
        return False
    quorum.election = quorum.election._replace(voted=request.candidate)
    return True


def _counts_unsynced(self: Quorum, epoch: int, end_offset: int, now_ms: float) -> Bundle:
    if isinstance(self.role, Leader) and self.role.epoch == epoch:
        self.role.appended(end_offset)
        leading.synced(self, self.role, end_offset, now_ms)
        leading.answer_parked(self, self.role, now_ms)
    return self.take()


def _announces_once(quorum: Quorum, role: Leader, now_ms: float, real: Any = leading.announce) -> None:
    if not role.begin_due_ms:
        real(quorum, role, now_ms)
        role.begin_due_ms.update(dict.fromkeys(quorum.voters.ids, float("inf")))


def _stands_at_once(self: Quorum, now_ms: float) -> None:
    if self.is_voter:
        self.become_candidate(now_ms)
    else:
        self.become_unattached(self.epoch, now_ms)


def _changes_at_any_time(quorum: Quorum) -> Leader | Refusal:
    role = quorum.role
    return role if isinstance(role, Leader) else Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")


def _changes_by_force(self: QuorumWorld) -> None:
    """Any leader, also one that has committed nothing yet."""
    for leader in self.leaders():
        for key in leader.quorum.voters.keys:
            outcome = leader.quorum.remove_voter(key, self.now_ms)
            if isinstance(outcome, Bundle):
                leader.step(lambda bundle=outcome: bundle)  # type: ignore[misc]
                return


@contextmanager
def _early_changes() -> Iterator[None]:
    with (
        patch.object(membership, "_leader_that_may_change", _changes_at_any_time),
        patch.object(QuorumWorld, "_change_voters", _changes_by_force),
    ):
        yield


def _truncates_to_leader(quorum: Quorum, leader: EpochEnd) -> int:
    return min(leader.end_offset, quorum.log.end_offset)


def _commits_before_it_agrees(
    quorum: Quorum, response: FetchResponse, now_ms: float, real: Any = following.fetched
) -> None:
    if isinstance(quorum.role, Follower) and response.diverging is not None:
        following.advance(quorum, response.high_watermark)
    real(quorum, response, now_ms)


def _advances_with_itself(self: Leader, voters: VoterSet, real: Any = Leader.advance) -> int | None:
    smaller = [key for key in voters.keys if key in self.progress]
    return real(self, VoterSet(smaller) if len(smaller) > 1 else voters)


def _forgets_its_snapshot_epoch(quorum: Quorum, request: Any, real: Any = leading.check_position) -> Any:
    answer = real(quorum, request)
    if answer is not None and answer.snapshot is not None and request.offset >= quorum.log.start_offset:
        return None
    return answer


def _loses_its_epoch(self: SimNode, real: Any = SimNode.start) -> None:
    self.election = ElectionState()
    real(self)


MUTANTS: dict[str, Mutant] = {
    "a vote is not persisted (R3)": replaced(SimNode, "persist", _persists_nothing),
    "an answer leaves before the vote is persisted (R3)": replaced(SimNode, "carry_out", _speaks_first),
    "a vote is given twice (R3)": replaced(voting, "_grants", _votes_again),
    "the epoch is lost by a restart (R2)": replaced(SimNode, "start", _loses_its_epoch),
    "a vote ignores how fresh the log is (R4)": replaced(voting, "is_fresh", lambda quorum, request: True),
    "any answer counts (R11)": replaced(Quorum, "is_latest", lambda self, sender, correlation: True),
    "request numbers begin at 0 again (R11)": replaced(SeededRng, "random_bytes", lambda self, count: bytes(count)),
    "no check for divergence (R6)": replaced(leading, "check_position", lambda quorum, request: None),
    "truncation looks at the leader's end only (R6)": replaced(following, "truncation_offset", _truncates_to_leader),
    "no look at the epoch in front of the log (R6)": replaced(leading, "check_position", _forgets_its_snapshot_epoch),
    "entries of old epochs are committed (R9)": replaced(Leader, "may_commit", lambda self, end_offset: True),
    "the majority is one of those that fetch (R10)": replaced(Leader, "advance", _advances_with_itself),
    "a follower fetches before fsync (R5)": replaced(following, "is_synced", lambda quorum: True),
    "a leader counts its own bytes before fsync (R5)": replaced(Quorum, "appended", _counts_unsynced),
    "a follower commits before it agrees with the leader (R8)": replaced(
        following, "fetched", _commits_before_it_agrees
    ),
    "BeginQuorumEpoch is sent once (R-Live)": replaced(leading, "announce", _announces_once),
    "no check of the quorum (R14)": replaced(leading, "has_lost_quorum", lambda quorum, role, now_ms: False),
    "no pre-vote (R15)": replaced(Quorum, "stand", _stands_at_once),
    "two changes of voters at once (R12)": replaced(membership, "is_settled", lambda quorum, role: True),
    "voters change before the first commit (R12)": _early_changes,
    "a cut-off change of voters stays (R12)": replaced(VoterHistory, "truncate_to", lambda self, end_offset: None),
    "a snapshot above the high watermark (R13)": replaced(
        QuorumWorld, "snapshot_end_offset", lambda self, node: node.log.end_offset
    ),
}
