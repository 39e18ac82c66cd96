"""KIP-227, rule by rule, and against a model that remembers what a client asked for."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.fetch_sessions import EVICTION_MS, FetchSessionCache, Key
from penstock.model.errors import ErrorCode
from penstock.wire.fetch_fast import FetchPartition


class SeededRng:
    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)

    def random_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def wanted(offset: int = 0, partition: int = 0) -> FetchPartition:
    return FetchPartition(partition, -1, offset, -1, -1, 1000)


def ask(*indexes: int, offset: int = 0) -> list[tuple[Key, FetchPartition]]:
    return [(("t", index), wanted(offset, index)) for index in indexes]


def new_cache(slots: int = 10) -> FetchSessionCache:
    return FetchSessionCache(slots, SeededRng())


def test_a_full_fetch_opens_a_session_and_the_next_epoch_is_one():
    cache = new_cache()
    first = cache.resolve(0, 0, False, ask(0, 1), [], 0)
    assert first.session is not None
    assert not first.incremental
    session_id = first.session.session_id
    second = cache.resolve(session_id, 1, False, ask(1, offset=5), [("t", 0)], 1)
    assert second.incremental
    assert second.wanted == [(("t", 1), wanted(5, 1))]
    third = cache.resolve(session_id, 2, False, [], [], 2)
    assert third.wanted == second.wanted


def test_sessionless_fetches_leave_nothing_behind():
    cache = new_cache()
    outcome = cache.resolve(0, -1, False, ask(0), [], 0)
    assert outcome.session is None
    assert outcome.wanted == ask(0)
    assert len(cache) == 0


def test_closing_and_replacing_a_session():
    cache = new_cache()
    session = cache.resolve(0, 0, False, ask(0), [], 0).session
    assert session is not None
    replaced = cache.resolve(session.session_id, 0, False, ask(1), [], 0).session
    assert replaced is not None
    assert len(cache) == 1
    assert cache.resolve(session.session_id, 1, False, [], [], 0).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closing = cache.resolve(replaced.session_id, -1, False, ask(0), [], 0)
    assert closing.session is None
    assert len(cache) == 0


def test_wrong_epoch_and_wrong_kind_of_topic_are_refused():
    cache = new_cache()
    session = cache.resolve(0, 0, False, ask(0), [], 0).session
    assert session is not None
    assert cache.resolve(session.session_id, 2, False, [], [], 0).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.resolve(session.session_id, 1, True, [], [], 0).error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert cache.resolve(session.session_id, 1, False, [], [], 0).error == ErrorCode.NONE


def test_a_session_without_partitions_ends():
    cache = new_cache()
    session = cache.resolve(0, 0, False, ask(0), [], 0).session
    assert session is not None
    outcome = cache.resolve(session.session_id, 1, False, [], [("t", 0)], 0)
    assert outcome.session is None
    assert outcome.error == ErrorCode.NONE
    assert len(cache) == 0


def test_full_cache_serves_sessionless_until_somebody_is_idle():
    cache = new_cache(slots=1)
    first = cache.resolve(0, 0, False, ask(0), [], 0).session
    assert first is not None
    assert cache.resolve(0, 0, False, ask(1), [], EVICTION_MS - 1).session is None
    assert cache.resolve(0, 0, False, ask(1), [], EVICTION_MS).session is not None
    assert cache.evictions == 1
    assert cache.resolve(first.session_id, 1, False, [], [], 0).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_partitions_with_data_are_served_last_next_time():
    cache = new_cache()
    session = cache.resolve(0, 0, False, ask(0, 1, 2), [], 0).session
    assert session is not None
    session.move_to_back(("t", 0))
    outcome = cache.resolve(session.session_id, 1, False, [], [], 0)
    assert [key for key, _ in outcome.wanted] == [("t", 1), ("t", 2), ("t", 0)]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 4)), st.lists(st.integers(0, 4)), st.integers(0, 9)), max_size=20))
def test_a_session_holds_exactly_what_was_asked_and_not_forgotten(steps):
    cache = new_cache()
    session = cache.resolve(0, 0, False, ask(9), [], 0).session
    assert session is not None
    model = {("t", 9): wanted(0, 9)}
    for epoch, (added, forgotten, offset) in enumerate(steps, start=1):
        outcome = cache.resolve(
            session.session_id, epoch, False, ask(*added, offset=offset), [("t", n) for n in forgotten], epoch
        )
        model.update(ask(*added, offset=offset))
        for index in forgotten:
            model.pop(("t", index), None)
        assert dict(outcome.wanted) == model
