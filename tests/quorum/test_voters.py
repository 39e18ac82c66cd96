"""Majorities."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Voter, VoterHistory, VoterSet


def key(number: int) -> ReplicaKey:
    return ReplicaKey(number, bytes([number]) * 16)


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_majority(voters: int, majority: int) -> None:
    voter_set = VoterSet(key(number) for number in range(voters))
    assert voter_set.majority == majority
    assert not voter_set.is_majority([key(number) for number in range(majority - 1)])
    assert voter_set.is_majority([key(number) for number in range(majority)])


def test_strangers_and_repetitions_do_not_count() -> None:
    voters = VoterSet([key(1), key(2), key(3)])
    assert not voters.is_majority([key(1), key(1), key(9)])
    assert not voters.is_majority([key(1), ReplicaKey(2, b"x" * 16)]), "another disk is another voter"


def test_a_set_needs_distinct_voters() -> None:
    with pytest.raises(ValueError, match="voter"):
        VoterSet([key(1), ReplicaKey(1, b"x" * 16)])


def test_a_voter_of_the_configuration_is_any_directory_of_its_node() -> None:
    voters = VoterSet([ReplicaKey(1, ZERO_UUID), key(2)])
    assert key(1) in voters
    assert ReplicaKey(2, b"x" * 16) not in voters
    assert not voters.is_pinned
    assert voters.with_voter(Voter(key(1))).is_pinned


def test_the_last_record_holds_until_it_is_cut_off() -> None:
    first, second, third = (VoterSet(key(n) for n in range(count)) for count in (1, 2, 3))
    history = VoterHistory(first, [(5, second)])
    history.append(9, third)
    assert history.current == third
    assert [history.at(end) for end in (5, 6, 9, 10)] == [first, second, second, third]
    history.truncate_to(9)
    assert (history.current, history.last_offset) == (second, 5)
    history.truncate_to(5)
    assert (history.current, history.last_offset) == (first, -1)


@given(st.dictionaries(st.integers(0, 8), st.integers(0, 1000)), st.integers(1, 7))
def test_a_majority_holds_what_is_below_its_end_offset(ends: dict[int, int], count: int) -> None:
    voters = VoterSet(key(number) for number in range(count))
    reached = voters.majority_end_offset({key(number): end for number, end in ends.items()})
    holding = [number for number in range(count) if ends.get(number, 0) >= reached]
    beyond = [number for number in range(count) if ends.get(number, 0) > reached]
    assert len(holding) >= voters.majority > len(beyond)
