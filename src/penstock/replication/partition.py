"""One partition as this broker holds it: leader or follower, its watermark, who waits for it, who reads it.

A record is committed once it lies below the high watermark. A leader alone passes what it counts itself; one with
other replicas asks its `LeaderState`. In `flush.mode=ack` a replica counts what is fsynced, in the other modes what
is written; a follower's place in its leader's log is such a count too. Roles come from committed metadata only.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.log.appending import AppendResult
from penstock.log.partition_log import PartitionLog
from penstock.metadata.image import INTERNAL_TOPICS
from penstock.metadata.partition import NO_LEADER, PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.net.file_threads import FileRange
from penstock.records.markers import EndMarker, build_end_marker
from penstock.replication.follower_state import (
    IGNORE,
    Fetched,
    FetchPosition,
    FollowerState,
    Kind,
    Step,
    decide_step,
    diverges,
)
from penstock.replication.leader_state import Eligible, IsrAnswer, IsrProposal, LeaderState
from penstock.replication.read_plan import FetchPlan, Watcher
from penstock.replication.verification import Question, Verifications
from penstock.replication.waiters import CommitCallback, Waiter, Waiters

__all__ = ["CommitCallback", "FetchPlan", "LeaderRules", "Partition", "Waiter", "Watcher"]

# How often a follower asks in vain before its leader looks at its own log.
_SUSPICIOUS = frozenset({3, 30, 300})

_NOT_ENOUGH = Refusal(
    ErrorCode.NOT_ENOUGH_REPLICAS, "fewer replicas are in sync than min.insync.replicas asks for; nothing was written"
)
_INTERNAL = Refusal(
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    "coordinators keep their state in this topic and alone write to it; nothing was written",
)
_EARLIER_ON_ITS_WAY = Refusal(
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "this leader is new, and earlier batches of this producer may still be on their way here; nothing was written",
)


class LeaderRules(NamedTuple):
    """What a leader goes by besides the log and the image."""

    broker_id: int
    min_isr: int
    lag_max_ms: int
    eligible: Eligible
    on_isr_change: Callable[["Partition", IsrProposal], None]
    """A change of the in-sync set is to be proposed to the controller."""
    on_stuck: Callable[["Partition", int], None] = lambda *_: None
    """A follower asks for the same offset over and over."""


class Partition:
    """Changed only on the event loop."""

    __slots__ = (
        "_commit_waiters",
        "_end_watchers",
        "_rules",
        "_verifications",
        "_watchers",
        "_written_waiters",
        "follower",
        "high_watermark",
        "index",
        "is_internal",
        "leader_epoch",
        "leader_state",
        "log",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, index: int, topic_id: bytes, log: PartitionLog, leader_epoch: int, *, alone: bool = True
    ) -> None:
        """Leads where it is `alone`; otherwise it follows nobody until it is told whom, or to lead."""
        self.topic = topic
        self.is_internal = topic in INTERNAL_TOPICS
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        self.leader_state: LeaderState | None = None
        """None for a follower, and for a leader that is the only replica."""
        self.follower: FollowerState | None = None if alone else FollowerState(NO_LEADER, leader_epoch)
        # Never above what the log holds, never below what a consumer has seen.
        self.high_watermark = max(log.counted_end_offset if alone else log.high_watermark, log.log_start_offset)
        self._rules: LeaderRules | None = None
        self._commit_waiters = Waiters()
        self._written_waiters = Waiters()
        self._watchers: dict[Watcher, None] = {}
        self._end_watchers: dict[Watcher, None] = {}  # followers: they read to the end of the log
        self._verifications: Verifications | None = None
        log.on_synced = self._synced
        self._request_sync()

    # -- roles --------------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.follower is None

    def become_leader(self, state: PartitionImage, rules: LeaderRules, now_ms: int) -> None:
        """Committed metadata says so: a new leadership, or news of the one under way. Whoever waits goes on waiting:
        a leader never cuts its log, so what is in it is committed in this epoch or a later one of this broker."""
        log = self.log
        self.follower = None
        self._rules = rules
        self.leader_epoch = state.leader_epoch
        known = self.leader_state
        if state.replicas == (rules.broker_id,):
            self.leader_state = None
        elif known is not None and known.leader_epoch == state.leader_epoch:
            known.min_isr = rules.min_isr
            known.follow(state, now_ms)
        else:
            epochs = log.leader_epochs
            epochs.assign(state.leader_epoch, log.end_offset)  # followers ask where older epochs ended
            start = epochs.start_offset(state.leader_epoch)
            self.leader_state = LeaderState(
                rules.broker_id, state, start, rules.min_isr, rules.lag_max_ms, rules.eligible, now_ms
            )
        self._written()
        self._propose(self.leader_state.plan_recovered() if self.leader_state is not None else None)
        self._wake_all()

    def become_follower(self, leader_id: int, leader_epoch: int) -> None:
        """Whoever waits for a commit is told that it will not come from here (P18); the log is not touched yet."""
        known = self.follower
        if known is not None and (known.leader_id, known.leader_epoch) == (leader_id, leader_epoch):
            return
        self.leader_state = None
        self.leader_epoch = leader_epoch
        self.follower = FollowerState(leader_id, leader_epoch)
        self.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def set_min_isr(self, min_isr: int) -> None:
        if self.leader_state is not None:
            self.leader_state.min_isr = min_isr
            self._written()

    def resign(self, error: ErrorCode) -> None:
        """This broker leads the partition no longer: whoever waits is told so."""
        self._verifications = None  # another leader may write the marker
        waiters = [*self._commit_waiters, *self._written_waiters]
        self._commit_waiters.clear()
        self._written_waiters.clear()
        for waiter in waiters:
            waiter.callback(error)
        self._wake_all()

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, batches: bytearray | memoryview, now_ms: int, acks: int = -1) -> AppendResult | Refusal:
        """Appends a producer's batch. It is committed when `when_committed` says so, or at once."""
        state = self.leader_state
        if self.is_internal:
            return _INTERNAL
        if state is not None and acks == -1 and state.is_under_min_isr:
            return _NOT_ENOUGH
        result = self.log.append_as_leader(batches, self.leader_epoch, now_ms)
        if isinstance(result, AppendResult):
            self._written()
            if self._end_watchers:
                self._wake_end_watchers()
        elif state is not None and state.is_young and result.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return _EARLIER_ON_ITS_WAY  # decision 4: a new epoch of the producer could write records twice
        return result

    def append_own(self, batch: bytearray, now_ms: int) -> AppendResult | Refusal:
        """Appends a batch that this broker made itself: coordinator state, markers. As with acks=all."""
        if self.leader_state is not None and self.leader_state.is_under_min_isr:
            return _NOT_ENOUGH
        result = self.log.append_as_leader(batch, self.leader_epoch, now_ms, origin="coordinator")
        if isinstance(result, AppendResult):
            self._written()
            self._wake_end_watchers()
        return result

    def when_committed(self, end_offset: int, callback: CommitCallback) -> Waiter | None:
        """Calls back once, on the loop: NONE when all below `end_offset` is committed, or why it never will be.
        Whoever may give up before gets what to cancel; None: it was called already."""
        if end_offset > self.high_watermark:
            return Waiter(self._commit_waiters, end_offset, callback)
        callback(self._commit_error())
        return None

    def when_written(self, end_offset: int, callback: CommitCallback) -> Waiter | None:
        """As `when_committed`, once this replica alone counts it: what acks=1 waits for."""
        if end_offset > self.log.counted_end_offset:
            return Waiter(self._written_waiters, end_offset, callback)
        callback(ErrorCode.NONE)
        return None

    def is_written(self, end_offset: int, acks: int) -> bool:
        """Whether a producer with these acks, which is not above the watermark, need not wait."""
        return acks != -1 and self.leader_state is not None and end_offset <= self.log.counted_end_offset

    def _commit_error(self) -> ErrorCode:
        state = self.leader_state
        if state is not None and state.is_under_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # -- transactions -------------------------------------------------------------------------------------------

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether records of a transaction of this producer are here and undecided: then more may follow unasked."""
        entry = self.log.producers.get(producer_id)
        return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch

    def begin_verification(self, producer_id: int) -> Question:
        """The coordinator is being asked whether this producer's transaction includes this partition. The question
        is to be kept until the answer is there."""
        if self._verifications is None:
            self._verifications = Verifications()
        return self._verifications.begin(producer_id)

    def is_verified(self, producer_id: int, question: Question | None) -> bool:
        """Whether the answer to this question still counts. Without a question there is none."""
        asked = self._verifications
        return asked is not None and question is not None and asked.is_open(producer_id, question)

    def write_marker(self, marker: EndMarker, now_ms: int) -> AppendResult | Refusal:
        """Ends a transaction in this partition: readers see its records, or skip them, once this is committed.

        A marker may come late, so whether it is still wanted is judged here, where nothing comes in between.
        """
        producer_id, producer_epoch, coordinator_epoch, commit, _ = marker
        if marker.carries_next_epoch and self.has_open_transaction(producer_id, producer_epoch):
            text = f"producer {producer_id} is in its next transaction already, with epoch {producer_epoch}"
            return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        if self._verifications is not None:
            self._verifications.marker_written(producer_id)
        entry = self.log.producers.get(producer_id)
        if entry is not None and entry.producer_epoch > producer_epoch:
            text = f"producer {producer_id} has epoch {entry.producer_epoch} here, the marker has {producer_epoch}"
            return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, text)
        if entry is not None and entry.coordinator_epoch > coordinator_epoch:
            text = f"a coordinator of epoch {entry.coordinator_epoch} wrote here, the marker has {coordinator_epoch}"
            return Refusal(ErrorCode.TRANSACTION_COORDINATOR_FENCED, text)
        batch = build_end_marker(producer_id, producer_epoch, coordinator_epoch, commit, now_ms)
        return self.append_own(batch, now_ms)

    # -- the watermark ------------------------------------------------------------------------------------------

    def _written(self) -> None:
        """This replica counts more than before, or others do."""
        counted = self.log.counted_end_offset
        state = self.leader_state
        if state is not None:
            watermark = state.high_watermark(self.high_watermark, counted, self.log.end_offset)
        elif self.follower is None:
            watermark = counted
        else:
            watermark = self.high_watermark  # a follower's is its leader's to tell
        if watermark > self.high_watermark:
            self._advance(watermark)
        waiters = self._written_waiters
        while waiters and waiters[0].end_offset <= counted:
            waiters.popleft().callback(ErrorCode.NONE)

    def _synced(self, synced_end_offset: int) -> None:
        self._written()

    def _advance(self, high_watermark: int) -> None:
        log = self.log
        self.high_watermark = log.high_watermark = high_watermark
        log.producers.on_high_watermark(high_watermark)
        waiters = self._commit_waiters
        if waiters and waiters[0].end_offset <= high_watermark:
            error = self._commit_error()
            while waiters and waiters[0].end_offset <= high_watermark:
                waiters.popleft().callback(error)
        if self._watchers:
            self.wake_watchers()

    def wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    def _wake_end_watchers(self) -> None:
        for watcher in self._end_watchers:
            watcher.wake()

    def _wake_all(self) -> None:
        self.wake_watchers()
        self._wake_end_watchers()

    def _request_sync(self) -> None:
        """What is on disk counts once it is known to stay there: after a crash, and after a cut."""
        log = self.log
        if log.counted_end_offset < log.end_offset and log.directory.commit is not None:
            log.directory.commit.request(log)

    # -- leading replicas -----------------------------------------------------------------------------------------

    def note_replica_fetch(
        self,
        replica_id: int,
        broker_epoch: int,
        position: FetchPosition,
        log_start_offset: int,
        now_ms: int,
        lacks_room: bool = False,
    ) -> bool:
        """A follower asks for what follows `position`, so it has what comes before; True if that is all there is.
        Nothing counts unless it is in this leader epoch and its log a prefix of this one. Without room it leaves the
        in-sync set now."""
        state, log, end_offset = self.leader_state, self.log, self.log.end_offset
        if state is None or position.leader_epoch != self.leader_epoch:
            return False
        if not log.log_start_offset <= position.offset <= end_offset:
            return False
        if diverges(log.leader_epochs, end_offset, position.offset, position.last_epoch) is not None:
            return False
        known = state.progress.get(replica_id)
        starts_later = known is not None and log_start_offset > known.log_start_offset
        if state.note_fetch(replica_id, broker_epoch, position.offset, log_start_offset, end_offset, now_ms):
            return False
        state.progress[replica_id].lacks_room = lacks_room
        if known is not None and known.repeats in _SUSPICIOUS and self._rules is not None:
            self._rules.on_stuck(self, position.offset)
        self._written()
        if starts_later and self._end_watchers:
            self._wake_end_watchers()  # somebody may wait for the low watermark
        if replica_id not in state.maximal_isr:
            self._propose(state.plan_expand(replica_id, self.high_watermark, log.log_start_offset))
        elif lacks_room:
            self._propose(state.plan_shrink(end_offset, now_ms))
        return position.offset == log.end_offset  # which may have grown: whoever waited for the watermark writes too

    def shrink_isr(self, now_ms: int) -> None:
        """Called by the clock: followers that stay behind for too long leave the in-sync set."""
        state = self.leader_state
        if state is not None:
            self._propose(state.plan_recovered() or state.plan_shrink(self.log.end_offset, now_ms))

    def _propose(self, proposal: IsrProposal | None) -> None:
        if proposal is not None and self._rules is not None:
            self._rules.on_isr_change(self, proposal)

    def isr_answered(self, proposal: IsrProposal, answer: IsrAnswer) -> bool:
        """The controller answered a proposal; True: it is to be sent again."""
        state = self.leader_state
        if state is None:
            return False
        again = state.answered(proposal, answer)
        self._written()
        return again

    def low_watermark(self, counts: Callable[[int], bool]) -> int:
        """Below this no replica holds anything; only followers that `counts` accepts are looked at."""
        low = self.log.log_start_offset
        state = self.leader_state
        if state is not None:
            starts = [p.log_start_offset for replica, p in state.progress.items() if counts(replica)]
            low = min([low, *starts])
        return low

    # -- following ------------------------------------------------------------------------------------------------

    def position(self) -> FetchPosition | None:
        """Where to go on fetching; None while bytes wait for their fsync: what is asked for says what is counted."""
        follower, log = self.follower, self.log
        if follower is None or log.counted_end_offset != log.end_offset:
            return None
        return FetchPosition(follower.leader_epoch, log.end_offset, log.leader_epochs.latest)

    def stalled_position(self) -> FetchPosition | None:
        """Where a follower stands whose disk has no room to make what it wrote durable; no answer moves it on."""
        follower, log = self.follower, self.log
        if follower is None or not log.lacks_room:
            return None
        counted = max(log.counted_end_offset, log.log_start_offset)  # nothing before the start is missing
        return FetchPosition(follower.leader_epoch, counted, log.leader_epochs.epoch_at(counted - 1))

    @property
    def lacks_room(self) -> bool:
        """Whether the disk kept this follower from taking what its leader has, or from writing down where it is."""
        follower, log = self.follower, self.log
        if follower is None:
            return False
        # The last is `_has_no_beginning`, without the call: it is asked for with every fetch.
        return follower.lacks_room or log.lacks_room or (log.active is None and log.end_offset > 0)

    @property
    def _has_no_beginning(self) -> bool:
        """The log is to begin at an offset above 0, and found no room for the file that alone tells it: after a loss
        of power nobody would know where it ends, and it could lead from offset 0. The log says so, whoever leads."""
        return self.log.active is None and self.log.end_offset > 0

    def apply_fetched(self, asked: FetchPosition, fetched: Fetched, now_ms: int) -> Step | Refusal:
        """Carries out what an answer of the leader asks for. A refusal: the log could not do it."""
        follower, here, log = self.follower, self.position(), self.log
        if follower is None or here is None:
            return IGNORE
        step = decide_step(asked, here, log.end_offset, log.leader_epochs, fetched)
        kind = step.kind
        refusal: Refusal | None
        if kind is Kind.APPEND:
            if len(fetched.records):
                result = log.append_as_follower(fetched.records, follower.leader_epoch)
                refusal = result if isinstance(result, Refusal) else None
            elif self._has_no_beginning:
                refusal = self._begin_anew(log.end_offset)
            else:  # nothing came that could find room or none
                self._follow_leader(follower, fetched, now_ms)
                return step
            if refusal is None:
                self._follow_leader(follower, fetched, now_ms)
        elif kind is Kind.TRUNCATE:
            refusal = self._cut(step.offset)
        elif kind is Kind.RESTART:
            refusal = self._begin_anew(step.offset)
        else:
            return step
        follower.lacks_room = refusal is not None and refusal.code is ErrorCode.KAFKA_STORAGE_ERROR
        return refusal or step

    def _cut(self, offset: int) -> Refusal | None:
        """Only after an unclean election does this reach below the watermark."""
        refusal = self.log.truncate_to(offset)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        self._request_sync()
        return refusal

    def _begin_anew(self, offset: int) -> Refusal | None:
        """Refuses, as `lacks_room` does, until there is a first file where one is needed. An empty log needs none."""
        log = self.log
        refusal = log.truncate_full_and_start_at(offset)
        if refusal is None:  # nothing is left that an older one could speak of (KAFKA-9491)
            self.high_watermark = log.high_watermark
            if self._has_no_beginning:
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left on the disk to begin {log.name} anew")
        return refusal

    def _follow_leader(self, follower: FollowerState, fetched: Fetched, now_ms: int) -> None:
        log = self.log
        watermark = min(fetched.high_watermark, log.end_offset)
        if watermark > self.high_watermark:
            self._advance(watermark)
        if fetched.log_start_offset > log.log_start_offset:
            log.delete_records_before(min(fetched.log_start_offset, self.high_watermark))
        follower.leader_end_offset = max(fetched.high_watermark, log.end_offset)
        if fetched.high_watermark <= log.end_offset:
            follower.caught_up_ms = now_ms

    # -- reading ------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def watch_end(self, watcher: Watcher) -> None:
        """For followers: woken with every append, not only when the watermark moves."""
        self._end_watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
        self._end_watchers.pop(watcher, None)

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Fences requests that carry the epoch of another leadership; -1 carries none. (KIP-320)"""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    @property
    def watermark_is_settled(self) -> bool:
        """False at the start of a leadership: readers may have seen a newer watermark than this one. (P6)"""
        return self.leader_state is None or self.high_watermark >= self.leader_state.epoch_start_offset

    def plan_fetch(
        self, offset: int, max_bytes: int, current_leader_epoch: int, read_committed: bool, must_yield: bool
    ) -> FetchPlan:
        """What a consumer at `offset` may read now; `must_yield` gives one batch even if it is above `max_bytes`."""
        log = self.log
        high_watermark = self.high_watermark
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            return FetchPlan(self.check_epoch(current_leader_epoch), -1, -1, -1, None)
        if offset > high_watermark and self._is_ahead_of_us(offset):
            return FetchPlan(ErrorCode.OFFSET_NOT_AVAILABLE, -1, -1, -1, None)
        stable = log.last_stable_offset(high_watermark)
        if max_bytes <= 0 and not must_yield:
            return FetchPlan(ErrorCode.NONE, high_watermark, stable, log.log_start_offset, None)
        span = log.read(offset, max_bytes, stable if read_committed else high_watermark, must_yield)
        if isinstance(span, ErrorCode):
            return FetchPlan(span, high_watermark, stable, log.log_start_offset, None)
        data = FileRange(span.file, span.position, span.length) if span.length else None
        aborted = log.aborted_transactions(offset, stable) if read_committed and data is not None else None
        return FetchPlan(ErrorCode.NONE, high_watermark, stable, log.log_start_offset, data, aborted)

    def _is_ahead_of_us(self, offset: int) -> bool:
        """Whether a consumer may rightly be past this replica's watermark, having read from another one."""
        if self.follower is not None:
            return True
        return not self.watermark_is_settled and offset <= self.log.end_offset

    def plan_replica_fetch(
        self, replica_id: int, position: FetchPosition, max_bytes: int, must_yield: bool
    ) -> FetchPlan:
        """What a follower may read now: everything, or where its log parts ways with this one."""
        log, state = self.log, self.leader_state
        error = self.check_epoch(position.leader_epoch)
        if error or self.follower is not None or state is None or replica_id not in state.progress:
            return FetchPlan(error or ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1, -1, None)
        watermark, start = self.high_watermark, log.log_start_offset
        diverging = diverges(log.leader_epochs, log.end_offset, position.offset, position.last_epoch)
        if diverging is not None:
            return FetchPlan(ErrorCode.NONE, watermark, -1, start, None, diverging=diverging)
        if max_bytes <= 0 and not must_yield:
            return FetchPlan(ErrorCode.NONE, watermark, -1, start, None)
        span = log.read(position.offset, max_bytes, log.end_offset, must_yield)
        if isinstance(span, ErrorCode):
            return FetchPlan(span, watermark, -1, start, None)
        data = FileRange(span.file, span.position, span.length) if span.length else None
        return FetchPlan(ErrorCode.NONE, watermark, -1, start, data)

    def delete_records_before(self, offset: int) -> Refusal | None:
        """Moves the log start offset; -1 means the high watermark. Uncommitted records stay."""
        if offset == -1:
            offset = self.high_watermark
        if offset > self.high_watermark:
            text = f"offset {offset} is above the high watermark {self.high_watermark} of {self.topic}-{self.index}"
            return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        return self.log.delete_records_before(offset)
