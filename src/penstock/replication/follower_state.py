"""What a follower does with an answer of its leader: cut its log, start it anew, append, or try again.

Pure: numbers in, one step out. Hard rules:
- A log is cut where leader epochs say that two logs part ways, never at a watermark (P8, KIP-101/279/320).
- An answer counts only for the question it answers: same leader epoch, same place in the log. A late one is dropped.
- The watermark moves only behind an append or where nothing had to be cut (P10, KAFKA-14704).
"""

from enum import Enum, auto
from typing import NamedTuple

from penstock.log.epochs import UNDEFINED_EPOCH, LeaderEpochs
from penstock.model.errors import ErrorCode
from penstock.model.ports import Buffer


class FetchPosition(NamedTuple):
    """Where a follower stands. It is an acknowledgement: all below `offset` is counted here."""

    leader_epoch: int
    offset: int
    last_epoch: int


class Fetched(NamedTuple):
    """What a leader tells of one partition."""

    error: ErrorCode
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: tuple[int, int] | None = None  # epoch, end offset
    records: Buffer = b""


class Kind(Enum):
    IGNORE = auto()  # the answer to a question that is not asked any more
    TRUNCATE = auto()  # to `offset`, then ask again
    RESTART = auto()  # the leader's log begins behind this one's end: begin anew at `offset`
    APPEND = auto()
    RETRY = auto()  # after a while; metadata that one of the two lacks may have come by then


class Step(NamedTuple):
    kind: Kind
    offset: int = -1


IGNORE = Step(Kind.IGNORE)
APPEND = Step(Kind.APPEND)
RETRY = Step(Kind.RETRY)


class FollowerState:
    """Whom this replica follows, in which epoch. Replaced with every change of leader."""

    __slots__ = ("caught_up_ms", "lacks_room", "leader_end_offset", "leader_epoch", "leader_id")

    def __init__(self, leader_id: int, leader_epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.leader_end_offset = -1  # the least the leader is known to have; for the lag
        self.caught_up_ms = -1  # when this replica last had all that it was told of
        self.lacks_room = False  # the last records that came did not fit on the disk


def decide_step(
    asked: FetchPosition, here: FetchPosition, end_offset: int, epochs: LeaderEpochs, fetched: Fetched
) -> Step:
    """`asked` is the position that was sent, `here` the one now."""
    if asked != here:
        return IGNORE
    if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
        return _decide_restart(here, end_offset, fetched)
    if fetched.error is not ErrorCode.NONE:
        return RETRY
    if fetched.diverging is None:
        return APPEND
    epoch, leader_end_offset = fetched.diverging
    if epoch == UNDEFINED_EPOCH or leader_end_offset < 0:
        return RETRY  # a leader that cannot tell is no reason to cut anything
    return Step(Kind.TRUNCATE, plan_truncation(epochs, end_offset, epoch, leader_end_offset))


def plan_truncation(epochs: LeaderEpochs, end_offset: int, leader_epoch: int, leader_end_offset: int) -> int:
    """Where to cut after the leader said that its largest epoch not above ours is `leader_epoch`, ending there.

    If this log does not know that epoch, it is cut at the end of its largest epoch below: the leader is asked again
    from there, and the two go down in turns until they agree. (KIP-279)
    """
    own_epoch, own_end_offset = epochs.end_offset(leader_epoch, end_offset)
    if own_epoch == UNDEFINED_EPOCH:
        return min(leader_end_offset, end_offset)
    if own_epoch != leader_epoch:
        return min(own_end_offset, end_offset)
    return min(own_end_offset, leader_end_offset, end_offset)


def _decide_restart(here: FetchPosition, end_offset: int, fetched: Fetched) -> Step:
    """The leader does not hold the offset. Only a log that ends before the leader's begins has nothing to keep."""
    if fetched.log_start_offset > end_offset or (
        here.last_epoch == UNDEFINED_EPOCH and fetched.log_start_offset >= 0
    ):
        return Step(Kind.RESTART, fetched.log_start_offset)
    return RETRY


def diverges(
    epochs: LeaderEpochs, leader_end_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> tuple[int, int] | None:
    """On the leader: the epoch and end offset to tell a follower whose log is not a prefix of this one."""
    if last_fetched_epoch == UNDEFINED_EPOCH:
        return None
    epoch, end_offset = epochs.end_offset(last_fetched_epoch, leader_end_offset)
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    return None
