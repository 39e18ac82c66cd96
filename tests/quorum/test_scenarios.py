"""Stories told by hand: what chance finds too seldom, and what must work at once."""

import random
from typing import Any

from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import ZERO_UUID
from penstock.quorum.bundle import Bundle, VotersChange
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ElectionState, ReplicaKey
from penstock.quorum.leader import Leader
from penstock.quorum.messages import (
    BeginEpochRequest,
    EndEpochRequest,
    EpochEnd,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from penstock.quorum.roles import Candidate, Follower, Prospective, Resigned
from penstock.quorum.voters import Voter, VoterHistory, VoterSet
from penstock.sim.quorum_log import Entry, LogModel
from penstock.sim.quorum_node import SeededRng

KEYS = {n: ReplicaKey(n, bytes([n]) * 16) for n in range(1, 7)}


class One(Quorum):
    """A voter whose disk is instant."""

    log: LogModel

    def __init__(self, number: int, epochs: list[int], voters: int = 3, pinned: bool = True) -> None:
        members = [KEYS[n] if pinned else ReplicaKey(n, ZERO_UUID) for n in range(1, voters + 1)]
        last = epochs[-1] if epochs else 0
        log = LogModel([Entry(epoch) for epoch in epochs])
        rng = SeededRng(random.Random(number))
        super().__init__(KEYS[number], VoterHistory(VoterSet(members)), ElectionState(last), log, rng)
        self.do(self.start(0), 0)
        self.said: list[Any] = []

    def do(self, bundle: Bundle, now_ms: float) -> Bundle:
        """Carries out what concerns the disk; answers what was said last."""
        if bundle.persist is not None:
            self.do(self.persisted(bundle.persist, now_ms), now_ms)
        if bundle.truncate_to is not None:
            self.log.truncate_to(bundle.truncate_to)
            self.do(self.truncated(now_ms), now_ms)
        for change in bundle.append:
            self.log.append(Entry(change.epoch, change.voters if isinstance(change, VotersChange) else None))
            self.do(self.appended(change.epoch, self.log.end_offset, now_ms), now_ms)
        if bundle.append:
            self.do(self.synced(self.log.sync(), now_ms), now_ms)
        self.__dict__.setdefault("said", [])
        self.said += [reply.response for reply in bundle.replies] + [out.request for out in bundle.requests]
        return bundle

    def hear(self, request: Any, now_ms: float = 0, token: Any = None) -> Any:
        self.said.clear()
        self.do(self.receive(request, token, now_ms), now_ms)
        return self.said[0] if self.said else None

    def become(self, epoch: int, now_ms: float = 0) -> "One":
        """Elected in `epoch` by the grace of the test."""
        self.election = ElectionState(epoch - 1)
        self.become_candidate(now_ms)
        self.do(self.take(), now_ms)
        assert isinstance(self.role, Candidate)
        for key in self.voters.keys:
            if isinstance(self.role, Candidate):
                self.role.grant(key)
        self.become_leader(self.role, now_ms)
        self.do(self.take(), now_ms)
        return self

    def fetched_by(self, number: int, offset: int, epoch: int, now_ms: float = 0) -> Any:
        return self.hear(FetchRequest(self.epoch, KEYS[number], offset, epoch, -1), now_ms)


def asks(number: int, of: int, epoch: int, last_epoch: int, end_offset: int, pre_vote: bool = False) -> VoteRequest:
    return VoteRequest(epoch, KEYS[number], KEYS[of], last_epoch, end_offset, pre_vote)


def test_figure_8() -> None:
    """An entry of an old epoch on a majority is not committed: another leader can still overrule it."""
    first = One(1, [1, 2], voters=5).become(4)
    first.fetched_by(2, 2, 2)
    first.fetched_by(3, 2, 2)
    assert first.high_watermark is None, "on 1, 2 and 3, and yet open"
    second, third, fifth = One(2, [1, 2], 5), One(3, [1, 2], 5), One(5, [1, 3], 5)
    assert second.hear(asks(5, 2, 5, 3, 2)).granted
    assert third.hear(asks(5, 3, 5, 3, 2)).granted
    fifth.become(5)
    answer = fifth.hear(FetchRequest(5, KEYS[2], 2, 2, -1))
    assert answer.diverging == EpochEnd(1, 1), "the entry of epoch 2 goes"


def test_figure_8_with_an_entry_of_its_own_epoch() -> None:
    first = One(1, [1, 2], voters=5).become(4)
    first.fetched_by(2, 3, 4)
    first.fetched_by(3, 3, 4)
    assert first.high_watermark == 3
    second = One(2, [1, 2, 4], 5)
    assert not second.hear(asks(5, 2, 5, 3, 2)).granted, "what could overrule it is not elected"


def test_a_voter_that_comes_back_does_not_disturb() -> None:
    follower = One(2, [1])
    follower.hear(BeginEpochRequest(1, 1, KEYS[2]))
    assert isinstance(follower.role, Follower)
    follower.do(follower.respond(1, follower._next_correlation, FetchResponse(1, 1, high_watermark=1), 100), 100)
    refused = follower.hear(asks(3, 2, 1, 1, 1, pre_vote=True), 500)
    assert (refused.granted, refused.leader_id) == (False, 1)
    assert follower.hear(asks(3, 2, 1, 1, 1, pre_vote=True), 1_200).granted, "its own leader is silent by now"
    assert follower.election == ElectionState(1, 1, None), "asking changed nothing"


def test_a_leader_refuses_pre_votes() -> None:
    leader = One(1, [1]).become(2)
    assert not leader.hear(asks(3, 1, 2, 9, 9, pre_vote=True)).granted


def test_a_leader_without_followers_resigns() -> None:
    leader = One(1, [1]).become(2)
    leader.fetched_by(2, 2, 2, now_ms=1_000)
    leader.do(leader.tick(2_499), 2_499)
    assert isinstance(leader.role, Leader)
    leader.said.clear()
    leader.do(leader.tick(2_500), 2_500)
    assert isinstance(leader.role, Resigned)
    assert [type(said) for said in leader.said if isinstance(said, EndEpochRequest)] == [EndEpochRequest] * 2


def test_a_voter_that_does_not_fetch_is_told_again() -> None:
    leader = One(1, [1]).become(2)
    told = 0
    for now_ms in range(0, 1_000, 125):
        leader.said.clear()
        leader.fetched_by(2, 2, 2, now_ms)
        leader.said.clear()
        leader.do(leader.tick(now_ms), now_ms)
        told += sum(isinstance(said, BeginEpochRequest) and said.voter == KEYS[3] for said in leader.said)
        assert not [said for said in leader.said if isinstance(said, BeginEpochRequest) and said.voter == KEYS[2]]
    assert told >= 6


def test_a_refused_connection_starts_an_election_at_once() -> None:
    follower, other = One(2, [1]), One(3, [1])
    for one in (follower, other):
        one.hear(BeginEpochRequest(1, 1, one.local))
        one.do(one.respond(1, one._next_correlation, FetchResponse(1, 1, high_watermark=1), 10), 10)
        one.do(one.failed(1, one._next_correlation, True, 20), 20)
    now_ms = follower.deadline_ms
    while not isinstance(follower.role, Prospective):
        follower.do(follower.tick(now_ms), now_ms)
        now_ms = follower.deadline_ms
    assert now_ms < 20 + 1_200
    assert other.hear(asks(2, 3, 1, 1, 1, pre_vote=True), 30).granted, "it knows too that the leader is gone"


def test_a_leader_that_goes_names_its_successors() -> None:
    leader = One(1, [1]).become(2)
    leader.fetched_by(3, 2, 2)
    leader.fetched_by(2, 1, 1)
    leader.said.clear()
    leader.do(leader.resign(50), 50)
    farewell = [said for said in leader.said if isinstance(said, EndEpochRequest)]
    assert farewell[0].preferred == (KEYS[3], KEYS[2])
    third = One(3, [1, 2])
    third.hear(farewell[0], 60)
    assert third.deadline_ms == 60, "the first one stands at once"
    third.said.clear()
    third.do(third.tick(60), 60)
    assert isinstance(third.role, Prospective)


def test_directories_are_pinned_once_all_are_known() -> None:
    leader = One(1, [1], pinned=False).become(2)
    leader.fetched_by(2, 2, 2)
    assert leader.high_watermark == 2
    assert not leader.voters.is_pinned
    refusal = leader.add_voter(Voter(KEYS[4]), 0)
    assert isinstance(refusal, Refusal)
    leader.fetched_by(3, 2, 2)
    assert leader.voters.keys == {KEYS[1], KEYS[2], KEYS[3]}
    assert leader.log.entries[-1].payload == leader.voters
    wiped = asks(2, 2, 3, 9, 9)._replace(voter=ReplicaKey(2, b"x" * 16))
    assert One(2, [1]).hear(wiped).error is ErrorCode.INVALID_VOTER_KEY


def test_a_new_voter_must_have_caught_up() -> None:
    leader = One(1, [1] * 5).become(2)
    leader.fetched_by(2, 6, 2)
    assert leader.high_watermark == 6
    assert isinstance(leader.add_voter(Voter(KEYS[4]), 0), Refusal), "it was never seen"
    leader.fetched_by(4, 2, 1)
    assert isinstance(leader.add_voter(Voter(KEYS[4]), 0), Refusal), "it lags"
    leader.fetched_by(4, 6, 2, now_ms=100)
    bundle = leader.add_voter(Voter(KEYS[4]), 100)
    assert isinstance(bundle, Bundle)
    leader.do(bundle, 100)
    assert KEYS[4] in leader.voters
    again = leader.remove_voter(KEYS[3], 100)
    assert isinstance(again, Refusal), "one change at a time"


def test_a_removed_leader_leads_until_its_removal_is_committed() -> None:
    leader = One(1, [1]).become(2)
    leader.fetched_by(2, 2, 2)
    leader.fetched_by(3, 2, 2)
    bundle = leader.remove_voter(KEYS[1], 0)
    assert isinstance(bundle, Bundle)
    leader.do(bundle, 0)
    assert isinstance(leader.role, Leader)
    leader.fetched_by(2, 3, 2)
    assert isinstance(leader.role, Leader), "1 does not count any more: 2 alone is no majority of 2 and 3"
    leader.fetched_by(3, 3, 2)
    assert isinstance(leader.role, Resigned)
    assert leader.high_watermark == 3


def test_who_is_behind_the_log_gets_the_snapshot() -> None:
    leader = One(1, [1] * 10)
    leader.log.take_snapshot(8)
    leader.become(2)
    assert leader.fetched_by(2, 3, 1).snapshot == SnapshotId(8, 1)
    assert leader.fetched_by(2, 8, 0).snapshot == SnapshotId(8, 1), "another epoch in front of the log"
    assert leader.fetched_by(2, 8, 1).read_from == 8


def test_a_vote_response_after_the_election_changes_nothing() -> None:
    leader = One(1, [1]).become(2)
    before = (leader.role, leader.election)
    assert leader.respond(2, 12345, VoteResponse(9, 3), 0) == Bundle()
    assert (leader.role, leader.election) == before


def fetched(follower: One, response: FetchResponse, now_ms: float) -> Bundle:
    """An answer to the latest fetch."""
    return follower.do(follower.respond(response.leader_id, follower._next_correlation, response, now_ms), now_ms)


def is_left_alone(follower: One, sender: int, correlation: int, response: FetchResponse) -> bool:
    assert isinstance(follower.role, Follower)
    role, entries, next_fetch_ms = follower.role, list(follower.log.entries), follower.role.next_fetch_ms
    assert follower.respond(sender, correlation, response, 1_000) == Bundle()
    assert (follower.role, follower.log.entries, role.next_fetch_ms) == (role, entries, next_fetch_ms)
    return follower.is_waiting_for(role.leader_id)


def test_a_diverging_answer_that_comes_late_cuts_nothing() -> None:
    """It was true when it left: what it would cut has been replaced since, and is committed."""
    follower = One(2, [1, 1, 2, 2])
    diverging = FetchResponse(3, 1, diverging=EpochEnd(1, 2))
    follower.hear(BeginEpochRequest(3, 1, KEYS[2]))
    first = follower._next_correlation
    follower.do(follower.failed(1, first, False, 10), 10)  # no answer in time; it is on its way
    follower.do(follower.tick(follower.deadline_ms), follower.deadline_ms)
    second = follower._next_correlation
    fetched(follower, diverging, 100)
    assert follower.log.end_offset == 2
    third = follower._next_correlation
    assert fetched(follower, FetchResponse(3, 1, high_watermark=4, records=[Entry(3)] * 2), 110).replicate
    follower.log.entries += [Entry(3)] * 2
    follower.log.sync()
    follower.do(follower.replicated([], 120), 120)
    assert follower.high_watermark == 4
    assert len({first, second, third, follower._next_correlation}) == 4
    for late in (first, second, third):
        assert is_left_alone(follower, 1, late, diverging), "the fourth fetch is still under way"


def test_a_diverging_answer_of_an_earlier_leader_cuts_nothing() -> None:
    follower = One(2, [1, 1, 2, 2])
    diverging = FetchResponse(3, 1, diverging=EpochEnd(1, 2))
    follower.hear(BeginEpochRequest(3, 1, KEYS[2]))
    first = follower._next_correlation
    follower.hear(BeginEpochRequest(4, 3, KEYS[2]), 10)
    fetched(follower, FetchResponse(4, 3, high_watermark=4), 20)
    assert (follower.leader_id, follower.high_watermark) == (3, 4)
    assert is_left_alone(follower, 1, first, diverging)
    follower.hear(BeginEpochRequest(5, 1, KEYS[2]), 30)  # it leads again
    assert follower.leader_id == 1
    assert is_left_alone(follower, 1, first, diverging)


def slow_follower(number: int) -> One:
    """It has an answer of the leader of epoch 2, given at 100 ms, to write."""
    follower = One(number, [1])
    follower.hear(BeginEpochRequest(2, 1, follower.local))
    fetched(follower, FetchResponse(2, 1, high_watermark=1), 10)
    assert fetched(follower, FetchResponse(2, 1, high_watermark=1, records=[Entry(2)]), 100).replicate
    follower.log.entries.append(Entry(2))
    return follower


def test_followers_that_are_slow_do_not_depose_their_leader() -> None:
    """Both write one large batch for longer than a leader may be silent, and then wait for their disks."""
    slow = [slow_follower(2), slow_follower(3)]
    for follower in slow:
        follower.do(follower.replicated([], 1_300), 1_300)
        follower.do(follower.tick(1_300), 1_300)
        assert isinstance(follower.role, Follower)
        assert not follower.is_waiting_for(1), "it is not on stable storage"
        follower.do(follower.synced(follower.log.sync(), 2_200), 2_200)
        assert follower.is_waiting_for(1)
        follower.do(follower.tick(2_310), 2_310)
        assert isinstance(follower.role, Follower)
    assert not slow[1].hear(asks(2, 3, 2, 2, 2, pre_vote=True), 2_310).granted


def test_a_leader_that_dies_while_its_followers_are_slow_is_found_out() -> None:
    follower = slow_follower(2)
    follower.do(follower.replicated([], 1_300), 1_300)
    follower.do(follower.synced(follower.log.sync(), 1_400), 1_400)
    for now_ms in (1_500, 1_900, 2_300):
        follower.do(follower.failed(1, follower._next_correlation, False, now_ms), now_ms)
        follower.do(follower.synced(follower.log.synced_end_offset, now_ms + 1), now_ms + 1)
        follower.do(follower.tick(now_ms + 100), now_ms + 100)
    assert isinstance(follower.role, Prospective)
    assert follower.epoch == 2


def test_a_snapshot_that_takes_long_to_load_does_not_depose_the_leader() -> None:
    follower = One(2, [])
    follower.hear(BeginEpochRequest(2, 1, KEYS[2]))
    snapshot = SnapshotId(5, 2)
    fetched(follower, FetchResponse(2, 1, snapshot=snapshot), 10)
    chunk = FetchSnapshotResponse(2, 1, snapshot=snapshot, size=1, position=0, chunk=b"x")
    bundle = follower.respond(1, follower._next_correlation, chunk, 20)
    assert bundle.snapshot_chunk is not None
    follower.log.load_snapshot(snapshot, tuple([Entry(2)] * 5))
    follower.do(follower.snapshot_loaded(None, 1_300), 1_300)
    follower.do(follower.tick(1_310), 1_310)
    assert isinstance(follower.role, Follower)
    assert follower.is_waiting_for(1)
