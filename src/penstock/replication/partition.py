"""The leader of one partition: what may be appended, what counts as committed, who waits for it.

Today every partition has one replica, this broker. The words are those of a replicated one: a record is committed
once it lies below the high watermark, and the watermark passes an offset once every in-sync replica counts it. In
`flush.mode=ack` a replica counts what is fsynced; in the other modes what is written.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from penstock.log.appending import AppendResult
from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode, Refusal
from penstock.net.outbox import FileRange
from penstock.records.markers import build_end_marker

CommitCallback = Callable[[ErrorCode], None]


class FetchPlan(NamedTuple):
    """What a fetch of one partition yields now. `data` is None where there is nothing to read."""

    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    data: FileRange | None
    # Producer id and first offset of transactions to skip; None where the reader takes everything.
    aborted: list[tuple[int, int]] | None = None


class Watcher(Protocol):
    """Waits for a partition to move on. `wake` is called on the append path: it only takes note."""

    def wake(self) -> None: ...


class Partition:
    """Changed only on the event loop."""

    __slots__ = (
        "_commit_waiters",
        "_verifications",
        "_watchers",
        "high_watermark",
        "index",
        "leader_epoch",
        "log",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: PartitionLog,
        leader_epoch: int,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = leader_epoch
        # Never above what the log holds, never below what a consumer has seen.
        self.high_watermark = log.counted_end_offset
        self._commit_waiters: deque[tuple[int, CommitCallback]] = deque()  # end offsets ascend
        self._watchers: dict[Watcher, None] = {}
        # Producers whose membership is being asked for; few at a time, and gone with the answer.
        self._verifications: dict[int, int] | None = None
        log.on_synced = self._synced
        if self.high_watermark < log.end_offset and log.directory.commit is not None:
            # Recovered after a crash: what is on disk counts once it is known to stay there.
            log.directory.commit.request(log)

    # -- writing ------------------------------------------------------------------------------------------------

    def append(self, batches: bytearray | memoryview, now_ms: int) -> AppendResult | Refusal:
        """Appends a producer's batch. It is committed when `when_committed` says so, or at once."""
        log = self.log
        result = log.append_as_leader(batches, self.leader_epoch, now_ms)
        if isinstance(result, AppendResult) and (counted := log.counted_end_offset) > self.high_watermark:
            self._advance(counted)
        return result

    def append_own(self, batch: bytearray, now_ms: int) -> AppendResult | Refusal:
        """Appends a batch that this broker made itself: coordinator state, markers."""
        result = self.log.append_as_leader(batch, self.leader_epoch, now_ms, origin="coordinator")
        if isinstance(result, AppendResult):
            self._written()
        return result

    def when_committed(self, end_offset: int, callback: CommitCallback) -> None:
        """Calls back once, on the loop: NONE when all below `end_offset` is committed, or why it never will be."""
        if end_offset <= self.high_watermark:
            callback(ErrorCode.NONE)
            return
        waiters = self._commit_waiters
        if waiters and waiters[-1][0] > end_offset:  # a retried batch waits for an offset that others are past
            place = next(i for i, (end, _) in enumerate(waiters) if end > end_offset)
            waiters.insert(place, (end_offset, callback))
        else:
            waiters.append((end_offset, callback))

    # -- transactions -------------------------------------------------------------------------------------------

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether records of a transaction of this producer are here and undecided: then more may follow unasked."""
        entry = self.log.producers.get(producer_id)
        return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch

    def begin_verification(self, producer_id: int) -> None:
        """The coordinator is being asked whether this producer's transaction includes this partition. (KIP-890)"""
        self._verifications = {**(self._verifications or {}), producer_id: self.log.end_offset}

    def end_verification(self, producer_id: int) -> bool:
        """Whether the answer still counts: no marker of this producer was written since the question."""
        return self._verifications is not None and self._verifications.pop(producer_id, None) is not None

    def write_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, now_ms: int
    ) -> AppendResult | Refusal:
        """Ends a transaction in this partition: readers see its records, or skip them, once this is committed."""
        if self._verifications is not None:
            self._verifications.pop(producer_id, None)
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
        counted = self.log.counted_end_offset
        if counted > self.high_watermark:
            self._advance(counted)

    def _synced(self, synced_end_offset: int) -> None:
        self._written()

    def _advance(self, high_watermark: int) -> None:
        log = self.log
        self.high_watermark = log.high_watermark = high_watermark
        if log.producers.unreplicated:
            log.producers.on_high_watermark(high_watermark)
        waiters = self._commit_waiters
        while waiters and waiters[0][0] <= high_watermark:
            waiters.popleft()[1](ErrorCode.NONE)
        if self._watchers:
            self.wake_watchers()

    def wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.wake()

    def resign(self, error: ErrorCode) -> None:
        """This broker leads the partition no longer: whoever waits is told so."""
        waiters, self._commit_waiters = self._commit_waiters, deque()
        for _, callback in waiters:
            callback(error)
        self.wake_watchers()

    # -- reading ------------------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """Fences requests that carry the epoch of another leadership; -1 carries none. (KIP-320)"""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def plan_fetch(
        self, offset: int, max_bytes: int, current_leader_epoch: int, read_committed: bool, must_yield: bool
    ) -> FetchPlan:
        """What a consumer at `offset` may read now; `must_yield` gives one batch even if it is above `max_bytes`."""
        log = self.log
        high_watermark = self.high_watermark
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            return FetchPlan(self.check_epoch(current_leader_epoch), -1, -1, -1, None)
        stable = log.last_stable_offset(high_watermark)
        if max_bytes <= 0 and not must_yield:
            return FetchPlan(ErrorCode.NONE, high_watermark, stable, log.log_start_offset, None)
        span = log.read(offset, max_bytes, stable if read_committed else high_watermark, must_yield)
        if isinstance(span, ErrorCode):
            return FetchPlan(span, high_watermark, stable, log.log_start_offset, None)
        data = FileRange(span.file, span.position, span.length) if span.length else None
        aborted = log.aborted_transactions(offset, stable) if read_committed and data is not None else None
        return FetchPlan(ErrorCode.NONE, high_watermark, stable, log.log_start_offset, data, aborted)

    def delete_records_before(self, offset: int) -> Refusal | None:
        """Moves the log start offset; -1 means the high watermark. Uncommitted records stay."""
        if offset == -1:
            offset = self.high_watermark
        if offset > self.high_watermark:
            text = f"offset {offset} is above the high watermark {self.high_watermark} of {self.topic}-{self.index}"
            return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        return self.log.delete_records_before(offset)
