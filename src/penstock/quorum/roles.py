"""The roles a voter can have, one class each. They hold what belongs to the role and answer for it; no I/O.

    Unattached -> Candidate -> Leader -> Resigned

A restarted node is always Unattached: a leader of before the crash does not know what was decided since, so it stands
for election in a new epoch. Follower and Prospective join with the messages of a quorum of several voters.
"""

from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.voters import VoterSet


class Unattached:
    """Knows an epoch but no leader."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


class Candidate:
    """Asks for votes in `epoch`. Its own vote counts like any other: once it is on stable storage."""

    __slots__ = ("epoch", "granted")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.granted: set[ReplicaKey] = set()

    def election_state(self, local: ReplicaKey) -> ElectionState:
        return ElectionState(epoch=self.epoch, voted=local)

    def grant(self, voter: ReplicaKey) -> None:
        self.granted.add(voter)

    def is_elected(self, voters: VoterSet) -> bool:
        return voters.is_majority(self.granted)


class Leader:
    """Owns the log in `epoch`.

    Invariants (R9): high_watermark <= a majority's stable end <= end_offset; it never goes back; it moves only once
    it passes `epoch_start_offset`, because entries of earlier epochs are committed only by one of this epoch
    (Raft, figure 8).
    """

    __slots__ = ("end_offset", "epoch", "epoch_start_offset", "granting_voters", "high_watermark", "stable_ends")

    def __init__(self, epoch: int, end_offset: int, granting_voters: frozenset[ReplicaKey]) -> None:
        self.epoch = epoch
        self.epoch_start_offset = end_offset
        self.end_offset = end_offset
        self.granting_voters = granting_voters
        self.high_watermark: int | None = None
        self.stable_ends: dict[ReplicaKey, int] = {}

    def appended(self, end_offset: int) -> None:
        if end_offset < self.end_offset:
            raise AssertionError(f"a leader never truncates: {end_offset} < {self.end_offset}")
        self.end_offset = end_offset

    def stable(self, voter: ReplicaKey, end_offset: int) -> None:
        """Everything below `end_offset` is on this voter's stable storage."""
        if end_offset > self.end_offset:
            raise AssertionError(f"voter {voter.id} claims {end_offset} of {self.end_offset}")
        self.stable_ends[voter] = max(end_offset, self.stable_ends.get(voter, 0))

    def advance(self, voters: VoterSet) -> int | None:
        """The new high watermark, or None if it does not move."""
        reached = voters.majority_end_offset(self.stable_ends)
        if reached <= self.epoch_start_offset or (self.high_watermark or 0) >= reached:
            return None
        self.high_watermark = reached
        return reached


class Resigned:
    """Led in `epoch` and gave it up on purpose; commits nothing more."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


Role = Unattached | Candidate | Leader | Resigned
