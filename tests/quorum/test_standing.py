"""What a node asks of the leader so that it votes under its own name."""

from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.standing import Wish, decide_wish
from penstock.quorum.voters import Endpoint, Voter, VoterSet

HERE = (Endpoint("CONTROLLER", "here", 9093),)
MINE = ReplicaKey(3, b"m" * 16)
OTHERS = (Voter(ReplicaKey(1, b"a" * 16)), Voter(ReplicaKey(2, b"b" * 16)))


def wish(*own: Voter, is_written: bool = True, joins: bool = True) -> Wish:
    return decide_wish(MINE, HERE, VoterSet([*OTHERS, *own]), is_written=is_written, joins=joins)


def test_a_voter_that_is_known_as_it_is_wants_nothing() -> None:
    assert wish(Voter(MINE, HERE)) is Wish.NOTHING


def test_a_voter_that_moved_says_so() -> None:
    moved = Voter(MINE, (Endpoint("CONTROLLER", "there", 9093),))
    assert wish(moved) is Wish.UPDATE
    assert wish(moved, joins=False) is Wish.UPDATE


def test_a_new_disk_has_the_old_one_removed_and_is_added_then() -> None:
    old = Voter(ReplicaKey(3, b"o" * 16), HERE)
    assert wish(old) is Wish.REMOVE
    assert wish() is Wish.ADD
    assert wish(old, joins=False) is Wish.NOTHING
    assert wish(joins=False) is Wish.NOTHING


def test_who_votes_at_first_is_for_the_first_leader_to_write_down() -> None:
    unpinned = Voter(ReplicaKey(3, ZERO_UUID), (Endpoint("CONTROLLER", "there", 9093),))
    assert wish(unpinned) is Wish.NOTHING
    assert wish(is_written=False) is Wish.NOTHING
