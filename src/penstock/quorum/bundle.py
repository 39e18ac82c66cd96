"""What the core wants done, in the order in which it must be done: persist before speaking (R3, R5)."""

from typing import Any, NamedTuple, Protocol

from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.messages import Request, Response, SnapshotId
from penstock.quorum.voters import VoterSet


class LeaderChange(NamedTuple):
    """The first entry of an epoch, written by its leader."""

    epoch: int
    leader: ReplicaKey
    voters: VoterSet
    granting_voters: frozenset[ReplicaKey]


class VotersChange(NamedTuple):
    """A VotersRecord: from here on these are the voters."""

    epoch: int
    voters: VoterSet


class SnapshotChunk(NamedTuple):
    snapshot: SnapshotId
    position: int
    data: Any
    is_last: bool


class Outgoing(NamedTuple):
    """A request to node `to`. Its answer, or that there is none, is reported with the same `correlation`."""

    to: int
    correlation: int
    request: Request


class Reply(NamedTuple):
    """The answer to the request that came with `token`."""

    token: Any
    response: Response


class Bundle(NamedTuple):
    """What to do, in the order of the fields. The driver reports each as done before it looks at the next event."""

    persist: ElectionState | None = None
    truncate_to: int | None = None
    snapshot_chunk: SnapshotChunk | None = None
    append: tuple[LeaderChange | VotersChange, ...] = ()
    replicate: Any = None
    high_watermark: int | None = None
    replies: tuple[Reply, ...] = ()
    requests: tuple[Outgoing, ...] = ()


NOTHING = Bundle()


class LogView(Protocol):
    """What the core looks at in the metadata log. It never writes."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def synced_end_offset(self) -> int: ...

    @property
    def last_epoch(self) -> int:
        """The epoch of the last entry, or of the snapshot in front of an empty log; 0 when there is neither."""

    @property
    def snapshot(self) -> SnapshotId | None:
        """The newest one, whole and on stable storage."""

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """The largest known epoch ≤ `epoch` and where it ended; (−1, −1) when `epoch` is newer than the log."""
