"""The rules of the metadata quorum (R1–R15), looked at after every event, with what only a test may remember.

Ghosts: who led and was voted for in each epoch, what was committed, what was acknowledged, who asked what last. A
broken rule raises `AssertionError` with its number.
"""

from typing import TYPE_CHECKING, Any

from penstock.quorum.bundle import LeaderChange, VotersChange
from penstock.quorum.election_state import NOBODY, ElectionState, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.messages import (
    BeginEpochRequest,
    FetchRequest,
    FetchSnapshotRequest,
    Request,
    Response,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from penstock.quorum.roles import Candidate, Follower, Prospective, Resigned
from penstock.quorum.voters import VoterSet
from penstock.sim.quorum_log import Entry, LogModel

if TYPE_CHECKING:
    from penstock.sim.quorum_node import SimNode
    from penstock.sim.quorum_world import QuorumWorld


class QuorumChecks:
    def __init__(self, world: "QuorumWorld") -> None:
        self.world = world
        self.leaders: dict[int, int] = {}
        """Epoch -> the node that led it, or that somebody says led it."""
        self.votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self.epochs: dict[ReplicaKey, int] = {}
        self.entries: dict[tuple[int, int], tuple[Any, int]] = {}
        """(offset, epoch) -> payload, and the epoch of the entry in front."""
        self.committed: list[Entry] = []
        self.asked: dict[tuple[int, int], VoteRequest] = {}
        self.acknowledged: set[int] = set()
        self.proposals: dict[int, tuple[int, int, int, int]] = {}
        """Number -> node, life, epoch, end offset."""
        self.high_watermarks: dict[tuple[int, int], int] = {}
        """(node, life) -> what it has said."""
        self.latest: dict[tuple[int, int], int] = {}
        """(asker, asked) -> number of the latest request, until it is answered."""
        self.heard: dict[tuple[int, int], dict[int, float]] = {}
        """(leader, epoch) -> node -> when it last fetched."""
        self.begun: dict[tuple[int, int, int], float] = {}
        """(leader, epoch, voter) -> when it was last told."""
        self.became: dict[tuple[int, int], float] = {}
        self.would_vote: dict[tuple[int, int], set[int]] = {}
        """(asker, epoch) -> who granted it a pre-vote."""
        self.lost_disks: list[tuple[ReplicaKey, LogModel]] = []
        """What they held was acknowledged in good faith; there are fewer of them than a majority needs."""
        self.last_proposal = 0
        self.elections = 0

    # --- votes and epochs -------------------------------------------------------------------------------------

    def persists(self, node: "SimNode", state: ElectionState) -> None:
        assert state.epoch >= node.election.epoch, f"R2: node {node.id} forgets epoch {node.election.epoch}"
        if state.voted is not None:
            voted = self.votes.setdefault((node.key, state.epoch), state.voted)
            assert voted == state.voted, f"R3: node {node.id} votes twice in epoch {state.epoch}"

    def sends_response(self, node: "SimNode", token: Any, response: Response) -> None:
        if not isinstance(response, VoteResponse) or not response.granted:
            return
        asker, correlation, _ = token
        request = self.asked[asker, correlation]
        own = (node.log.last_epoch, node.log.end_offset)
        assert (request.last_epoch, request.end_offset) >= own, f"R4: node {node.id} votes for less than {own}"
        if request.pre_vote:
            self.would_vote.setdefault((asker, request.epoch), set()).add(node.id)
            return
        voted = self.votes.setdefault((node.key, request.epoch), request.candidate)
        assert voted == request.candidate, f"R3: node {node.id} votes twice in epoch {request.epoch}"
        on_disk = (node.election.epoch, node.election.voted)
        assert on_disk == (request.epoch, request.candidate), f"R3: vote of node {node.id} is not on disk: {on_disk}"

    def sends_request(self, node: "SimNode", to: int, correlation: int, request: Request) -> None:
        self.latest[node.id, to] = correlation
        if isinstance(request, FetchRequest):
            safe = node.log.synced_end_offset
            assert request.offset <= safe, f"R5: node {node.id} fetches from {request.offset}, safe is {safe}"
        elif isinstance(request, BeginEpochRequest):
            self.begun[node.id, request.epoch, to] = self.world.now_ms
        elif isinstance(request, VoteRequest):
            self.asked[node.id, correlation] = request
            if not request.pre_vote:
                assert node.election.epoch == request.epoch, f"R3: node {node.id} stands before it is on disk"
                self._check_disruption(node, request.epoch)

    def _check_disruption(self, node: "SimNode", epoch: int) -> None:
        if self.world.swarm.bold:
            return
        willing = self.would_vote.get((node.id, epoch - 1), set()) | {node.id}
        voters = node.quorum.voters
        count = len(willing.intersection(voters.ids))
        assert count >= voters.majority, f"R15: node {node.id} raises the epoch to {epoch} uncalled"

    def receives_request(self, node: "SimNode", request: Request) -> None:
        if isinstance(request, FetchRequest | FetchSnapshotRequest):
            self.heard.setdefault((node.id, request.epoch), {})[request.replica.id] = self.world.now_ms

    def receives_response(self, node: "SimNode", sender: int, correlation: int, life: int) -> None:
        """A stale one is one that is not the first answer to the latest question of this life."""
        if self.latest.get((node.id, sender)) == correlation and life == node.life:
            del self.latest[node.id, sender]
            self.stale = False
        else:
            self.stale = True
            self._before = self._face(node)

    stale = False
    _before: tuple[Any, ...] = ()

    def _face(self, node: "SimNode") -> tuple[Any, ...]:
        quorum = node.quorum
        return quorum.role, quorum.election, quorum.high_watermark, node.log.end_offset, node.log.generation

    # --- the log ----------------------------------------------------------------------------------------------

    def wrote(self, node: "SimNode", offset: int) -> None:
        """An entry is known by offset and epoch; with it, everything in front of it (R6, by induction)."""
        log = node.log
        entry = log.entry(offset)
        if offset == log.start_offset:
            before = log.snapshot.epoch if log.snapshot is not None else 0
        else:
            before = log.entry(offset - 1).epoch
        known = self.entries.setdefault((offset, entry.epoch), (entry.payload, before))
        assert known == (entry.payload, before), (
            f"R6: offset {offset} of epoch {entry.epoch} differs on node {node.id}"
        )

    def truncates(self, node: "SimNode", end_offset: int) -> None:
        known = node.quorum.high_watermark or 0
        assert end_offset >= known, f"R8: node {node.id} cuts to {end_offset}, below {known}"
        assert node.quorum.leader is None, f"R8: leader {node.id} cuts its log"
        assert end_offset < node.log.end_offset, f"R-Live: node {node.id} cuts nothing off, and will do so for ever"

    def commits(self, node: "SimNode", high_watermark: int) -> None:
        log = node.log
        assert high_watermark <= log.end_offset, f"R9: node {node.id}: {high_watermark} of {log.end_offset}"
        before = self.high_watermarks.get((node.id, node.life), 0)
        assert high_watermark >= before, f"R9: the high watermark of node {node.id} goes back"
        self.high_watermarks[node.id, node.life] = high_watermark
        for offset in range(max(before, log.start_offset), min(high_watermark, len(self.committed))):
            mine, theirs = log.entry(offset), self.committed[offset]
            assert mine == theirs, f"R8: offset {offset} was {theirs}, is {mine} on node {node.id}"
        if high_watermark > len(self.committed):
            self._commit_more(node, high_watermark)
        self._acknowledge(node, high_watermark)

    def _commit_more(self, node: "SimNode", high_watermark: int) -> None:
        epoch = node.quorum.epoch
        leads = isinstance(node.quorum.role, Leader | Resigned)  # with its own removal a leader commits and goes
        assert leads, f"R9: node {node.id} commits {high_watermark} without being leader"
        last = node.log.entry(high_watermark - 1)
        assert last.epoch == epoch, f"R9: epoch {epoch} commits an entry of epoch {last.epoch}"
        disks = [(other.key, other.log) for other in self.world.nodes.values()] + self.lost_disks
        holders = [
            key
            for key, log in disks
            if log.synced_end_offset >= high_watermark and log.entry(high_watermark - 1) == last
        ]
        voters = node.quorum.voters
        assert voters.is_majority(holders), f"R10: {high_watermark} is on {holders}, no majority of {voters}"
        self.committed += node.log.prefix(high_watermark)[len(self.committed) :]

    def proposes(self, node: "SimNode", number: int) -> None:
        self.proposals[number] = (node.id, node.life, node.quorum.epoch, node.log.end_offset)
        self.last_proposal = number

    def _acknowledge(self, node: "SimNode", high_watermark: int) -> None:
        if node.quorum.leader is None:
            return
        here = (node.id, node.life, node.quorum.epoch)
        for number, (*where, end_offset) in list(self.proposals.items()):
            if tuple(where) == here and end_offset <= high_watermark:
                del self.proposals[number]
                self.acknowledged.add(number)
                assert self.committed[end_offset - 1].payload == number, f"R10: {number} acknowledged, not there"

    def appends_control(self, node: "SimNode", change: LeaderChange | VotersChange) -> None:
        if isinstance(change, LeaderChange):
            self._check_new_leader(node, change)
            return
        open_changes = [
            entry.payload
            for entry in node.log.prefix(node.log.end_offset)[len(self.committed) :]
            if isinstance(entry.payload, VoterSet)
        ]
        assert not open_changes, f"R12: node {node.id} changes voters twice at once"
        leader = node.quorum.leader
        has_committed = leader is not None and leader.high_watermark is not None
        assert has_committed, "R12: voters change before the first commit of the epoch"
        before = node.quorum.history.at(node.log.end_offset)
        assert before.differs_by_one(change.voters), f"R12: {before} becomes {change.voters}"

    def _check_new_leader(self, node: "SimNode", change: LeaderChange) -> None:
        self.elections += 1
        self.became[node.id, change.epoch] = self.world.now_ms
        if any(epoch > change.epoch for epoch in self.leaders):
            return  # its votes came late; it will commit nothing
        mine = node.log.prefix(node.log.end_offset)
        missing = len(self.committed)
        assert mine[:missing] == self.committed, f"R7: leader {node.id} of {change.epoch} lacks what is committed"

    # --- snapshots --------------------------------------------------------------------------------------------

    def takes_snapshot(self, node: "SimNode", end_offset: int) -> None:
        assert end_offset <= (node.quorum.high_watermark or 0), f"R13: snapshot {end_offset} above the high watermark"

    def loads_snapshot(self, node: "SimNode", snapshot: SnapshotId) -> None:
        assert node.quorum.leader is None, f"R13: leader {node.id} loads a snapshot"
        content = node.part
        assert len(content) == snapshot.end_offset, f"R13: {len(content)} entries in {snapshot}"
        assert content == self.committed[: snapshot.end_offset], f"R13: {snapshot} holds what was not committed"

    # --- after every event ------------------------------------------------------------------------------------

    def after_event(self, node: "SimNode") -> None:
        if not node.alive:
            return
        if self.stale:
            self.stale = False
            assert self._face(node) == self._before, f"R11: a stale answer changes node {node.id}"
        quorum = node.quorum
        assert quorum.epoch >= self.epochs.get(node.key, 0), f"R2: node {node.id} goes back to {quorum.epoch}"
        self.epochs[node.key] = node.election.epoch
        named = quorum.leader_id if quorum.leader_id != NOBODY else quorum.election.leader_id
        if named != NOBODY:
            first = self.leaders.setdefault(quorum.epoch, named)
            assert first == named, f"R1: epoch {quorum.epoch} is led by {first} and {named}"
        leader = quorum.leader
        if leader is not None:
            own = leader.progress.get(node.key)
            counted = own.end_offset if own is not None else 0
            assert counted <= node.log.synced_end_offset, f"R5: leader {node.id} counts {counted} before it is safe"
        log = node.log
        if log.start_offset:
            assert log.snapshot is not None, f"R13: node {node.id} has no snapshot in front of its log"
            assert log.snapshot.end_offset == log.start_offset, f"R13: a gap behind the snapshot of node {node.id}"

    def crashed(self, node: "SimNode") -> None:
        for asker, asked in list(self.latest):
            if asker == node.id:
                del self.latest[asker, asked]

    def look_around(self) -> None:
        """Now and then: voters are those of the log (R12), nobody leads whom a majority has left (R14)."""
        world = self.world
        for node in world.nodes.values():
            if node.alive:
                written = node.voters_written()
                assert node.quorum.voters == written, (
                    f"R12: node {node.id} goes by {node.quorum.voters}, not {written}"
                )
        limit_ms = world.swarm.timeouts.check_quorum_ms + 5
        for node in world.leaders():
            if world.now_ms < node.paused_until_ms + 50:
                continue
            quorum = node.quorum
            heard = self.heard.get((node.id, quorum.epoch), {})
            since_ms = self.became[node.id, quorum.epoch]
            recent = [
                voter
                for voter in quorum.voters.ids
                if voter == node.id or world.now_ms - max(heard.get(voter, 0), since_ms) < limit_ms
            ]
            assert len(recent) >= quorum.voters.majority, f"R14: {node.id} leads {quorum.epoch} without followers"
            self._check_announced(node, heard, since_ms)

    def _check_announced(self, node: "SimNode", heard: dict[int, float], since_ms: float) -> None:
        """A voter that does not fetch is told who leads, again and again: one such message may be lost."""
        quorum = node.quorum
        limit_ms = self.world.now_ms - quorum.timeouts.fetch_timeout_ms - 2 * quorum.timeouts.begin_interval_ms
        if max(since_ms, node.paused_until_ms) > limit_ms:
            return
        for voter in quorum.voters.ids:
            told_ms = max(self.begun.get((node.id, quorum.epoch, voter), 0), heard.get(voter, 0))
            is_new = quorum.history.last_offset >= (quorum.high_watermark or 0)
            assert voter == node.id or is_new or told_ms > limit_ms, f"R-Live: node {voter} is not told who leads"

    # --- liveness ---------------------------------------------------------------------------------------------

    _final = 0

    def heals(self) -> None:
        self._final = 0

    def is_well(self) -> bool:
        """One leader, followed by all, and a new proposal acknowledged and known everywhere."""
        if self.why_not_well():
            return False
        active = self.world.active()
        if not self._final and active is not None:
            self._final = self.world.propose(active)
        return bool(self._final) and self._final in self.acknowledged and not self.why_not_well()

    def why_not_well(self) -> str:
        world = self.world
        active = world.active()
        if active is None:
            return (
                f"no leader: {[(n.id, type(n.quorum.role).__name__, n.quorum.epoch) for n in world.nodes.values()]}"
            )
        for node in world.nodes.values():
            role = node.quorum.role
            if node is not active and not (isinstance(role, Follower) and role.epoch == active.quorum.epoch):
                return f"node {node.id} is {type(role).__name__} in {node.quorum.epoch}"
            if isinstance(role, Prospective | Candidate):
                return f"node {node.id} still stands"
            if (node.quorum.high_watermark or 0) < len(self.committed):
                return f"node {node.id} knows {node.quorum.high_watermark} of {len(self.committed)}"
        if self._final and self._final not in self.acknowledged:
            if self._final in self.proposals and self.proposals[self._final][2] != active.quorum.epoch:
                self._final = 0  # its leader was overthrown; the next one is asked
            return "the proposal is not acknowledged"
        return ""
