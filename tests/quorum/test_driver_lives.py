"""Random lives of one to five metadata drivers under power loss, torn writes and partitions, in virtual time.

Every answered change is there in the end, on every node; everybody agrees; a node that comes back is never behind
what it persisted.
"""

import pytest

from tests.quorum.driver_world import DriverWorld

SEEDS = 6


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_answered_survives(seed: int) -> None:
    world = DriverWorld(seed)
    world.run()
    assert world.made > 50
