"""The quorum itself: one fact goes in, one bundle of things to do comes out. No I/O, no clock, no task.

The driver carries a bundle out in the order of its fields and reports each fact back when it is true:

    persist -> persisted(state) · append -> appended(end) -> (fsync) -> synced(end) · request -> response or failed

Time is an argument; `deadline_ms` says when `tick` is due. Hard rules: nothing counts before it is reported (a vote
not persisted is no vote, bytes not fsynced are no bytes, R3, R5); an answer counts only if it answers the latest
request to that node (R11), with numbers that begin anew by chance at each start; epochs never go back (R2).
What belongs to a role is in `voting`, `following`, `leading` and `membership`; this file joins them.
"""

from typing import Any

from penstock.model.errors import Refusal
from penstock.model.ports import Rng
from penstock.quorum import following, leading, membership, voting
from penstock.quorum.bundle import (
    NOTHING,
    Bundle,
    LeaderChange,
    LogView,
    Outgoing,
    Reply,
    SnapshotChunk,
    VotersChange,
)
from penstock.quorum.election_state import NOBODY, ElectionState, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    Request,
    Response,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from penstock.quorum.roles import NEVER, Candidate, Follower, Prospective, Resigned, Role, Unattached
from penstock.quorum.timeouts import QuorumTimeouts
from penstock.quorum.voters import Voter, VoterHistory, VoterSet

__all__ = ["NOTHING", "Bundle", "LeaderChange", "Quorum"]


