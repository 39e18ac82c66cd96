"""Every checker can fail: histories made by hand, each with one thing wrong."""

import pytest

from penstock.sim.checkers import CHECKERS, check_history
from penstock.sim.history import (
    Assigned,
    Begin,
    Commit,
    Committed,
    DeleteRecords,
    Event,
    Final,
    History,
    Outcome,
    Poll,
    Send,
    TransactionEnd,
    TransactionOffset,
)

P = ("t", 0)
Q = ("t", 1)
OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def sent(value: str, offset: int, **more: object) -> Send:
    return Send("p", P, value, OK, offset, **more)  # type: ignore[arg-type]


GOOD: list[Event] = [
    sent("a", 0),
    Assigned("z", "g", 1),
    Assigned("c", "g", 1),
    Begin("c", "g", P, 0, 1),
    Poll("c", P, ((0, "a"),), 1),
    Commit("c", "g", P, 1, OK),
    sent("b", 1),
    Send("p", P, "c", UNKNOWN),
    Send("p", P, "x", FAILED),
    Poll("c", P, ((1, "b"), (2, "c")), 1),
    Assigned("d", "g", 2),
    Begin("d", "g", P, 1, 2),
    Poll("d", P, ((1, "b"), (2, "c")), 2),
    Begin("z", "g", P, 0, 1),  # a member that was cut off and given up knows nothing of what others committed
    Poll("z", P, ((0, "a"),), 1),
    sent("e", 3, transaction=1),
    TransactionEnd("p", 1, True, UNKNOWN, begun=True),
    Poll("r", P, ((0, "a"), (1, "b"), (2, "c"), (3, "e")), 0, True),
    TransactionEnd("p", 1, True, OK),
    sent("f", 5, transaction=2),
    TransactionEnd("p", 2, False, OK),
    Poll("d", P, ((3, "e"), (5, "f")), 2),
    Final(P, ((0, "a"), (1, "b"), (2, "c"), (3, "e"), (5, "f"))),
    Final(P, ((0, "a"), (1, "b"), (2, "c"), (3, "e")), True),
    Committed("x", "g", P, 1),
]

BAD: dict[str, list[Event]] = {
    "inconsistent-offsets": [sent("a", 0), sent("b", 1), Poll("c", P, ((0, "b"),))],
    "duplicate": [sent("a", 0), Poll("c", P, ((0, "a"), (1, "a")))],
    "phantom": [Poll("c", P, ((0, "a"),))],
    "lost-write": [sent("a", 0), sent("b", 1), Final(P, ((0, "a"),))],
    "vanished-read": [Send("p", P, "a", UNKNOWN), Poll("c", P, ((0, "a"),)), Final(P, ())],
    "poll-skip": [
        sent("a", 0),
        sent("b", 1),
        Assigned("c", "g", 1),
        Begin("c", "g", P, 0, 1),
        Poll("c", P, ((1, "b"),), 1),
        Final(P, ((0, "a"), (1, "b"))),
    ],
    "int-poll-skip": [
        sent("a", 0),
        sent("b", 1),
        sent("c", 2),
        Poll("c", P, ((0, "a"), (2, "c"))),
        Poll("d", P, ((1, "b"),)),
    ],
    "nonmonotonic-poll": [sent("a", 0), sent("b", 1), Poll("c", P, ((0, "a"), (1, "b"))), Poll("c", P, ((1, "b"),))],
    "int-nonmonotonic-poll": [sent("a", 0), sent("b", 1), Poll("c", P, ((1, "b"), (0, "a")))],
    "nonmonotonic-send": [sent("a", 1), sent("b", 0)],
    "aborted-read": [
        sent("a", 0, transaction=1),
        TransactionEnd("p", 1, False, OK),
        Poll("c", P, ((0, "a"),), 0, True),
    ],
    "dirty-read": [sent("a", 0, transaction=1), Poll("c", P, ((0, "a"),), 0, True)],
    "torn-transaction": [
        sent("a", 0, transaction=1),
        sent("b", 1, transaction=1),
        TransactionEnd("p", 1, True, OK),
        Final(P, ((0, "a"),), True),
    ],
    "hidden-write": [sent("a", 0), sent("b", 1), Final(P, ((0, "a"), (1, "b"))), Final(P, ((0, "a"),), True)],
    "torn-offsets": [
        TransactionOffset("x", 1, "g", P, 1),
        TransactionEnd("x", 1, True, OK),
        TransactionOffset("x", 2, "g", P, 2),
        TransactionEnd("x", 2, False, OK),
        Committed("f", "g", P, 2),
    ],
    "undone-deletion": [
        sent("a", 0),
        sent("b", 1),
        DeleteRecords("o", P, 1, OK, lasts=True),
        Final(P, ((0, "a"), (1, "b"))),
    ],
    "lost-commit": [
        Assigned("c", "g", 1),
        Begin("c", "g", P, 0, 1),
        Commit("c", "g", P, 5, OK),
        Commit("c", "g", P, 9, UNKNOWN),
        Assigned("d", "g", 2),
        Begin("d", "g", P, 3, 2),
        Committed("d", "g", P, 3),
    ],
}


