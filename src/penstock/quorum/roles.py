"""The roles a node can have in an epoch, one class each; the leader's is in `leader.py`. No I/O.

    Unattached -> Prospective -> Candidate -> Leader -> Resigned
         \\_______ Follower <- any of them, when a leader is known

An observer (not in the voter set) is Unattached or Follower only. A restarted node is never Leader: what was decided
since it went is not known to it, so it comes back Resigned in the epoch it led.
"""

from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.messages import SnapshotId
from penstock.quorum.voters import VoterSet

NEVER = float("inf")


class Unattached:
    """Knows an epoch but no leader: asks the voters for one, and stands for election at the deadline."""

    __slots__ = ("deadline_ms", "epoch", "next_probe_ms")

    def __init__(self, epoch: int, deadline_ms: float) -> None:
        self.epoch = epoch
        self.deadline_ms = deadline_ms
        self.next_probe_ms: float = 0


class Follower:
    """Fetches from the leader of `epoch`."""

    __slots__ = (
        "answered_ms",
        "download",
        "epoch",
        "fetch_deadline_ms",
        "has_fetched",
        "leader_high_watermark",
        "leader_id",
        "next_fetch_ms",
        "stand_at_ms",
    )

    def __init__(self, epoch: int, leader_id: int, fetch_deadline_ms: float) -> None:
        self.epoch = epoch
        self.leader_id = leader_id
        self.fetch_deadline_ms = fetch_deadline_ms
        """Without a good answer until then the leader counts as lost; while one is carried out it may rest."""
        self.has_fetched = False
        """The leader has answered in this epoch."""
        self.answered_ms: float = -NEVER
        """When it answered a fetch last."""
        self.next_fetch_ms: float = 0
        """Not before; NEVER while an answer is being written to the log."""
        self.stand_at_ms: float = NEVER
        """The leader is known to be gone (it refuses connections, or said so): stand for election then."""
        self.download: Download | None = None
        self.leader_high_watermark = -1
        """As it came with that answer."""

    def is_sure_of_leader(self, now_ms: float) -> bool:
        """Whether a pre-vote against the leader is refused."""
        return self.has_fetched and now_ms < self.fetch_deadline_ms and self.stand_at_ms == NEVER


class Download:
    """A snapshot on its way from the leader."""

    __slots__ = ("position", "snapshot")

    def __init__(self, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.position = 0


class _Standing:
    """Counts votes. Its own counts like any other: a real one once it is on stable storage."""

    __slots__ = ("deadline_ms", "epoch", "granted", "rejected")

    def __init__(self, epoch: int, deadline_ms: float) -> None:
        self.epoch = epoch
        self.deadline_ms = deadline_ms
        self.granted: set[ReplicaKey] = set()
        self.rejected: set[int] = set()

    def grant(self, voter: ReplicaKey) -> None:
        self.granted.add(voter)

    def is_elected(self, voters: VoterSet) -> bool:
        return voters.is_majority(self.granted)

    def is_lost(self, voters: VoterSet) -> bool:
        """So many have refused that a majority is out of reach."""
        return len(voters) - len(self.rejected.intersection(voters.ids)) < voters.majority


class Prospective(_Standing):
    """Asks whether it would be elected in the next epoch; changes nothing by asking. (KIP-996)"""

    __slots__ = ()


class Candidate(_Standing):
    """Asks for votes in `epoch`."""

    __slots__ = ()


class Resigned:
    """Led in `epoch` and gave it up, or was restarted; commits nothing more."""

    __slots__ = ("deadline_ms", "epoch")

    def __init__(self, epoch: int, deadline_ms: float) -> None:
        self.epoch = epoch
        self.deadline_ms = deadline_ms


Role = Unattached | Follower | Prospective | Candidate | Leader | Resigned
