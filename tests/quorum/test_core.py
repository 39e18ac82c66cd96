"""One voter from start to commit, and what must not count."""

import pytest

from penstock.quorum.core import NOTHING, Bundle, Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.roles import Candidate, Leader, Resigned, Unattached
from penstock.quorum.voters import VoterSet

ME = ReplicaKey(1, b"m" * 16)
OTHERS = [ReplicaKey(2, b"n" * 16), ReplicaKey(3, b"o" * 16)]


def quorum(epoch: int = 0, end_offset: int = 0, log_epoch: int = 0, others: int = 0) -> Quorum:
    return Quorum(ME, VoterSet([ME, *OTHERS[:others]]), ElectionState(epoch), end_offset, log_epoch)


def elect(subject: Quorum) -> Bundle:
    persist = subject.start().persist
    assert persist is not None
    return subject.persisted(persist)


def test_the_only_voter_elects_itself() -> None:
    subject = quorum(epoch=4, end_offset=10, log_epoch=4)
    bundle = subject.start()
    assert bundle == Bundle(persist=ElectionState(epoch=5, voted=ME))
    assert isinstance(subject.role, Candidate)
    bundle = subject.persisted(ElectionState(epoch=5, voted=ME))
    assert isinstance(subject.role, Leader)
    assert bundle.persist is None
    assert bundle.append is not None
    assert (bundle.append.epoch, bundle.append.leader, bundle.append.granting_voters) == (5, ME, {ME})
    assert subject.high_watermark is None


def test_the_high_watermark_follows_what_is_synced() -> None:
    subject = quorum(end_offset=10)
    elect(subject)
    subject.appended(1, 13)
    assert subject.synced(1, 12).high_watermark == 12
    assert subject.synced(1, 12) == NOTHING, "a report twice moves nothing"
    assert subject.synced(1, 13).high_watermark == 13
    assert subject.high_watermark == 13


def test_entries_of_earlier_epochs_are_committed_by_one_of_this_epoch() -> None:
    subject = quorum(epoch=3, end_offset=10, log_epoch=3)
    elect(subject)
    assert subject.synced(4, 10) == NOTHING, "all of the old log is durable, but nothing of this epoch"
    subject.appended(4, 11)
    assert subject.synced(4, 11).high_watermark == 11


def test_a_vote_that_is_not_durable_is_no_vote() -> None:
    subject = quorum()
    subject.start()
    assert subject.persisted(ElectionState(epoch=1)) == NOTHING
    assert subject.persisted(ElectionState(epoch=2, voted=ME)) == NOTHING
    assert isinstance(subject.role, Candidate)


def test_one_of_three_is_not_elected_by_its_own_vote() -> None:
    subject = quorum(others=2)
    assert elect(subject) == NOTHING
    assert isinstance(subject.role, Candidate)


def test_the_leader_alone_commits_nothing_in_a_quorum_of_three() -> None:
    subject = quorum(others=2)
    elect(subject)
    assert isinstance(subject.role, Candidate)
    subject.role.grant(OTHERS[0])
    assert subject.role.is_elected(subject.voters)
    subject.role = Leader(1, 0, frozenset(subject.role.granted))
    subject.appended(1, 5)
    assert subject.synced(1, 5) == NOTHING
    subject.role.stable(OTHERS[1], 3)
    assert subject.role.advance(subject.voters) == 3


def test_a_lost_quorum_state_does_not_take_the_epoch_back() -> None:
    subject = quorum(epoch=0, end_offset=10, log_epoch=7)
    persist = subject.start().persist
    assert persist is not None
    assert persist.epoch == 8


def test_reports_of_another_epoch_change_nothing() -> None:
    subject = quorum(epoch=1)
    elect(subject)
    subject.appended(1, 50)
    subject.appended(2, 1)
    assert subject.synced(1, 1) == NOTHING
    assert subject.high_watermark is None


def test_a_resigned_leader_commits_nothing_more() -> None:
    subject = quorum()
    elect(subject)
    subject.appended(1, 3)
    subject.resign()
    assert isinstance(subject.role, Resigned)
    assert subject.synced(1, 3) == NOTHING
    assert subject.epoch == 1
    assert subject.high_watermark is None


def test_bugs_are_loud() -> None:
    subject = quorum(end_offset=5)
    elect(subject)
    with pytest.raises(AssertionError, match="never truncates"):
        subject.appended(1, 4)
    with pytest.raises(AssertionError, match="claims"):
        subject.synced(1, 6)
    with pytest.raises(AssertionError, match="started"):
        subject.start()
    with pytest.raises(ValueError, match="not a voter"):
        Quorum(OTHERS[0], VoterSet([ME]), ElectionState(), 0, 0)


def test_a_new_node_is_unattached() -> None:
    assert isinstance(quorum().role, Unattached)
    assert quorum().leader is None
