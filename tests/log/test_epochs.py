"""The leader epoch cache against a plain list of (offset, epoch). Invariant P9: both columns strictly increase."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.checkpoints import decode_epochs, encode_epochs
from penstock.log.epochs import LeaderEpochs


def test_end_offsets_as_kafka_answers_them() -> None:
    epochs = LeaderEpochs([(2, 10), (4, 20), (7, 35)])
    assert epochs.end_offset(-1, 50) == (-1, -1)
    assert epochs.end_offset(8, 50) == (-1, -1), "the future is unknown"
    assert epochs.end_offset(7, 50) == (7, 50)
    assert epochs.end_offset(5, 50) == (4, 35)
    assert epochs.end_offset(4, 50) == (4, 35)
    assert epochs.end_offset(2, 50) == (2, 20)
    assert epochs.end_offset(0, 50) == (0, 10), "before the first known one"
    assert LeaderEpochs().end_offset(0, 0) == (-1, -1)
    assert epochs.end_offset(-2, 50) == LeaderEpochs().end_offset(-2, 0) == (-1, -1), "no epoch, whoever asks"


def test_epoch_at() -> None:
    epochs = LeaderEpochs([(2, 10), (4, 20)])
    assert [epochs.epoch_at(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 4, 4]


def test_truncation_at_both_ends() -> None:
    epochs = LeaderEpochs([(2, 10), (4, 20), (7, 35)])
    epochs.truncate_to(20)
    assert epochs.entries() == [(2, 10)]
    assert epochs.latest == 2
    epochs = LeaderEpochs([(2, 10), (4, 20), (7, 35)])
    epochs.truncate_from_start(25)
    assert epochs.entries() == [(4, 25), (7, 35)]
    epochs.truncate_from_start(35)
    assert epochs.entries() == [(7, 35)]
    epochs.truncate_from_start(5)
    assert epochs.entries() == [(7, 35)]


def test_an_epoch_that_wrote_nothing_is_replaced() -> None:
    epochs = LeaderEpochs([(1, 0), (2, 10)])
    epochs.assign(3, 10)
    assert epochs.entries() == [(1, 0), (3, 10)]
    epochs.assign(3, 12)
    assert epochs.entries() == [(1, 0), (3, 10)], "the first offset counts"


def test_changes_are_counted() -> None:
    epochs = LeaderEpochs([(1, 0)])
    assert epochs.version == 0
    epochs.assign(1, 5)
    epochs.truncate_to(99)
    assert epochs.version == 0
    epochs.assign(2, 5)
    epochs.truncate_to(5)
    assert epochs.version == 2


@given(st.lists(st.tuples(st.sampled_from("atfc"), st.integers(0, 30), st.integers(0, 100)), max_size=30))
def test_always_strictly_increasing_and_round_trips(steps: list[tuple[str, int, int]]) -> None:
    epochs = LeaderEpochs()
    for kind, epoch, offset in steps:
        if kind == "a":
            epochs.assign(epoch, offset)
        elif kind == "t":
            epochs.truncate_to(offset)
        elif kind == "f":
            epochs.truncate_from_start(offset)
        else:
            epochs.clear()
        entries = epochs.entries()
        assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(entries))
        assert epochs.latest == (entries[-1][0] if entries else -1)
        assert decode_epochs(encode_epochs(entries)) == entries