def test_a_commit_that_is_gone_in_the_end_is_lost() -> None:
    """Also where no member ever had to begin again."""
    told: list[Event] = [Commit("c", "g", P, 5, OK), Commit("c", "g", P, 7, UNKNOWN), Commit("c", "g", P, 9, OK)]
    assert [each.name for each in check_history(History([*told, Committed("x", "g", P, 5)]))] == ["lost-commit"]
    assert check_history(History([*told, Committed("x", "g", P, 7)])) == []
    assert check_history(History([*told, Committed("x", "g", P, 9)])) == []


def test_of_two_members_the_last_commit_counts_in_the_end_unless_they_overlapped() -> None:
    first, second = Commit("c", "g", P, 5, OK), Commit("d", "g", P, 9, OK)
    begun = [each._replace(outcome=UNKNOWN, begun=True) for each in (first, second)]
    told: dict[str, list[Event]] = {
        "one after the other": [begun[0], first, begun[1], second],
        "overlapping": [begun[0], begun[1], first, second],
    }

    def wrong(story: str, *, in_the_end: bool) -> list[int]:
        seen = [Committed("f", "g", P, offset, in_the_end) for offset in (5, 9)]
        return [each.offset for each in seen if check_history(History([*told[story], each]))]

    assert wrong("one after the other", in_the_end=True) == [5]
    assert wrong("one after the other", in_the_end=False) == [], "it may have been asked for before that"
    assert wrong("overlapping", in_the_end=True) == []


def begins(position: int, *before: Event, **final: int) -> list[str]:
    """What is said of a member that is given a partition of six records and reads on from there."""
    values = tuple(enumerate("abcdef"))
    told: list[Event] = [sent(value, offset) for offset, value in values]
    told += [*before, Assigned("d", "g", 1), Begin("d", "g", P, position, 1), Poll("d", P, values[position:], 1)]
    there = values[final.get("start_offset", 0) :]
    told += [Final(P, there, committed, **final) for committed in (False, True)]
    return sorted({each.name for each in check_history(History(told))} - {"vanished-read"})


def test_a_group_skips_nothing_when_it_begins() -> None:
    commit = Commit("c", "g", P, 2, UNKNOWN, begun=True)
    assert begins(0) == begins(2, commit) == begins(1, commit) == begins(3, start_offset=3) == []
    assert begins(1) == begins(3, commit) == begins(3, commit, start_offset=2) == ["poll-skip"]
    assert begins(4, commit, Commit("c", "g", P, 4, FAILED), Commit("c", "h", P, 5, OK)) == []
    assert begins(5, commit, Commit("c", "g", P, 4, FAILED), Commit("c", "h", P, 5, OK)) == ["poll-skip"]


def test_a_member_may_be_given_what_it_had_fetched_before_it_lost_its_partitions() -> None:
    held: list[Event] = [Assigned("d", "g", 1), Begin("d", "g", P, 0, 1), Poll("d", P, ((0, "a"), (1, "b")), 1)]
    assert begins(2, *held) == []
    assert begins(3, *held) == ["poll-skip"]


