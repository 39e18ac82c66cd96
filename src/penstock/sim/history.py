"""What the clients of a world did and were told, in order: the evidence for the checkers.

Every value is sent once in its life, so that a record read anywhere is known by its value. An operation is `ok` (the
broker said so), `failed` (it certainly did not happen) or `unknown` (a timeout, a lost connection: it may have
happened, and it may still happen).
"""

from enum import Enum
from typing import NamedTuple

TopicPartition = tuple[str, int]


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Send(NamedTuple):
    """One record sent. `transaction` numbers the sender's transactions; None where it uses none. `repeats`: its
    sender is not idempotent, and a second attempt may be there as well."""

    client: str
    partition: TopicPartition
    value: str
    outcome: Outcome
    offset: int = -1
    transaction: int | None = None
    repeats: bool = False


class Poll(NamedTuple):
    """What one poll returned of one partition. `assignment` counts the times a consumer was given its partitions."""

    client: str
    partition: TopicPartition
    records: tuple[tuple[int, str], ...]
    assignment: int = 0
    read_committed: bool = False


class Assigned(NamedTuple):
    """A consumer was given its partitions. It asks where to begin after this, and may read much later."""

    client: str
    group: str
    assignment: int


class Begin(NamedTuple):
    """The first poll of a partition in an assignment: the first that it reads is at `position`."""

    client: str
    group: str
    partition: TopicPartition
    position: int
    assignment: int


class Commit(NamedTuple):
    """`begun` at invocation, before its outcome is known: others may be told of it from then on."""

    client: str
    group: str
    partition: TopicPartition
    offset: int
    outcome: Outcome
    begun: bool = False


class Committed(NamedTuple):
    """A client asked what a group has committed; −1 for nothing. `in_the_end`: when no member was at work."""

    client: str
    group: str
    partition: TopicPartition
    offset: int
    in_the_end: bool = False


class TransactionEnd(NamedTuple):
    """`begun` at invocation, before its outcome is known: readers may see its records from then on."""

    client: str
    transaction: int
    commit: bool
    outcome: Outcome
    begun: bool = False


class TransactionOffset(NamedTuple):
    """A transaction took this offset of a group into it: committed if it is."""

    client: str
    transaction: int
    group: str
    partition: TopicPartition
    offset: int


class DeleteRecords(NamedTuple):
    """A client asked for everything below `offset` to be deleted. `lasts`: nobody loses power after it."""

    client: str
    partition: TopicPartition
    offset: int
    outcome: Outcome
    lasts: bool


class Final(NamedTuple):
    """Everything a partition holds when all is over, read from its beginning. What was below `start_offset` was
    deleted, and may have been read while it went."""

    partition: TopicPartition
    records: tuple[tuple[int, str], ...]
    read_committed: bool = False
    start_offset: int = 0


Event = (
    Send | Poll | Assigned | Begin | Commit | TransactionEnd | Final | Committed | DeleteRecords | TransactionOffset
)


class History:
    """Grows in the order in which things became known."""

    def __init__(self, events: list[Event] | None = None) -> None:
        self.events: list[Event] = list(events or ())

    def add(self, event: Event) -> None:
        self.events.append(event)

    def count(self, kind: type, outcome: Outcome | None = None) -> int:
        found = (event for event in self.events if isinstance(event, kind))
        return sum(outcome is None or getattr(event, "outcome", None) is outcome for event in found)
