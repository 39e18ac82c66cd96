"""Random lives of groups of both protocols, see `consumer_lives`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.consumer.group import ConsumerGroup
from tests.groups.consumer_clients import ClassicClient, ConsumerClient
from tests.groups.consumer_lives import (
    ACTIONS,
    ASSIGNMENT_INTERVALS_MS,
    CAST_SIZE,
    INLINE_SIZES,
    MAX_STEPS,
    MIN_STEPS,
    Life,
    live,
    settle,
    unsettled,
)
from tests.groups.consumer_world import World

LIVES = st.builds(
    Life,
    # Hypothesis likes short lists: left to itself it would hardly ever get to the interesting part.
    st.lists(
        st.tuples(st.sampled_from(ACTIONS), st.integers(0, CAST_SIZE - 1), st.integers(0, 7)),
        min_size=MIN_STEPS,
        max_size=MAX_STEPS,
    ),
    st.lists(st.integers(0, 7), min_size=CAST_SIZE, max_size=CAST_SIZE, unique=True),
    st.integers(1, CAST_SIZE),
    st.sampled_from(INLINE_SIZES),
    st.sampled_from(ASSIGNMENT_INTERVALS_MS),
)


@given(life=LIVES)
@settings(max_examples=300, deadline=None)
def test_random_lives(life: Life) -> None:
    live(life)


@pytest.mark.soak
@given(life=LIVES)
@settings(max_examples=30_000, deadline=None)
def test_many_random_lives(life: Life) -> None:
    live(life)


def test_clients_of_both_protocols_meet() -> None:
    """The random lives are worth something: in the end all kinds of clients have been in one group."""
    world = World(2_000)
    settle(world, world.clients)
    assert unsettled(world) == ""
    assert isinstance(world.group, ConsumerGroup)
    kinds = {type(c) for c in world.clients if c.member_id in world.group.members}
    assert kinds == {ConsumerClient, ClassicClient}
