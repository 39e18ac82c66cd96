"""What a leader knows of its replicas in one leader epoch: how far each has come, and who is in sync.

Pure: no log, no clock, no network. Hard rules:
- The in-sync set that counts for the watermark is the *maximal* one: what the controller committed, joined with what
  was proposed to it for as long as the answer is not known (P3). A time-out is no answer.
- A replica counts with what it has fetched in this leader epoch, never with what it had before (P4).
- Nothing is proposed while a proposal is out (P5), and an answer to another proposal changes nothing.
- What was accepted counts when committed metadata says so, not before: it carries the settings of its time along.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.metadata.partition import RECOVERING, PartitionImage
from penstock.model.errors import ErrorCode

UNKNOWN_OFFSET = -1
NO_BROKER_EPOCH = -1
_YOUNG_MS = 30_000  # what clients wait for an answer by default

# Whether the broker with this id may join the in-sync set in this incarnation and from this directory: registered
# with just this broker epoch, unfenced, not shutting down, the replica in order.
Eligible = Callable[[int, int, bytes], bool]

# The controller is ahead of this leader: committed metadata will tell what holds. Until then the union counts, also
# after a refusal: another copy of the proposal may be on its way, and only a newer partition epoch makes it void.
_WAIT_FOR_METADATA = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class IsrProposal(NamedTuple):
    """A change of the in-sync set that the controller is asked for. However late it is sent, or again, it is for the
    incarnation that had caught up: the one after may lack what that one had."""

    isr: frozenset[int]
    leader_epoch: int
    partition_epoch: int
    joining: int = -1
    joining_epoch: int = NO_BROKER_EPOCH


class IsrAnswer(NamedTuple):
    error: ErrorCode
    leader_epoch: int = -1
    partition_epoch: int = -1


class ReplicaProgress:
    """How far one follower has come, as its fetches in this leader epoch tell."""

    __slots__ = (
        "broker_epoch",
        "directory",
        "end_offset",
        "known_since_ms",
        "lacks_room",
        "last_caught_up_ms",
        "last_fetch_end_offset",
        "last_fetch_ms",
        "log_start_offset",
        "repeats",
    )

    def __init__(self, directory: bytes, is_in_sync: bool, now_ms: int) -> None:
        self.directory = directory
        self.known_since_ms = now_ms  # when this leader took over, or the replica came to be
        self.end_offset = UNKNOWN_OFFSET  # unknown until the first fetch in this leader epoch
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = NO_BROKER_EPOCH
        self.last_caught_up_ms = now_ms if is_in_sync else -1
        self.last_fetch_ms = -1
        self.last_fetch_end_offset = 0  # where the leader ended at the last fetch
        self.lacks_room = False  # it says that its disk cannot take what is there for it
        self.repeats = 0  # fetches in a row that asked for what was there to be had the last time

    def note_fetch(self, offset: int, log_start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        was_served = offset == self.end_offset < self.last_fetch_end_offset
        self.repeats = self.repeats + 1 if was_served else 0
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.last_fetch_end_offset and self.last_fetch_ms >= 0:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.log_start_offset = log_start_offset
        self.last_fetch_ms = now_ms
        self.last_fetch_end_offset = leader_end_offset

    def behind_ms(self, now_ms: int) -> int:
        """Since when it has not had all there was; one that never had since it is known here."""
        return max(0, now_ms - max(self.last_caught_up_ms, self.known_since_ms))

    def is_caught_up(self, leader_end_offset: int, now_ms: int, lag_max_ms: int) -> bool:
        if self.end_offset == leader_end_offset:
            return True
        if self.lacks_room:
            return False  # nobody knows for how long: waiting for it is no use
        return self.last_caught_up_ms >= 0 and now_ms - self.last_caught_up_ms <= lag_max_ms


class LeaderState:
    """One leadership of one partition that has other replicas. Offsets are handed in; time is an argument."""

    __slots__ = (
        "_eligible",
        "_lag_max_ms",
        "_now_ms",
        "_since_ms",
        "broker_id",
        "epoch_start_offset",
        "is_recovering",
        "isr",
        "leader_epoch",
        "maximal_isr",
        "min_isr",
        "partition_epoch",
        "pending",
        "progress",
        "replicas",
    )

    def __init__(
        self,
        broker_id: int,
        state: PartitionImage,
        epoch_start_offset: int,
        min_isr: int,
        lag_max_ms: int,
        eligible: Eligible,
        now_ms: int,
    ) -> None:
        self.broker_id = broker_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.isr = frozenset(state.isr)
        self.is_recovering = state.leader_recovery_state == RECOVERING
        """Elected uncleanly: the controller is to be told first that this log is all there is now."""
        self.pending: IsrProposal | None = None
        self.maximal_isr = self.isr
        """Always `isr` joined with the pending proposal's."""
        self.epoch_start_offset = epoch_start_offset
        """Where the log ended when this leadership began: everything committed before lies below it (P6)."""
        self.min_isr = min_isr
        self.progress: dict[int, ReplicaProgress] = {}
        self._eligible = eligible
        self._lag_max_ms = lag_max_ms
        self._now_ms = self._since_ms = now_ms
        self._follow_replicas(state, now_ms)

    @property
    def is_young(self) -> bool:
        """Whether requests to the leader before this one may still be unanswered, as clients see it."""
        return self._now_ms - self._since_ms < _YOUNG_MS

    # -- committed metadata ---------------------------------------------------------------------------------------

    def follow(self, state: PartitionImage, now_ms: int) -> bool:
        """Takes over newer committed state of the same leadership; whatever was proposed is void with it."""
        self._now_ms = now_ms
        if state.leader_epoch != self.leader_epoch or state.partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.is_recovering = state.leader_recovery_state == RECOVERING
        self._commit(frozenset(state.isr))
        self._follow_replicas(state, now_ms)
        return True

    def _follow_replicas(self, state: PartitionImage, now_ms: int) -> None:
        """A replica that was removed and comes back, or lives in another directory, is a new one (P17)."""
        known, self.progress = self.progress, {}
        for replica in state.replicas:
            if replica == self.broker_id:
                continue
            directory = state.directory_of(replica)
            progress = known.get(replica)
            if progress is None or progress.directory != directory:
                progress = ReplicaProgress(directory, replica in self.isr, now_ms)
            self.progress[replica] = progress

    def _commit(self, isr: frozenset[int]) -> None:
        self.isr = self.maximal_isr = isr
        self.pending = None

    # -- fetches of followers -------------------------------------------------------------------------------------

    def note_fetch(
        self,
        replica_id: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> ErrorCode:
        """A follower has everything below `offset`. Call it only where its log and the leader's agree up to there."""
        progress = self.progress.get(replica_id)
        if progress is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if broker_epoch < progress.broker_epoch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER  # an incarnation that is over, or was never registered
        if broker_epoch != progress.broker_epoch:
            # Another incarnation: what the one before had fetched says nothing of it.
            progress.last_fetch_ms = -1
            progress.broker_epoch = broker_epoch
        self._now_ms = now_ms
        progress.note_fetch(offset, log_start_offset, leader_end_offset, now_ms)
        return ErrorCode.NONE

    def is_cut_off(self, now_ms: int, silence_ms: int) -> bool:
        """Whether a member of the in-sync set was not heard of for so long: nothing can be committed here."""
        return any(
            now_ms - max(progress.last_fetch_ms, progress.last_caught_up_ms) > silence_ms
            for replica, progress in self.progress.items()
            if replica in self.isr
        )

    # -- the watermark --------------------------------------------------------------------------------------------

    @property
    def effective_min_isr(self) -> int:
        """No more can be asked for than there are replicas."""
        return min(self.min_isr, len(self.replicas))

    @property
    def is_under_min_isr(self) -> bool:
        return len(self.isr) < self.effective_min_isr

    def high_watermark(self, current: int, counted_end_offset: int, end_offset: int) -> int:
        """The watermark after what is known now; never below `current`. (P4)"""
        if len(self.isr) < self.effective_min_isr:
            return current
        watermark = counted_end_offset
        maximal_isr = self.maximal_isr
        for replica, progress in self.progress.items():
            if progress.end_offset < watermark and (
                replica in maximal_isr or self._is_joining(replica, progress, end_offset)
            ):
                watermark = progress.end_offset
        return max(current, watermark)

    def _is_joining(self, replica: int, progress: ReplicaProgress, end_offset: int) -> bool:
        """About to join: the watermark waits for it, or it would run after it for ever. Not for one that may not."""
        return (
            progress.end_offset >= 0
            and progress.is_caught_up(end_offset, self._now_ms, self._lag_max_ms)
            and self._eligible(replica, progress.broker_epoch, progress.directory)
        )

    # -- changing the in-sync set ---------------------------------------------------------------------------------

    def plan_expand(self, replica_id: int, high_watermark: int, log_start_offset: int) -> IsrProposal | None:
        """What to propose so that this follower joins; None when it may not or must wait. (P5)

        What lies below the leader's start must be gone: the leader has forgotten the epochs of it, so nobody could
        tell whether it is what was once committed there.
        """
        progress = self.progress.get(replica_id)
        if progress is None or replica_id in self.maximal_isr or self.pending is not None or self.is_recovering:
            return None
        if progress.end_offset < high_watermark or progress.end_offset < self.epoch_start_offset:
            return None
        if progress.log_start_offset < log_start_offset:
            return None
        if progress.lacks_room or not self._eligible(replica_id, progress.broker_epoch, progress.directory):
            return None
        return self._propose(self.isr | {replica_id}, replica_id, progress.broker_epoch)

    def plan_shrink(self, end_offset: int, now_ms: int) -> IsrProposal | None:
        """What to propose so that followers that stay behind leave; None when there are none or it must wait."""
        self._now_ms = now_ms
        if self.pending is not None:
            return None
        behind = {
            replica
            for replica in self.isr
            if replica != self.broker_id
            and (progress := self.progress.get(replica)) is not None
            and not progress.is_caught_up(end_offset, now_ms, self._lag_max_ms)
        }
        return self._propose(self.isr - behind) if behind else None

    def plan_recovered(self) -> IsrProposal | None:
        """After an unclean election: the same in-sync set, this leader alone, now recovered."""
        return self._propose(self.isr) if self.is_recovering and self.pending is None else None

    def _propose(self, isr: frozenset[int], joining: int = -1, joining_epoch: int = NO_BROKER_EPOCH) -> IsrProposal:
        self.pending = IsrProposal(isr, self.leader_epoch, self.partition_epoch, joining, joining_epoch)
        self.maximal_isr = self.isr | isr
        return self.pending

    def answered(self, proposal: IsrProposal, answer: IsrAnswer) -> bool:
        """The controller answered. True: send the proposal again. The watermark may move then (KAFKA-13091).

        Committed metadata may have overtaken the answer; then it changes nothing.
        """
        if self.pending is not proposal:
            return False
        if answer.error is ErrorCode.NONE:
            unchanged = (answer.leader_epoch, answer.partition_epoch) == (self.leader_epoch, self.partition_epoch)
            if unchanged:  # it was so already
                self._commit(self.isr)
            return False
        return answer.error not in _WAIT_FOR_METADATA
