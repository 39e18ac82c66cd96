"""What a decision is: records to append, who is to be told what, and what is to be done, once they are committed.

A `Turn` is one decision in the making. It gives the deciding functions time and deadlines, remembers which
transactional ids have a transition in flight, and collects what they want written, said and done.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.config import TransactionConfig
from penstock.transactions.deadlines import Deadline, DeadlineQueue
from penstock.transactions.state import RECORD_VERSION, TransactionState, TransactionStatus, value_from_state
from penstock.wire.generated.records_transaction import TransactionLogKey, TransactionLogValue


class Now(NamedTuple):
    """Two clocks: timeouts must not jump, and timestamps must be the time of day."""

    steady_ms: int
    wall_ms: int


class TransactionRecord(NamedTuple):
    """One record of `__transaction_state`; a value of None is a tombstone."""

    key: TransactionLogKey
    value: TransactionLogValue | None
    version: int = RECORD_VERSION


# Who waits for an answer: made by the driver, opaque here, answered exactly once.
Waiter = Any
# What it is answered with: a response, or the error its handler turns into one.
Answer = tuple[Waiter, Any]


class WriteMarkers(NamedTuple):
    """An effect: write this transaction's control records, and report with this very object.

    A report counts only with the object that the shard gave out last for the transactional id: under transaction
    version 1 two transactions may agree in every field.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


class Decision(NamedTuple):
    records: list[TransactionRecord]
    answers: list[Answer]
    # To be carried out once the records are committed and replayed, never before.
    effects: list[WriteMarkers]
    # Run in order when the records were not appended: what else must change, because replay will not happen.
    # The answers are then replaced by the error, and the effects fall away.
    on_refused: list[Callable[["Turn"], None]]


class Turn:
    __slots__ = ("_pending", "answers", "config", "deadlines", "effects", "now", "on_refused", "prepared", "records")

    def __init__(
        self, config: TransactionConfig, deadlines: DeadlineQueue, pending: dict[str, TransactionStatus], now: Now
    ) -> None:
        self.config = config
        self.deadlines = deadlines
        self._pending = pending
        self.now = now
        self.records: list[TransactionRecord] = []
        self.prepared: list[tuple[str, TransactionState]] = []  # those of the records that decide a transaction
        self.answers: list[Answer] = []
        self.effects: list[WriteMarkers] = []
        self.on_refused: list[Callable[[Turn], None]] = []

    def is_pending(self, transactional_id: str) -> bool:
        return transactional_id in self._pending

    def write(self, transactional_id: str, state: TransactionState, pending: TransactionStatus | None = None) -> None:
        """`pending` is what to call the transition while it is in flight, where that is not the new status."""
        self._pending[transactional_id] = state.status if pending is None else pending
        self.records.append(TransactionRecord(TransactionLogKey(transactional_id), value_from_state(state)))
        if state.status.is_prepared:
            self.prepared.append((transactional_id, state))

    def write_tombstone(self, transactional_id: str) -> None:
        self._pending[transactional_id] = TransactionStatus.DEAD
        self.records.append(TransactionRecord(TransactionLogKey(transactional_id), None))

    def answer(self, waiter: Waiter, response: object) -> None:
        self.answers.append((waiter, response))

    def arm(self, deadline: Deadline, delay_ms: int) -> None:
        self.deadlines.arm(deadline, self.now.steady_ms + delay_ms)

    def retry(self, deadline: Deadline) -> None:
        self.arm(deadline, self.config.retry_ms)

    def decision(self) -> Decision:
        return Decision(self.records, self.answers, self.effects, self.on_refused)


def refuse(decision: Decision, error: ErrorCode, turn: Turn) -> Decision:
    """What to do instead of `decision`, whose records were not appended. Writes nothing itself."""
    for undo in decision.on_refused:
        undo(turn)
    for waiter, _ in decision.answers:
        turn.answer(waiter, error)
    return turn.decision()
