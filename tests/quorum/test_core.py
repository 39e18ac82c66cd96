"""One voter from start to commit, and what must not count."""

import pytest

from penstock.model.ports import SystemRng
from penstock.quorum.core import NOTHING, Bundle, Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.roles import Candidate, Prospective, Resigned, Unattached
from penstock.quorum.voters import VoterHistory, VoterSet
from penstock.sim.quorum_log import Entry, LogModel

ME = ReplicaKey(1, b"m" * 16)
OTHERS = [ReplicaKey(2, b"n" * 16), ReplicaKey(3, b"o" * 16)]


class Subject(Quorum):
    log: LogModel

    def write(self, count: int) -> Bundle:
        for _ in range(count):
            self.log.append(Entry(self.epoch))
        return self.appended(self.epoch, self.log.end_offset, 0)

    def sync(self, end_offset: int | None = None) -> Bundle:
        self.log.synced_end_offset = self.log.end_offset if end_offset is None else end_offset
        return self.synced(self.log.synced_end_offset, 0)


def quorum(epoch: int = 0, end_offset: int = 0, log_epoch: int = 0, others: int = 0) -> Subject:
    voters = VoterHistory(VoterSet([ME, *OTHERS[:others]]))
    return Subject(ME, voters, ElectionState(epoch), LogModel([Entry(log_epoch)] * end_offset), SystemRng())


def elect(subject: Subject) -> Bundle:
    persist = subject.start(0).persist
    assert persist is not None
    return subject.persisted(persist, 0)


def test_the_only_voter_elects_itself() -> None:
    subject = quorum(epoch=4, end_offset=10, log_epoch=4)
    bundle = subject.start(0)
    assert bundle == Bundle(persist=ElectionState(epoch=5, voted=ME))
    assert isinstance(subject.role, Candidate)
    bundle = subject.persisted(ElectionState(epoch=5, voted=ME), 0)
    assert isinstance(subject.role, Leader)
    assert bundle.persist is None
    (change,) = bundle.append
    assert (change.epoch, change.leader, change.granting_voters) == (5, ME, {ME})  # type: ignore[union-attr]
    assert subject.high_watermark is None


def test_the_high_watermark_follows_what_is_synced() -> None:
    subject = quorum(end_offset=10)
    elect(subject)
    subject.write(3)
    assert subject.sync(12).high_watermark == 12
    assert subject.sync(12) == NOTHING, "a report twice moves nothing"
    assert subject.sync(13).high_watermark == 13
    assert subject.high_watermark == 13


def test_entries_of_earlier_epochs_are_committed_by_one_of_this_epoch() -> None:
    subject = quorum(epoch=3, end_offset=10, log_epoch=3)
    elect(subject)
    assert subject.sync(10) == NOTHING, "all of the old log is durable, but nothing of this epoch"
    subject.write(1)
    assert subject.sync().high_watermark == 11


def test_a_vote_that_is_not_durable_is_no_vote() -> None:
    subject = quorum()
    subject.start(0)
    subject.persisted(ElectionState(epoch=1), 0)
    subject.persisted(ElectionState(epoch=2, voted=ME), 0)
    assert isinstance(subject.role, Candidate)


def test_one_of_three_is_not_elected_by_its_own_vote() -> None:
    subject = quorum(others=2)
    subject.start(0)
    assert isinstance(subject.role, Unattached)
    subject.tick(10_000)
    assert isinstance(subject.role, Prospective)
    assert subject.epoch == 0, "asking first changes nothing"


def test_the_leader_alone_commits_nothing_in_a_quorum_of_three() -> None:
    subject = quorum(others=2)
    subject.start(0)
    subject.become_candidate(0)
    state = subject.take().persist
    assert state is not None
    subject.persisted(state, 0)
    assert isinstance(subject.role, Candidate)
    subject.become_leader(subject.role, 0)
    subject.take()
    subject.write(5)
    assert subject.sync().high_watermark is None
    assert isinstance(subject.role, Leader)
    subject.role.stable(OTHERS[1], 3)
    assert subject.role.advance(subject.voters) == 3


def test_a_lost_quorum_state_does_not_take_the_epoch_back() -> None:
    subject = quorum(epoch=0, end_offset=10, log_epoch=7)
    persist = subject.start(0).persist
    assert persist is not None
    assert persist.epoch == 8


def test_reports_of_another_epoch_change_nothing() -> None:
    subject = quorum(epoch=1)
    elect(subject)
    subject.appended(1, 50, 0)
    subject.appended(3, 1, 0)
    assert subject.synced(0, 0) == NOTHING
    assert subject.high_watermark is None


def test_a_resigned_leader_commits_nothing_more() -> None:
    subject = quorum()
    elect(subject)
    subject.write(3)
    subject.resign(0)
    assert isinstance(subject.role, Resigned)
    assert subject.sync() == NOTHING
    assert subject.epoch == 1
    assert subject.high_watermark is None


def test_bugs_are_loud() -> None:
    subject = quorum(end_offset=5)
    elect(subject)
    with pytest.raises(AssertionError, match="never truncates"):
        subject.appended(1, 4, 0)
    with pytest.raises(AssertionError, match="claims"):
        subject.synced(6, 0)


def test_a_new_node_is_unattached() -> None:
    assert isinstance(quorum().role, Unattached)
    assert quorum().leader is None
