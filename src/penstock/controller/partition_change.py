"""The next state of one partition: in-sync set, eligible leader replicas, leader, replicas.

A decision says what it wants (these replicas in sync, this broker gone, this reassignment), `build` makes the record
that gets there under the rules of `invariants`:

- C6: a clean leader is in the ISR, or in the ELR while the ISR is empty. An unclean one only where the settings or an
  operator allow it; then ISR = {leader}, ELR = {}, and the leader is RECOVERING until it says otherwise.
- C7: what leaves the ISR while fewer than min.insync.replicas remain is complete up to the high watermark and stays
  eligible. |ISR| >= min ISR empties the ELR.
- When ISR and ELR are both empty (every complete replica had an unclean restart), the last known leader, the first of
  `last_known_elr`, may lead again once it is back. It counts as an unclean election.
- Without the ELR feature the last member stays in the ISR while the partition has no leader (C4).
- C2: each change is one partition epoch; a leader, or a replica less, is one leader epoch.
"""

from enum import IntEnum

from penstock.controller.rules import Candidates
from penstock.metadata.partition import NO_LEADER, RECOVERED, RECOVERING, PartitionImage
from penstock.wire.generated.records_metadata import PartitionChangeRecord


class Election(IntEnum):
    """When the leader changes: only if it must; in favour of the first replica; or at any price."""

    NEEDED = 0
    PREFERRED = 1
    UNCLEAN = 2


