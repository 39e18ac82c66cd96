"""Random lives of clients and coordinators, checked against what must hold whatever happens (see `world.py`)."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.transactions.swarm import Swarm


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
@example(1927)  # a late EndTxn after a reload in the middle of a transaction
def test_what_must_hold_holds(seed: int) -> None:
    Swarm(seed).run(300)
