"""Whole lives of quorums under faults, and mutants that must not survive them.

`SEEDS` run with every `make test`; the figures are printed. A seed that ever failed stays here by name.
"""

import time

import pytest

from penstock.sim.quorum_world import QuorumWorld
from tests.quorum.mutants import MUTANTS
from tests.verdicts import verdict

SEEDS = 90
_BLOCK = 30
BUDGET = 60
"""Within so many seeds every mutant is caught."""

FIRST_SEEDS = {
    "no look at the epoch in front of the log (R6)": 48,
}
"""Where the search begins for those that hide in the first seeds."""

NAMED = {
    4: "a candidate nobody can elect kept resetting the timers of those who could be",
    2: "a leader removed the voter that followed it and kept the one that was silent",
    3: "a removed leader commits its removal and is gone in the same moment",
}


@pytest.mark.figures
@pytest.mark.parametrize("first", range(0, SEEDS, _BLOCK))
def test_lives(first: int) -> None:
    started = time.process_time()
    events = elections = acknowledged = 0
    for seed in range(first, first + _BLOCK):
        world = QuorumWorld(seed)
        try:
            world.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        events += world.events
        elections += world.checks.elections
        acknowledged += len(world.checks.acknowledged)
    per_minute = 60 * _BLOCK / (time.process_time() - started)
    print(f"{_BLOCK} seeds, {per_minute:.0f} per minute: {events} events, {elections} elections, {acknowledged} acks")
    assert elections > _BLOCK
    assert acknowledged > 5 * _BLOCK


@pytest.mark.parametrize("seed", NAMED, ids=lambda seed: f"{seed}")
def test_named_seeds(seed: int) -> None:
    QuorumWorld(seed).run()


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    for seed in range(first, first + BUDGET):
        with MUTANTS[name]():
            found = verdict(QuorumWorld(seed).run)
            if found is not None:
                print(f"seed {seed}: {found[:100]}")
                return
    raise AssertionError(f"{name}: survived {BUDGET} seeds")


def test_a_seed_tells_the_same_story_twice() -> None:
    def story() -> list[str]:
        world = QuorumWorld(11)
        world.trace = []
        world.run(3_000)
        return world.trace

    assert story() == story()
