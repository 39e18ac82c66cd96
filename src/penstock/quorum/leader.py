"""The leader's role: how far each replica has come, what is committed, who is still there.

Invariants (R9): high_watermark <= a majority's stable end <= end_offset; it never goes back; it moves only once it
passes `epoch_start_offset`, because entries of earlier epochs are committed only by one of this epoch (Raft, fig. 8).
"""

from typing import Any

from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.messages import FetchRequest
from penstock.quorum.timeouts import QuorumTimeouts
from penstock.quorum.voters import VoterSet


class Progress:
    """One replica, voter or observer, as its fetches of this epoch tell."""

    __slots__ = ("caught_up_ms", "end_offset", "fetched_ms", "leader_end_offset")

    def __init__(self) -> None:
        self.end_offset = 0
        """Everything below is on its stable storage and equal to ours."""
        self.fetched_ms: float = -1
        self.caught_up_ms: float = float("-inf")
        """The last time at which it had everything that we had."""
        self.leader_end_offset = 0
        """Where our log ended when it last fetched."""


class Parked:
    """A fetch that found nothing new."""

    __slots__ = ("deadline_ms", "request", "token")

    def __init__(self, token: Any, request: FetchRequest, deadline_ms: float) -> None:
        self.token = token
        self.request = request
        self.deadline_ms = deadline_ms


class Leader:
    __slots__ = (
        "begin_due_ms",
        "end_offset",
        "epoch",
        "epoch_start_offset",
        "granting_voters",
        "high_watermark",
        "parked",
        "progress",
        "started_ms",
    )

    def __init__(self, epoch: int, end_offset: int, granting_voters: frozenset[ReplicaKey], now_ms: float) -> None:
        self.epoch = epoch
        self.epoch_start_offset = end_offset
        self.end_offset = end_offset
        self.granting_voters = granting_voters
        self.high_watermark: int | None = None
        self.progress: dict[ReplicaKey, Progress] = {}
        self.parked: dict[ReplicaKey, Parked] = {}
        self.begin_due_ms: dict[int, float] = {}
        """When BeginQuorumEpoch is sent (again) to a voter that does not fetch."""
        self.started_ms = now_ms

    def appended(self, end_offset: int) -> None:
        if end_offset < self.end_offset:
            raise AssertionError(f"a leader never truncates: {end_offset} < {self.end_offset}")
        self.end_offset = end_offset

    def stable(self, replica: ReplicaKey, end_offset: int) -> None:
        """Everything below `end_offset` is on this replica's stable storage."""
        if end_offset > self.end_offset:
            raise AssertionError(f"replica {replica.id} claims {end_offset} of {self.end_offset}")
        progress = self._progress_of(replica)
        progress.end_offset = max(end_offset, progress.end_offset)

    def fetched(self, replica: ReplicaKey, now_ms: float) -> Progress:
        """The replica is there."""
        progress = self._progress_of(replica)
        progress.fetched_ms = now_ms
        return progress

    def note_caught_up(self, progress: Progress, now_ms: float) -> None:
        """Called after `stable`: a replica has caught up when it has what we had when it last asked."""
        if progress.end_offset >= self.end_offset or (
            progress.end_offset >= progress.leader_end_offset and progress.leader_end_offset > self.epoch_start_offset
        ):
            progress.caught_up_ms = now_ms
        progress.leader_end_offset = self.end_offset

    def _progress_of(self, replica: ReplicaKey) -> Progress:
        progress = self.progress.get(replica)
        if progress is None:
            progress = self.progress[replica] = Progress()
        return progress

    def advance(self, voters: VoterSet) -> int | None:
        """The new high watermark, or None if it does not move."""
        reached = voters.majority_end_offset({key: progress.end_offset for key, progress in self.progress.items()})
        if not self.may_commit(reached) or (self.high_watermark or 0) >= reached:
            return None
        self.high_watermark = reached
        return reached

    def may_commit(self, end_offset: int) -> bool:
        """Only with an entry of this epoch: majorities of older ones can be overruled (Raft, figure 8)."""
        return end_offset > self.epoch_start_offset

    # --- who is there -----------------------------------------------------------------------------------------

    def quorum_lost_at_ms(self, local: ReplicaKey, voters: VoterSet, timeouts: QuorumTimeouts) -> float:
        """When a majority will have been silent for too long (R14)."""
        heard: dict[ReplicaKey, float] = {
            key: max(progress.fetched_ms, self.started_ms) for key, progress in self.progress.items()
        }
        heard[local] = float("inf")
        return voters.majority_value(heard, self.started_ms) + timeouts.check_quorum_ms

    def is_fetching(self, voter_id: int, now_ms: float, timeouts: QuorumTimeouts) -> bool:
        """Whether this voter follows us: it asked in this epoch, and not long ago."""
        if any(key.id == voter_id for key in self.parked):
            return True
        fetched_ms = max((p.fetched_ms for key, p in self.progress.items() if key.id == voter_id), default=-1.0)
        return fetched_ms >= 0 and now_ms - fetched_ms < timeouts.fetch_timeout_ms // 2

    def forget_silent_observers(self, voters: VoterSet, before_ms: float) -> None:
        """Also a directory that a voter had before: what it has now is another replica."""
        for key in [key for key, p in self.progress.items() if p.fetched_ms < before_ms and key not in voters]:
            del self.progress[key]

    def preferred_successors(self, local: ReplicaKey, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """The voters that have most first: they win without asking twice."""

        def reached(key: ReplicaKey) -> int:
            return max((p.end_offset for known, p in self.progress.items() if known.id == key.id), default=0)

        others = [key for key in voters.keys if key.id != local.id]
        return tuple(sorted(others, key=lambda key: (-reached(key), key.id)))

    def learned_key(self, voter: ReplicaKey) -> ReplicaKey | None:
        """The one directory under which this node has fetched, if there is exactly one."""
        known = [key for key in self.progress if key.id == voter.id]
        return known[0] if len(known) == 1 else None

    def heard_as(self, voter: ReplicaKey) -> ReplicaKey:
        """The name this voter fetches under: another directory of its node counts only while none is written down."""
        return voter if voter.directory_id != ZERO_UUID else (self.learned_key(voter) or voter)
