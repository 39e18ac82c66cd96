"""The quorum itself: one fact goes in, one bundle of things to do comes out. No I/O, no clock.

The driver carries a bundle out in the order of its fields and reports each fact back when it is true:

    start() -> persist -> persisted(state) -> append -> appended(end) -> (fsync) -> synced(end) -> commit

Hard rules: nothing counts before it is reported (a vote not persisted is no vote, bytes not fsynced are no bytes); a
report of a past epoch changes nothing (R11).
"""

from typing import NamedTuple

from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.roles import Candidate, Leader, Resigned, Role, Unattached
from penstock.quorum.voters import VoterSet


class LeaderChange(NamedTuple):
    """The first entry of an epoch, written by its leader."""

    epoch: int
    leader: ReplicaKey
    voters: VoterSet
    granting_voters: frozenset[ReplicaKey]


class Bundle(NamedTuple):
    """What to do, in this order. What several voters say to each other will be a field behind these."""

    persist: ElectionState | None = None
    append: LeaderChange | None = None
    high_watermark: int | None = None


NOTHING = Bundle()


class Quorum:
    """One voter's view. `role` is what it is now, `epoch` the newest it has seen."""

    def __init__(
        self,
        local: ReplicaKey,
        voters: VoterSet,
        election: ElectionState,
        log_end_offset: int,
        log_last_epoch: int,
    ) -> None:
        if local not in voters:
            raise ValueError(f"node {local.id} is not a voter with this directory")
        self.local = local
        self.voters = voters
        self._end_offset = log_end_offset
        # The log may know a later epoch than a quorum-state file that was lost; epochs never go back (R2).
        self.role: Role = Unattached(max(election.epoch, log_last_epoch))

    @property
    def epoch(self) -> int:
        return self.role.epoch

    @property
    def leader(self) -> Leader | None:
        return self.role if isinstance(self.role, Leader) else None

    @property
    def high_watermark(self) -> int | None:
        """None until this voter knows what is committed."""
        return self.role.high_watermark if isinstance(self.role, Leader) else None

    def start(self) -> Bundle:
        """Begins an election: with one voter there is nobody to wait for."""
        if not isinstance(self.role, Unattached):
            raise AssertionError(f"started as {type(self.role).__name__}")
        return self._become_candidate(self.role.epoch + 1)

    def persisted(self, state: ElectionState) -> Bundle:
        """This election state is on stable storage."""
        role = self.role
        if not isinstance(role, Candidate) or state != role.election_state(self.local):
            return NOTHING
        role.grant(self.local)
        return self._become_leader(role) if role.is_elected(self.voters) else NOTHING

    def appended(self, epoch: int, end_offset: int) -> None:
        """The leader's log of `epoch` now ends here; nothing is durable yet."""
        if isinstance(self.role, Leader) and self.role.epoch == epoch:
            self.role.appended(end_offset)
            self._end_offset = end_offset

    def synced(self, epoch: int, end_offset: int) -> Bundle:
        """What `epoch`'s leader wrote below `end_offset` is on this node's stable storage."""
        if not isinstance(self.role, Leader) or self.role.epoch != epoch:
            return NOTHING
        self.role.stable(self.local, end_offset)
        return Bundle(high_watermark=self.role.advance(self.voters))

    def resign(self) -> Bundle:
        """Gives leadership up before the node stops; what is not committed by now stays open."""
        if isinstance(self.role, Leader):
            self.role = Resigned(self.role.epoch)
        return NOTHING

    def _become_candidate(self, epoch: int) -> Bundle:
        self.role = candidate = Candidate(epoch)
        return Bundle(persist=candidate.election_state(self.local))

    def _become_leader(self, candidate: Candidate) -> Bundle:
        granted = frozenset(candidate.granted)
        self.role = Leader(candidate.epoch, self._end_offset, granted)
        return Bundle(append=LeaderChange(candidate.epoch, self.local, self.voters, granted))
