"""What a decision is: records to append, and who is to be told what once they are committed.

A `Turn` is one decision in the making. It gives the deciding functions time, timers, randomness and the metadata
image, and collects what they want written and said. What they cannot go on with before their records are replayed
they put off with `later`; what would hold up the loop they make a `Job` of.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.groups.config import GroupConfig
from penstock.groups.timers import Timer, TimerQueue
from penstock.metadata.image import MetadataImage
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


class Later(NamedTuple):
    """What to go on with once the records are replayed. `waiter` is not answered yet: by `go_on`, or by a refusal."""

    waiter: Waiter | None
    go_on: Callable[["Turn"], None]


class Job(Protocol):
    """Work too long for the loop. `run` looks only at what the job was made with, and keeps its result in it."""

    waiters: list[Waiter]  # not answered yet
    failed: bool

    def run(self) -> None: ...


class Decision(NamedTuple):
    records: list[GroupRecord]
    answers: list[Answer]
    # Run in order when the records could not be appended: what else must change, because replay will not happen.
    # The answers are then replaced by the error.
    on_refused: Sequence[Callable[["Turn"], None]] = ()
    # When the records are replayed: what to see to, then, one by one, what to go on with (`GroupShard.go_on`).
    after_replay: Sequence[Callable[["Turn"], None]] = ()
    later: Sequence[Later] = ()
    # To be run off the loop, then given to `GroupShard.decide_job`; whether the records are appended or not.
    jobs: Sequence[Job] = ()

    @property
    def is_to_be_continued(self) -> bool:
        return bool(self.after_replay or self.later)


class ShardLoad:
    """What a shard counts over all its groups, to stay within bounds."""

    __slots__ = ("pending_members",)

    def __init__(self) -> None:
        self.pending_members = 0


class Turn:
    __slots__ = (
        "_after_replay",
        "_later",
        "answers",
        "config",
        "groups",
        "image",
        "jobs",
        "load",
        "now",
        "on_refused",
        "records",
        "rng",
        "timers",
    )

    def __init__(
        self,
        config: GroupConfig,
        timers: TimerQueue,
        load: ShardLoad,
        rng: Rng,
        now: Now,
        image: MetadataImage,
        groups: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.timers = timers
        self.load = load
        self.rng = rng
        self.now = now
        self.image = image
        self.groups = groups  # as they are now, also in what was put off
        self.records: list[GroupRecord] = []
        self.answers: list[Answer] = []
        self.on_refused: list[Callable[[Turn], None]] = []
        self.jobs: list[Job] = []
        self._after_replay: list[Callable[[Turn], None]] = []
        self._later: list[Later] = []

    def write(self, record: GroupRecord) -> None:
        self.records.append(record)

    def answer(self, waiter: Waiter, response: object) -> None:
        self.answers.append((waiter, response))

    def after_replay(self, see_to: Callable[["Turn"], None]) -> None:
        """For what can be lost, such as timers of a member that is only now being written: it decides nothing."""
        self._after_replay.append(see_to)

    def later(self, waiter: Waiter | None, go_on: Callable[["Turn"], None]) -> None:
        """Goes on when all that is written by then is replayed; at the end of this turn if nothing is."""
        self._later.append(Later(waiter, go_on))

    def arm(self, timer: Timer, delay_ms: int) -> None:
        self.timers.arm(timer, self.now.steady_ms + delay_ms)

    def disarm(self, timer: Timer) -> None:
        self.timers.disarm(timer)

    def decision(self) -> Decision:
        while not self.records and (self._after_replay or self._later):
            if self._after_replay:
                self._after_replay.pop(0)(self)
            else:
                self._later.pop(0).go_on(self)
        return Decision(self.records, self.answers, self.on_refused, self._after_replay, self._later, self.jobs)


def refuse(decision: Decision, error: ErrorCode, turn: Turn) -> Decision:
    """What to do instead of `decision`, whose records were not appended. Writes nothing itself."""
    for undo in decision.on_refused:
        undo(turn)
    refused = [waiter for waiter, _ in decision.answers]
    refused += [later.waiter for later in decision.later if later.waiter is not None]
    turn.answers[:0] = [(waiter, error) for waiter in refused]
    return turn.decision()