class Quorum:
    """One node's view. `role` is what it is now, `epoch` the newest it has seen."""

    def __init__(
        self,
        local: ReplicaKey,
        history: VoterHistory,
        election: ElectionState,
        log: LogView,
        rng: Rng,
        timeouts: QuorumTimeouts | None = None,
    ) -> None:
        self.local = local
        self.history = history
        self.log = log
        self.rng = rng
        self.timeouts = timeouts or QuorumTimeouts()
        # The log may know a later epoch than a quorum-state file that was lost; epochs never go back (R2).
        self.election = election if election.epoch >= log.last_epoch else ElectionState(log.last_epoch)
        """What must not be forgotten; `_durable` is what is on stable storage for sure."""
        self.role: Role = Unattached(self.election.epoch, NEVER)
        self.high_watermark: int | None = log.start_offset or None
        """None until this node knows what is committed; what a snapshot holds is."""
        self._durable = election
        self._latest: dict[int, int] = {}
        """The number of the latest request to each node that is not answered."""
        self._next_correlation = int.from_bytes(rng.random_bytes(4), "big")
        self._out = _Out()

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def voters(self) -> VoterSet:
        return self.history.current

    @property
    def is_voter(self) -> bool:
        return self.local in self.voters

    @property
    def leader(self) -> Leader | None:
        return self.role if isinstance(self.role, Leader) else None

    @property
    def leader_id(self) -> int:
        """The leader of this epoch, if it has one that this node knows and that is not known to be gone."""
        role = self.role
        if isinstance(role, Leader):
            return self.local.id
        return role.leader_id if isinstance(role, Follower) and role.stand_at_ms == NEVER else NOBODY

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do."""
        role = self.role
        if isinstance(role, Leader):
            return leading.deadline_ms(self, role)
        if isinstance(role, Follower):
            return following.deadline_ms(self, role)
        if isinstance(role, Unattached):
            return min(role.deadline_ms if self.is_voter else NEVER, role.next_probe_ms)
        return role.deadline_ms

    # --- facts: time and disk ---------------------------------------------------------------------------------

    def start(self, now_ms: float) -> Bundle:
        if self.is_voter and len(self.voters) == 1:
            self.become_candidate(now_ms)  # nobody to wait for
        elif self.election.leader_id == self.local.id:
            self.role = Resigned(self.epoch, now_ms + self.first_wait_ms())
        else:
            self.role = Unattached(self.epoch, now_ms + self.first_wait_ms())
            following.probe(self, self.role, now_ms)
        return self.take()

    def tick(self, now_ms: float) -> Bundle:
        role = self.role
        if isinstance(role, Leader):
            leading.tick(self, role, now_ms)
        elif isinstance(role, Follower):
            following.tick(self, role, now_ms)
        elif isinstance(role, Unattached) and (now_ms < role.deadline_ms or not self.is_voter):
            following.probe(self, role, now_ms)
        elif now_ms >= role.deadline_ms:
            self.stand(now_ms)
        return self.take()

    def persisted(self, state: ElectionState, now_ms: float) -> Bundle:
        """This election state is on stable storage."""
        self._durable = state
        if isinstance(self.role, Candidate) and state == ElectionState(self.role.epoch, NOBODY, self.local):
            voting.count_grant(self, self.role, self.local, now_ms)
        return self.take()

    def appended(self, epoch: int, end_offset: int, now_ms: float) -> Bundle:
        """The leader's log of `epoch` now ends here; nothing is durable yet."""
        if isinstance(self.role, Leader) and self.role.epoch == epoch:
            self.role.appended(end_offset)
            leading.answer_parked(self, self.role, now_ms)
        return self.take()

    def synced(self, end_offset: int, now_ms: float) -> Bundle:
        """Everything below `end_offset` of the log as it is now is on this node's stable storage."""
        if isinstance(self.role, Leader):
            leading.synced(self, self.role, end_offset, now_ms)
        elif isinstance(self.role, Follower):
            following.synced(self, self.role, now_ms)
        return self.take()

    def replicated(self, voters: list[tuple[int, VoterSet]], now_ms: float) -> Bundle:
        """What the leader sent is in the log (not yet durable), with these voter sets in it."""
        for offset, voter_set in voters:
            self.history.append(offset, voter_set)
        following.replicated(self, now_ms)
        return self.take()

    def truncated(self, now_ms: float) -> Bundle:
        """The log was cut as the core asked."""
        self.history.truncate_to(self.log.end_offset)
        following.log_changed(self, now_ms)
        return self.take()

    def snapshot_loaded(self, voters: VoterSet | None, now_ms: float) -> Bundle:
        """The log was replaced by the snapshot that was asked for; `voters` are those it names."""
        self.history.restart(voters)
        following.snapshot_done(self, now_ms)
        return self.take()

    def not_written(self, now_ms: float) -> Bundle:
        """What the leader sent, records or a snapshot, is of no use or finds no place: it is fetched again later."""
        following.not_written(self, now_ms)
        return self.take()

    # --- facts: messages --------------------------------------------------------------------------------------

    def receive(self, request: Request, token: Any, now_ms: float) -> Bundle:
        """A request; the answer goes out with `token`, now or later."""
        if isinstance(request, VoteRequest):
            voting.answer_vote(self, request, token, now_ms)
        elif isinstance(request, FetchRequest):
            leading.answer_fetch(self, request, token, now_ms)
        elif isinstance(request, BeginEpochRequest):
            voting.answer_begin_epoch(self, request, token, now_ms)
        elif isinstance(request, EndEpochRequest):
            voting.answer_end_epoch(self, request, token, now_ms)
        else:
            leading.answer_fetch_snapshot(self, request, token, now_ms)
        return self.take()

    def respond(self, sender: int, correlation: int, response: Response, now_ms: float) -> Bundle:
        """An answer. One that is not to the latest request to that node changes nothing (R11)."""
        if not self.is_latest(sender, correlation):
            return NOTHING
        self._latest.pop(sender, None)
        role = self.role
        if not self.observe(response.epoch, response.leader_id, now_ms) or self.role is not role:
            following.hold_back(self, now_ms)  # it was not meant for what we are now
        elif isinstance(response, VoteResponse):
            voting.count_vote(self, sender, response, now_ms)
        elif isinstance(response, FetchResponse):
            following.fetched(self, response, now_ms)
        elif isinstance(response, FetchSnapshotResponse):
            following.fetched_chunk(self, response, now_ms)
        return self.take()

    def failed(self, to: int, correlation: int, refused: bool, now_ms: float) -> Bundle:
        """No answer will come; `refused` when nobody listens at that address."""
        if not self.is_latest(to, correlation):
            return NOTHING
        self._latest.pop(to, None)
        role = self.role
        if isinstance(role, Follower):
            following.failed(self, role, refused, now_ms)
        elif isinstance(role, Prospective | Candidate):
            voting.count_rejection(self, role, to, now_ms)
        return self.take()

    def is_latest(self, sender: int, correlation: int) -> bool:
        return self._latest.get(sender) == correlation

    # --- wishes -----------------------------------------------------------------------------------------------

    def add_voter(self, voter: Voter, now_ms: float) -> Bundle | Refusal:
        return membership.add_voter(self, voter, now_ms) or self.take()

    def remove_voter(self, key: ReplicaKey, now_ms: float) -> Bundle | Refusal:
        return membership.remove_voter(self, key, now_ms) or self.take()

    def update_voter(self, voter: Voter, now_ms: float) -> Bundle | Refusal:
        return membership.update_voter(self, voter, now_ms) or self.take()

    def resign(self, now_ms: float) -> Bundle:
        """Gives leadership up before the node stops; what is not committed by now stays open."""
        if isinstance(self.role, Leader):
            leading.resign(self, self.role, now_ms)
        return self.take()

    # --- transitions ------------------------------------------------------------------------------------------

    def observe(self, epoch: int, leader_id: int, now_ms: float) -> bool:
        """Somebody speaks of this epoch and leader. Answers whether it is the current epoch (now)."""
        if epoch < self.epoch:
            return False
        if epoch > self.epoch:
            if leader_id in (NOBODY, self.local.id):
                self.become_unattached(epoch, now_ms)
            else:
                self.become_follower(epoch, leader_id, now_ms)
        elif leader_id not in (NOBODY, self.local.id) and isinstance(self.role, Unattached | Prospective | Candidate):
            self.become_follower(epoch, leader_id, now_ms)
        return True

    def become_unattached(self, epoch: int, now_ms: float) -> None:
        """In a new epoch, or without the leader of this one.

        Who was waiting to stand waits no longer for it: else a candidate that nobody can elect, trying again and
        again, would keep those from standing who could be elected.
        """
        role = self.role
        self._leave()
        if epoch > self.epoch:
            self.election = ElectionState(epoch)
        deadline_ms = now_ms + self.election_wait_ms()
        if isinstance(role, Unattached | Prospective):
            deadline_ms = min(deadline_ms, role.deadline_ms)
        self.role = Unattached(epoch, deadline_ms)
        self.role.next_probe_ms = now_ms + self.timeouts.begin_interval_ms

    def become_follower(self, epoch: int, leader_id: int, now_ms: float) -> None:
        if epoch == self.epoch and self.election.leader_id not in (NOBODY, leader_id):
            raise AssertionError(f"epoch {epoch} has two leaders: {self.election.leader_id} and {leader_id}")
        self._leave()
        voted = self.election.voted if epoch == self.epoch else None
        self.election = ElectionState(epoch, leader_id, voted)
        self.role = Follower(epoch, leader_id, now_ms + self.timeouts.fetch_timeout_ms)
        following.fetch(self, self.role, now_ms)

    def stand(self, now_ms: float) -> None:
        """Wants to lead: asks first, changes nothing yet."""
        self._leave()
        if not self.is_voter:
            self.become_unattached(self.epoch, now_ms)
        elif len(self.voters) == 1:
            self.become_candidate(now_ms)
        else:
            self.role = role = Prospective(self.epoch, now_ms + self.election_wait_ms())
            voting.ask(self, pre_vote=True)
            voting.count_grant(self, role, self.local, now_ms)

    def become_candidate(self, now_ms: float) -> None:
        self._leave()
        epoch = self.epoch + 1
        self.election = ElectionState(epoch, NOBODY, self.local)
        self.role = Candidate(epoch, now_ms + self.election_wait_ms())
        voting.ask(self, pre_vote=False)

    def become_leader(self, candidate: Candidate, now_ms: float) -> None:
        granted = frozenset(candidate.granted)
        self._leave()
        self.election = self.election._replace(leader_id=self.local.id)
        self.role = role = Leader(candidate.epoch, self.log.end_offset, granted, now_ms)
        self._out.append.append(LeaderChange(candidate.epoch, self.local, self.voters, granted))
        leading.begin(self, role, now_ms)

    def _leave(self) -> None:
        """What was asked in the old role is of no interest any more; who waits for the leader is told."""
        self._latest.clear()
        if isinstance(self.role, Leader):
            leading.dismiss_parked(self, self.role)

    # --- for the modules of this room -------------------------------------------------------------------------

    def request(self, to: int, request: Request) -> None:
        self._next_correlation += 1
        self._latest[to] = self._next_correlation
        self._out.requests.append(Outgoing(to, self._next_correlation, request))

    def is_waiting_for(self, node: int) -> bool:
        return node in self._latest

    def reply(self, token: Any, response: Response) -> None:
        self._out.replies.append(Reply(token, response))

    def commit(self, high_watermark: int) -> None:
        self.high_watermark = self._out.high_watermark = high_watermark

    def append_voters(self, voters: VoterSet) -> None:
        self._out.append.append(VotersChange(self.epoch, voters))
        # One entry each: a LeaderChange in the same bundle comes first.
        self.history.append(self.log.end_offset + len(self._out.append) - 1, voters)

    def truncate(self, end_offset: int) -> None:
        if self.high_watermark is not None and end_offset < self.high_watermark:
            raise AssertionError(f"truncation to {end_offset}, below the high watermark {self.high_watermark} (R8)")
        self._out.truncate_to = end_offset

    def replicate(self, records: Any) -> None:
        self._out.replicate = records

    def write_chunk(self, snapshot: SnapshotId, position: int, data: Any, is_last: bool) -> None:
        self._out.snapshot_chunk = SnapshotChunk(snapshot, position, data, is_last)

    def election_wait_ms(self) -> float:
        wait_ms = self.timeouts.election_timeout_ms
        return wait_ms + self.rng.uniform(0, wait_ms)

    def first_wait_ms(self) -> float:
        """At start a leader is asked for first; if there is none, an early election does no harm (pre-vote)."""
        return self.timeouts.begin_interval_ms + self.rng.uniform(0, self.timeouts.election_timeout_ms / 2)

    def short_wait_ms(self) -> float:
        """Before standing when the leader is known to be gone: long enough that voters rarely do it at once."""
        return self.rng.uniform(0, self.timeouts.election_timeout_ms / 4)

    def take(self) -> Bundle:
        """Everything decided since the last bundle; the election state goes with it until it is reported durable."""
        out, self._out = self._out, _Out()
        # Who leads is found out again after a restart; what must be durable is epoch and vote.
        is_durable = (self.election.epoch, self.election.voted) == (self._durable.epoch, self._durable.voted)
        persist = None if is_durable else self.election
        return Bundle(
            persist,
            out.truncate_to,
            out.snapshot_chunk,
            tuple(out.append),
            out.replicate,
            out.high_watermark,
            tuple(out.replies),
            tuple(out.requests),
        )


class _Out:
    """A bundle in the making."""

    __slots__ = ("append", "high_watermark", "replicate", "replies", "requests", "snapshot_chunk", "truncate_to")

    def __init__(self) -> None:
        self.truncate_to: int | None = None
        self.snapshot_chunk: SnapshotChunk | None = None
        self.append: list[LeaderChange | VotersChange] = []
        self.replicate: Any = None
        self.high_watermark: int | None = None
        self.replies: list[Reply] = []
        self.requests: list[Outgoing] = []
