"""What a node of the quorum says of the others' silence."""

from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.roles import Follower, Unattached
from penstock.quorum.silence import knows_since, silence_ms
from penstock.quorum.timeouts import QuorumTimeouts
from penstock.quorum.voters import Voter, VoterSet

KEYS = [ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3)]


class Role:
    """As much of a quorum as is looked at."""

    def __init__(self, role: object) -> None:
        self.role = role
        self.local = KEYS[0]
        self.voters = VoterSet([Voter(key, ()) for key in KEYS])
        self.timeouts = QuorumTimeouts()
        self.high_watermark: int | None = None


def test_a_leader_counts_from_the_majority() -> None:
    leader = Leader(3, 0, frozenset(), 1_000.0)
    quorum = Role(leader)
    assert silence_ms(quorum, 1_400.0) == 400.0  # type: ignore[arg-type]
    leader.fetched(KEYS[1], 5_000.0)
    assert silence_ms(quorum, 5_000.0) == 0.0  # type: ignore[arg-type]
    leader.fetched(KEYS[2], 5_200.0)
    assert silence_ms(quorum, 6_000.0) == 800.0  # type: ignore[arg-type]


def test_a_follower_counts_from_its_leaders_answer() -> None:
    timeouts = QuorumTimeouts()
    follower = Follower(3, 2, 7_000.0 + timeouts.fetch_timeout_ms)
    assert silence_ms(Role(follower), 7_300.0) is None, "an announcement is no answer"  # type: ignore[arg-type]
    follower.has_fetched = True
    assert silence_ms(Role(follower), 7_300.0) == 300.0  # type: ignore[arg-type]
    assert silence_ms(Role(Unattached(3, 9_000.0)), 7_300.0) is None  # type: ignore[arg-type]


def test_a_follower_knows_what_its_leader_had_committed_when_it_answered() -> None:
    follower = Follower(3, 2, 9_000.0)
    quorum = Role(follower)

    def knows(since_ms: float) -> bool:
        return knows_since(quorum, since_ms)  # type: ignore[arg-type]

    assert not knows(0.0), "no answer yet"
    follower.answered_ms, follower.leader_high_watermark = 7_000.0, 40
    quorum.high_watermark = 39
    assert not knows(6_000.0), "something is on its way"
    quorum.high_watermark = 40
    assert knows(6_000.0)
    assert not knows(7_500.0), "what came after the answer"
    follower.leader_high_watermark = -1
    assert not knows(6_000.0), "a new leader does not know yet"
    assert knows_since(Role(Leader(3, 0, frozenset(), 1_000.0)), 6_000.0)  # type: ignore[arg-type]
    assert not knows_since(Role(Unattached(3, 9_000.0)), 6_000.0)  # type: ignore[arg-type]
