"""An answer counts while its question is open; a question is gone with those who asked it."""

from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from penstock.replication.verification import Verifications
from tests.log.logs import new_log


def test_an_answer_counts_until_a_marker_is_written() -> None:
    asked = Verifications()
    first, second, other = asked.begin(7), asked.begin(7), asked.begin(8)
    assert asked.is_open(7, first)
    assert asked.is_open(7, second)
    asked.marker_written(7)
    again = asked.begin(7)
    assert not asked.is_open(7, first)
    assert not asked.is_open(7, second)
    assert asked.is_open(7, again)
    assert asked.is_open(8, other)
    assert not asked.is_open(7, other)


def test_a_question_is_gone_with_the_last_who_asked_it() -> None:
    asked = Verifications()
    first, second = asked.begin(7), asked.begin(7)
    del first
    assert len(asked._questions) == 1
    del second
    assert len(asked._questions) == 0


def test_no_answer_counts_once_the_partition_is_given_up() -> None:
    partition = Partition("t", 0, b"t" * 16, new_log(), 1)
    question = partition.begin_verification(7)
    assert partition.is_verified(7, question)
    assert not partition.is_verified(7, None)
    partition.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert not partition.is_verified(7, question)