class PartitionChange:
    """Set what shall be different, then `build`. `min_isr` and `elr` come from `Rules`."""

    __slots__ = (
        "_candidates",
        "_elr_enabled",
        "_unclean_allowed",
        "adding",
        "directories",
        "election",
        "elr",
        "isr",
        "last_known",
        "leader",
        "lost",
        "min_isr",
        "new_leader_epoch",
        "old",
        "recovery_state",
        "removing",
        "replicas",
        "unclean",
    )

    def __init__(
        self, old: PartitionImage, candidates: Candidates, min_isr: int, *, elr: bool, unclean: bool = False
    ) -> None:
        self.old = old
        self.replicas = old.replicas
        self.directories = old.directories
        self.isr = old.isr
        self.adding = old.adding_replicas
        self.removing = old.removing_replicas
        self.elr = old.eligible_leader_replicas
        self.last_known = old.last_known_elr
        self.leader = old.leader
        self.recovery_state = old.leader_recovery_state
        self.election = Election.NEEDED
        self.unclean: tuple[int, ...] = ()  # replicas that may have lost what they had: not eligible (C8)
        self.lost: tuple[int, ...] = ()  # replicas that have nothing left: not even a last resort
        self.new_leader_epoch = False
        self.min_isr = min_isr
        self._candidates = candidates
        self._elr_enabled = elr
        self._unclean_allowed = unclean

    def build(self, topic_id: bytes, number: int) -> PartitionChangeRecord | None:
        """The record, or None when nothing changes."""
        self._complete_reassignment()
        self._keep_within_replicas()
        self._settle_elr()
        self._elect()
        return self._record(topic_id, number)

    def remove_from_isr(self, broker_id: int) -> None:
        self.isr = tuple([replica for replica in self.isr if replica != broker_id])

    # --- reassignment ---------------------------------------------------------------------------------------

    def _complete_reassignment(self) -> None:
        """C10: done when every target replica is in sync; then those that were to go are gone."""
        if not self.adding and not self.removing:
            return
        targets = [replica for replica in self.replicas if replica not in self.removing]
        if not targets or not set(targets) <= set(self.isr):
            return
        self.set_replicas(tuple(targets))
        self.adding = self.removing = ()

    def set_replicas(self, replicas: tuple[int, ...]) -> None:
        """Replicas in a new order or number; each keeps its directory. New ones are given theirs by the caller."""
        directory_of = self.as_is().directory_of
        if self.directories:
            self.directories = tuple([directory_of(replica) for replica in replicas])
        self.replicas = replicas

    def as_is(self) -> PartitionImage:
        """The state as far as replicas and directories go."""
        if self.replicas is self.old.replicas and self.directories is self.old.directories:
            return self.old
        return self.old._replace(replicas=self.replicas, directories=self.directories)

    # --- eligible leader replicas ---------------------------------------------------------------------------

    def _keep_within_replicas(self) -> None:
        """Nothing outside the replicas is in sync or eligible; without ELR the last one in sync stays (C4)."""
        if self.replicas is not self.old.replicas:
            members = set(self.replicas)
            self.isr = tuple([replica for replica in self.isr if replica in members])
            self.elr = tuple([replica for replica in self.elr if replica in members])
            self.last_known = tuple([replica for replica in self.last_known if replica in members])
        if not self.isr and not self._elr_enabled:
            kept = [replica for replica in self.old.isr if replica in self.replicas and replica not in self.lost]
            self.isr = tuple(kept)

    def _settle_elr(self) -> None:
        if not self._elr_enabled:
            return
        if len(self.isr) >= min(self.min_isr, len(self.replicas)):
            self.elr = self.last_known = ()
            return
        gone = {*self.unclean, *self.lost}
        left = [r for r in (*self.elr, *self.old.isr) if r not in self.isr and r in self.replicas]
        self.elr = tuple(dict.fromkeys([replica for replica in left if replica not in gone]))
        self.last_known = self._last_known([r for r in (*self.last_known, *left) if r not in self.elr])

    def _last_known(self, candidates: list[int]) -> tuple[int, ...]:
        """Those that were complete before an unclean restart, behind the last leader, which may be eligible still.

        When the last leader's disk is gone there is no last resort: somebody has to say so.
        """
        leader = self.old.leader if self.old.leader != NO_LEADER else next(iter(self.old.last_known_elr), NO_LEADER)
        if leader in self.lost:
            return ()
        first = [leader] if leader in self.replicas and leader not in self.isr else []
        return tuple(dict.fromkeys([*first, *(r for r in candidates if r not in self.isr and r not in self.lost)]))

    # --- leader ---------------------------------------------------------------------------------------------

    def _elect(self) -> None:
        leader = self._clean_leader()
        if leader == NO_LEADER and self.isr and self._elr_enabled:
            # Those in sync are about to stop, and none of them leads: they stay eligible, beside the others.
            self.isr = ()
            self._settle_elr()
            leader = self._clean_leader()
        if leader == NO_LEADER:
            leader = self._unclean_leader()
            if leader != NO_LEADER:
                self.isr, self.elr, self.last_known = (leader,), (), ()
                self.recovery_state = RECOVERING
        else:
            self._take_in(leader)
        self.leader = leader

    def _take_in(self, leader: int) -> None:
        """A clean leader is in sync; who is eligible beside it need not be remembered as a last resort."""
        if leader not in self.isr:
            self.isr = (leader,)
            self.elr = tuple([replica for replica in self.elr if replica != leader])
        if not self._elr_enabled:
            return
        if len(self.isr) >= min(self.min_isr, len(self.replicas)):
            self.elr = self.last_known = ()
        self.last_known = tuple([r for r in self.last_known if r not in self.isr and r not in self.elr])

    def _clean_leader(self) -> int:
        can_lead, state = self._candidates.can_lead, self.as_is()
        current = self.old.leader
        if self.election == Election.PREFERRED and self.replicas[0] in self.isr:
            current = self.replicas[0] if can_lead(self.replicas[0], state) else current
        if current in self.isr and can_lead(current, state):
            return current
        for eligible in (self.isr,) if self.isr else (self.elr,):
            for replica in self._by_preference():
                if replica in eligible and can_lead(replica, state):
                    return replica
        stays = current in self.isr and self._candidates.can_stay(current, state)
        return current if stays else NO_LEADER

    def _unclean_leader(self) -> int:
        state = self.as_is()
        if self._unclean_allowed or self.election == Election.UNCLEAN:
            # A replica that comes is the last choice: what it has it began to copy when the others had it all.
            known_first = sorted(self._by_preference(), key=lambda replica: replica in self.adding)
            options = dict.fromkeys((*self.last_known, *known_first))
        elif self._elr_enabled and not self.isr and not self.elr:
            options = dict.fromkeys(self.last_known[:1])
        else:
            return NO_LEADER
        return next((replica for replica in options if self._candidates.can_lead(replica, state)), NO_LEADER)

    def _by_preference(self) -> tuple[int, ...]:
        """Replicas in order; those about to be removed come last."""
        if not self.removing:
            return self.replicas
        return tuple(sorted(self.replicas, key=lambda replica: replica in self.removing))

    # --- record ---------------------------------------------------------------------------------------------

    def _record(self, topic_id: bytes, number: int) -> PartitionChangeRecord | None:
        old = self.old
        record = PartitionChangeRecord(number, topic_id)
        changed = False
        fewer = self.replicas is not old.replicas and not set(old.replicas) <= set(self.replicas)
        if self.leader != old.leader or self.new_leader_epoch or fewer:
            record.leader = self.leader
            changed = True
        for name, new, before in (
            ("isr", self.isr, old.isr),
            ("replicas", self.replicas, old.replicas),
            ("directories", self.directories, old.directories),
            ("adding_replicas", self.adding, old.adding_replicas),
            ("removing_replicas", self.removing, old.removing_replicas),
            ("eligible_leader_replicas", self.elr, old.eligible_leader_replicas),
            ("last_known_elr", self.last_known, old.last_known_elr),
        ):
            if new != before:
                setattr(record, name, list(new))
                changed = True
        if self.recovery_state != old.leader_recovery_state:
            record.leader_recovery_state = self.recovery_state
            changed = True
        return record if changed else None


__all__ = ["NO_LEADER", "RECOVERED", "RECOVERING", "Election", "PartitionChange"]
