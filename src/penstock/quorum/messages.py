"""What voters say to each other, as the core sees it. The wire forms are the driver's affair.

Every request and every answer carries the epoch its sender is in; an answer also names the leader its sender knows.
"""

from typing import Any, NamedTuple

from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import NOBODY, ReplicaKey


class SnapshotId(NamedTuple):
    """`end_offset` is exclusive: the first record not contained has it."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"


class EpochEnd(NamedTuple):
    """Where an epoch ended in the leader's log. (KIP-595, diverging epoch)"""

    epoch: int
    end_offset: int


class VoteRequest(NamedTuple):
    """In a pre-vote `epoch` is the one the asker is in; it would stand in the next. (KIP-996)"""

    epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: int
    end_offset: int
    pre_vote: bool


class VoteResponse(NamedTuple):
    epoch: int
    leader_id: int = NOBODY
    error: ErrorCode = ErrorCode.NONE
    granted: bool = False


class BeginEpochRequest(NamedTuple):
    epoch: int
    leader_id: int
    voter: ReplicaKey


class EndEpochRequest(NamedTuple):
    """`preferred`: who should stand for election, the best first."""

    epoch: int
    leader_id: int
    preferred: tuple[ReplicaKey, ...]


class EpochResponse(NamedTuple):
    """The answer to BeginQuorumEpoch and EndQuorumEpoch."""

    epoch: int
    leader_id: int = NOBODY
    error: ErrorCode = ErrorCode.NONE


class FetchRequest(NamedTuple):
    """Everything below `offset` is on the asker's stable storage (R5)."""

    epoch: int
    replica: ReplicaKey
    offset: int
    last_epoch: int
    high_watermark: int


class FetchResponse(NamedTuple):
    epoch: int
    leader_id: int = NOBODY
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    diverging: EpochEnd | None = None
    snapshot: SnapshotId | None = None
    read_from: int = -1
    """On the way out: the driver reads records from here. −1: none."""
    records: Any = None
    """On the way in: what the leader sent; the core does not look into it."""


class FetchSnapshotRequest(NamedTuple):
    epoch: int
    replica: ReplicaKey
    snapshot: SnapshotId
    position: int


class FetchSnapshotResponse(NamedTuple):
    epoch: int
    leader_id: int = NOBODY
    error: ErrorCode = ErrorCode.NONE
    snapshot: SnapshotId | None = None
    size: int = 0
    position: int = 0
    chunk: Any = b""


Request = VoteRequest | BeginEpochRequest | EndEpochRequest | FetchRequest | FetchSnapshotRequest
Response = VoteResponse | EpochResponse | FetchResponse | FetchSnapshotResponse


def is_addressed_to(voter: ReplicaKey, local: ReplicaKey) -> bool:
    """Whether a request for `voter` may be answered here: another disk of this node is another voter."""
    return voter.id == local.id and voter.directory_id in (ZERO_UUID, local.directory_id)
