"""What a decision is: records to append, and who is to be told what once they are committed.

A `Turn` is one decision in the making. It gives the deciding functions time, timers and randomness, and collects
what they want written and said.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.groups.config import GroupConfig
from penstock.groups.timers import Timer, TimerQueue
from penstock.model.errors import ErrorCode
from penstock.model.ports import Rng
from penstock.wire.struct import RecordMessage


class Now(NamedTuple):
    """Two clocks: timeouts must not jump, and timestamps must be the time of day."""

    steady_ms: int
    wall_ms: int


class GroupRecord(NamedTuple):
    """One record of `__consumer_offsets`; a value of None is a tombstone."""

    key: RecordMessage
    value: RecordMessage | None
    version: int = 0


# Who waits for an answer: made by the driver, opaque here, answered exactly once.
Waiter = Any
# What it is answered with: a response, or the error its handler turns into one.
Answer = tuple[Waiter, Any]


class Decision(NamedTuple):
    records: list[GroupRecord]
    answers: list[Answer]
    # Run in order when the records could not be appended: what else must change, because replay will not happen.
    # The answers are then replaced by the error.
    on_refused: list[Callable[["Turn"], None]]


class ShardLoad:
    """What a shard counts over all its groups, to stay within bounds."""

    __slots__ = ("pending_members",)

    def __init__(self) -> None:
        self.pending_members = 0


class Turn:
    __slots__ = ("answers", "config", "load", "now", "on_refused", "records", "rng", "timers")

    def __init__(self, config: GroupConfig, timers: TimerQueue, load: ShardLoad, rng: Rng, now: Now) -> None:
        self.config = config
        self.timers = timers
        self.load = load
        self.rng = rng
        self.now = now
        self.records: list[GroupRecord] = []
        self.answers: list[Answer] = []
        self.on_refused: list[Callable[[Turn], None]] = []

    def write(self, record: GroupRecord) -> None:
        self.records.append(record)

    def answer(self, waiter: Waiter, response: object) -> None:
        self.answers.append((waiter, response))

    def arm(self, timer: Timer, delay_ms: int) -> None:
        self.timers.arm(timer, self.now.steady_ms + delay_ms)

    def disarm(self, timer: Timer) -> None:
        self.timers.disarm(timer)

    def decision(self) -> Decision:
        return Decision(self.records, self.answers, self.on_refused)


def refuse(decision: Decision, error: ErrorCode, turn: Turn) -> Decision:
    """What to do instead of `decision`, whose records were not appended. Writes nothing itself."""
    for undo in decision.on_refused:
        undo(turn)
    turn.answers[:0] = [(waiter, error) for waiter, _ in decision.answers]
    return turn.decision()
