"""The sharded map against a dict, old versions included."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.shard_map import ShardMap

CHANGES = st.lists(st.dictionaries(st.integers(0, 400), st.none() | st.integers(), max_size=150), max_size=8)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_it_is_a_dict_that_keeps_its_past(changes: list[dict[int, int | None]]) -> None:
    versions: list[tuple[ShardMap[int, int], dict[int, int]]] = [(ShardMap(), {})]
    for change in changes:
        subject, model = versions[-1]
        new = {key: value for key, value in {**model, **change}.items() if value is not None}
        versions.append((subject.changed(change), new))
    for subject, model in versions:
        assert len(subject) == len(model)
        assert dict(subject.items()) == model
        assert sorted(subject) == sorted(model)
        assert sorted(subject.values()) == sorted(model.values())
        for key in range(401):
            assert subject.get(key) == model.get(key)
            assert (key in subject) == (key in model)


def test_a_change_copies_little() -> None:
    large = ShardMap({number: number for number in range(100_000)})
    changed = large.changed({5: 6})
    same = sum(old is new for old, new in zip(large._shards, changed._shards, strict=True))
    assert same == len(large._shards) - 1
    assert (large[5], changed[5]) == (5, 6)


def test_no_change_is_no_copy() -> None:
    subject = ShardMap({1: 2})
    assert subject.changed({}) is subject
