"""Every mutant is found within its budget of seeds; the quick ones with every run of the tests."""

from functools import partial

import pytest

from penstock.node.identity import NodeRefused
from penstock.sim.cluster import run_seed
from penstock.sim.loop import Deadlock, OutOfTime
from tests.sim.mutants import FOUND_ELSEWHERE, MUTANTS, Mutant
from tests.verdicts import verdict

CorruptRecordException: type[Exception] = pytest.importorskip("aiokafka.errors").CorruptRecordException

QUICK = [mutant for mutant in MUTANTS if mutant.seeds <= 20]
SLOW = [mutant for mutant in MUTANTS if mutant not in QUICK]
WORLD_ENDS = (Deadlock, OutOfTime, TimeoutError, NodeRefused, CorruptRecordException)
"""How a world ends in which nothing moves on, a node does not start again, or a client is given damaged records."""


def find(mutant: Mutant) -> str | None:
    """What gives it away; None when nothing does within its budget."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.put_in(patch)
        for seed, extras in mutant.tried():
            world = partial(run_seed, seed, mutant.nodes, kinds=mutant.kinds, extras=extras)
            found = verdict(world, also=WORLD_ENDS)
            if found is not None:
                return f"seed {seed}: {found}"
    return None


@pytest.mark.parametrize("mutant", QUICK, ids=lambda each: each.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    found = find(mutant)
    print(f"{mutant.name}: {found}")
    assert found is not None


@pytest.mark.soak
@pytest.mark.parametrize("mutant", SLOW, ids=lambda each: each.name)
def test_a_mutant_is_found_in_time(mutant: Mutant) -> None:
    found = find(mutant)
    print(f"{mutant.name}: {found}")
    assert found is not None


def test_the_list_of_those_found_elsewhere_is_true() -> None:
    from tests.controller.test_lives import MUTANT_SEEDS
    from tests.controller.test_lives import MUTANTS as CONTROLLER
    from tests.quorum.mutants import MUTANTS as QUORUM
    from tests.replication.test_mutants import KILLERS, SEEDS
    from tests.replication.test_mutants import MUTANTS as REPLICATION

    rooms = (QUORUM, REPLICATION, CONTROLLER)
    for (told, names), known in zip(FOUND_ELSEWHERE.items(), rooms, strict=True):
        assert set(known).issuperset(names)
        assert f"({len(known)}" in told
    by_lives = len(REPLICATION) - len(KILLERS)
    _, replication, controller = FOUND_ELSEWHERE
    assert f"{by_lives} by random lives within {SEEDS} seeds, {len(KILLERS)} by the stories" in replication
    assert f"within {MUTANT_SEEDS} seeds" in controller