def half_told(in_p: bool, in_q: bool, offset: int) -> list[str]:
    """What is said of a transaction that was being committed when its client lost the coordinator."""
    told: list[Event] = [
        TransactionOffset("p", 1, "g", P, 1),
        TransactionEnd("p", 1, True, UNKNOWN, begun=True),
        TransactionEnd("p", 1, True, OK),
        sent("a", 0, transaction=2),
        Send("p", Q, "b", OK, 0, 2),
        TransactionOffset("p", 2, "g", P, 2),
        TransactionEnd("p", 2, True, UNKNOWN, begun=True),
        TransactionEnd("p", 2, True, UNKNOWN),
        Final(P, ((0, "a"),)),
        Final(Q, ((0, "b"),)),
        Final(P, ((0, "a"),) if in_p else (), True),
        Final(Q, ((0, "b"),) if in_q else (), True),
        Committed("f", "g", P, offset),
    ]
    return [each.name for each in check_history(History(told))]


def test_a_transaction_whose_end_nobody_was_told_is_there_or_is_not() -> None:
    assert half_told(True, True, 2) == half_told(False, False, 1) == []
    assert half_told(True, False, 2) == half_told(False, True, 1) == ["torn-transaction"]


def test_an_offset_goes_with_the_records_of_its_transaction() -> None:
    assert half_told(True, True, 1) == ["torn-offsets"]
    assert half_told(False, False, 2) == ["torn-offsets"]


def test_offsets_are_those_of_the_last_transaction_that_may_be_committed() -> None:
    told: list[Event] = [
        TransactionOffset("x", 1, "g", P, 1),
        TransactionEnd("x", 1, True, UNKNOWN, begun=True),
        TransactionEnd("x", 1, True, UNKNOWN),
        TransactionOffset("x", 2, "g", P, 2),
        TransactionEnd("x", 2, True, UNKNOWN, begun=True),
        TransactionEnd("x", 2, True, OK),
        TransactionOffset("x", 3, "g", P, 3),  # never ended: whoever comes after it aborts it
        TransactionOffset("x", 4, "g", P, 4),
        TransactionEnd("x", 4, True, UNKNOWN, begun=True),
    ]
    wrong = [offset for offset in (-1, 1, 2, 3, 4) if check_history(History([*told, Committed("f", "g", P, offset)]))]
    assert wrong == [-1, 1, 3]
    assert check_history(History([*told[:3], Committed("f", "g", P, -1)])) == []


def test_what_lies_below_the_log_start_was_deleted() -> None:
    told: list[Event] = [sent("a", 0), sent("b", 1), sent("c", 2), sent("r", -1)]
    told.append(DeleteRecords("o", P, 1, UNKNOWN, lasts=False))
    gone = [Final(P, ((1, "b"), (2, "c")), committed, 1) for committed in (False, True)]
    assert check_history(History([*told, *gone])) == []
    lost = [Final(P, ((1, "b"),), False, 1)]
    assert [each.name for each in check_history(History([*told, *lost]))] == ["lost-write"]


def test_only_who_is_not_idempotent_may_find_a_record_twice() -> None:
    twice = Final(P, ((0, "a"), (1, "b"), (2, "a")))
    for repeats, wrong in ((False, ["duplicate"]), (True, [])):
        told: list[Event] = [sent("b", 1), sent("a", 2, repeats=repeats), twice]
        assert [each.name for each in check_history(History(told))] == wrong
    lost: list[Event] = [sent("a", 0, repeats=True), Final(P, ())]
    assert [each.name for each in check_history(History(lost))] == ["lost-write"]


def test_a_deletion_may_be_undone_by_what_went_wrong_after_it() -> None:
    told = [sent("a", 0), sent("b", 1), DeleteRecords("o", P, 1, OK, lasts=False), Final(P, ((0, "a"), (1, "b")))]
    assert check_history(History(told)) == []


def test_a_good_history_passes() -> None:
    assert check_history(History(GOOD)) == []


@pytest.mark.parametrize("name", BAD)
def test_each_anomaly_is_found(name: str) -> None:
    assert name in {anomaly.name for anomaly in check_history(History(BAD[name]))}


def test_every_checker_finds_something() -> None:
    for check in CHECKERS:
        assert any(check(History(events)) for events in BAD.values()), check.__name__


def test_a_write_that_is_acknowledged_as_a_repeated_one_is_somewhere() -> None:
    assert not check_history(History([sent("a", 0), sent("b", -1), Final(P, ((0, "a"), (1, "b")))]))
    assert [each.name for each in check_history(History([sent("b", -1), Final(P, ())]))] == ["lost-write"]
