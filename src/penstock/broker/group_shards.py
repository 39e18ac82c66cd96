"""One led shard: appends what it decides, replays it, and answers when it is committed.

The rule that makes answers true (P18): an answer is given when everything that was appended before it is committed,
in the leader epoch it was appended in. It covers also answers that write nothing but may tell of something written a
moment ago. Heartbeats alone are exempt; they tell of nothing that could be lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.coordinator_batches import encode_batches
from penstock.broker.group_partition import CoordinatorPartition
from penstock.groups.decision import Answer, Decision, GroupRecord, Job, Now
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.markers import EndMarker

# What a refused or lost append means to a group's client. (As Kafka maps them.)
_COORDINATOR_ERRORS = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def coordinator_error(error: ErrorCode) -> ErrorCode:
    return _COORDINATOR_ERRORS.get(error, error)


class _Held(NamedTuple):
    """Answers that wait for the log to be committed up to `end_offset`."""

    end_offset: int
    deadline_ms: int
    answers: Sequence[Answer]


class LedShard:
    """Waiters are futures. Changed only on the loop; of no use any more once closed."""

    __slots__ = (
        "_appended_end",
        "_committed_end",
        "_held",
        "_is_watching",
        "_on_lost",
        "_partition",
        "_start_job",
        "_timeout_ms",
        "closed",
        "shard",
    )

    def __init__(
        self,
        shard: GroupShard,
        partition: CoordinatorPartition,
        commit_timeout_ms: int,
        on_lost: Callable[[ErrorCode], None],
        start_job: Callable[["LedShard", Job], None],
    ) -> None:
        """`on_lost`: appended records will never be committed, so the shard's state is ahead of the log.

        `start_job` is to call `finish_job` when the job has run.
        """
        self.shard = shard
        self.closed = False
        self._partition = partition
        self._timeout_ms = commit_timeout_ms
        self._on_lost = on_lost
        self._start_job = start_job
        self._held: deque[_Held] = deque()  # end offsets and deadlines ascend
        self._committed_end = partition.high_watermark
        self._appended_end = partition.end_offset
        self._is_watching = False

    def begin(self) -> None:
        """What was appended before is watched from now on. It may be lost already, so whoever is told of that must
        know of this shard."""
        if self._committed_end < self._appended_end:
            self._watch()

    def apply(self, decision: Decision, now: Now) -> None:
        """Append, replay, go on with what was put off, answer on commit; or, when the append is refused, that."""
        decision = self._apply_once(decision, now)
        while decision.is_to_be_continued and not self.closed:
            decision = self._apply_once(self.shard.go_on(decision, now), now)
        if decision.later:
            # Lost while it was appended; whoever was not put into the shard is told here.
            waiters = [(later.waiter, None) for later in decision.later if later.waiter is not None]
            _give_error(waiters, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _apply_once(self, decision: Decision, now: Now) -> Decision:
        for job in decision.jobs:
            self._start_job(self, job)
        appended = False
        if decision.records:
            refusal = self._append(decision.records, now)
            if refusal is None:
                appended = True
                for record in decision.records:
                    self.shard.replay(record.key, record.value)
            else:
                decision = self.shard.refused(decision, coordinator_error(refusal.code), now)
        self.answer(decision.answers, now)
        if appended:
            self._watch()
        return decision

    def finish_job(self, job: Job, now: Now) -> None:
        if not self.closed:
            self.apply(self.shard.decide_job(job, now), now)

    def apply_transactional(self, decision: Decision, producer_id: int, producer_epoch: int, now: Now) -> None:
        """As `apply`, for records that are part of this producer's transaction."""
        appended = False
        if decision.records:
            refusal = self._append_transactional(decision.records, producer_id, producer_epoch, now)
            if refusal is None:
                appended = True
                for record in decision.records:
                    self.shard.replay_transactional(producer_id, record.key, record.value)
            else:
                decision = self.shard.refused(decision, coordinator_error(refusal.code), now)
        self.answer(decision.answers, now)
        if appended:
            self._watch()

    def write_marker(self, marker: EndMarker, waiter: "asyncio.Future[ErrorCode]", now: Now) -> None:
        """Ends this producer's transaction: its offsets count, or are dropped. Answers an error or NONE."""
        end_offset = self._partition.write_marker(marker)
        if isinstance(end_offset, Refusal):
            self.answer([(waiter, end_offset.code)], now)
            return
        self._appended_end = end_offset
        self.shard.replay_marker(marker.producer_id, marker.commit)
        self.answer([(waiter, ErrorCode.NONE)], now)
        self._watch()

    def answer(self, answers: Sequence[Answer], now: Now) -> None:
        """Gives these answers out when all that has been appended so far is committed."""
        if not answers:
            return
        if self._appended_end <= self._committed_end:
            _give(answers)
        else:
            self._held.append(_Held(self._appended_end, now.steady_ms + self._timeout_ms, answers))

    def next_deadline_ms(self) -> int | None:
        timer_ms = self.shard.next_deadline_ms()
        if not self._held:
            return timer_ms
        held_ms = self._held[0].deadline_ms
        return held_ms if timer_ms is None else min(timer_ms, held_ms)

    def expire_held(self, now: Now) -> None:
        """The log takes too long. The records may yet be committed, so nothing is undone; the client asks again."""
        while self._held and self._held[0].deadline_ms <= now.steady_ms:
            _give_error(self._held.popleft().answers, coordinator_error(ErrorCode.REQUEST_TIMED_OUT))

    def close(self, error: ErrorCode) -> None:
        """Led here no longer, or not to be trusted: everybody who waits is told, and nothing else happens."""
        self.closed = True
        held, self._held = self._held, deque()
        for each in held:
            _give_error(each.answers, error)
        _give_error(self.shard.resign(), error)

    # -- the log --------------------------------------------------------------------------------------------------

    def _append(self, records: Sequence[GroupRecord], now: Now) -> Refusal | None:
        result = self._partition.append_records(encode_batches(records, now.wall_ms))
        if isinstance(result, Refusal):
            return result
        self._appended_end = result
        return None

    def _append_transactional(
        self, records: Sequence[GroupRecord], producer_id: int, producer_epoch: int, now: Now
    ) -> Refusal | None:
        if self._partition.producer_epoch(producer_id) > producer_epoch:
            return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} has a newer epoch")
        batches = encode_batches(records, now.wall_ms, producer_id, producer_epoch)
        result = self._partition.append_records(batches)
        if isinstance(result, Refusal):
            return result
        self._appended_end = result
        return None

    def _watch(self) -> None:
        """One watch at a time: while nothing is committed, nothing piles up but answers, which have a deadline."""
        if not self._is_watching:
            self._is_watching = True
            end_offset = self._held[0].end_offset if self._held else self._appended_end
            self._partition.when_committed(end_offset, self._commit_told)

    def _commit_told(self, error: ErrorCode) -> None:
        self._is_watching = False
        if self.closed:
            return
        if error is not ErrorCode.NONE:
            self._on_lost(error)
            return
        self._committed_end = self._partition.high_watermark
        while self._held and self._held[0].end_offset <= self._committed_end:
            _give(self._held.popleft().answers)
        if self._committed_end < self._appended_end:
            self._watch()


def _give(answers: Sequence[Answer]) -> None:
    for waiter, response in answers:
        _resolve(waiter, response)


def _give_error(answers: Sequence[Answer], error: ErrorCode) -> None:
    for waiter, _ in answers:
        _resolve(waiter, error)


def _resolve(waiter: "asyncio.Future[object]", response: object) -> None:
    if not waiter.done():  # cancelled with its connection
        waiter.set_result(response)
