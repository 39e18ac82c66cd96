"""Every mutant is found within its budget of seeds; the quick ones with every run of the tests."""

import pytest

from penstock.sim.cluster import run_seed
from tests.sim.mutants import FOUND_ELSEWHERE, MUTANTS, Mutant

pytest.importorskip("aiokafka")

QUICK = [mutant for mutant in MUTANTS if mutant.seeds <= 20]
SLOW = [mutant for mutant in MUTANTS if mutant not in QUICK]


def find(mutant: Mutant) -> str | None:
    """What gives it away; None when nothing does within its budget."""
    with pytest.MonkeyPatch.context() as patch:
        mutant.put_in(patch)
        for seed in range(mutant.seeds):
            try:
                run_seed(seed, mutant.nodes, kinds=mutant.kinds)
            except Exception as error:  # whatever is wrong with the world, the mutant did it
                return f"seed {seed}: {type(error).__name__}: {error}"
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
    from tests.controller.test_lives import MUTANTS as CONTROLLER
    from tests.quorum.mutants import MUTANTS as QUORUM
    from tests.replication.test_mutants import MUTANTS as REPLICATION

    known = {*QUORUM, *REPLICATION, *CONTROLLER}
    for names in FOUND_ELSEWHERE.values():
        assert known.issuperset(names)
    assert len(MUTANTS) + len(known) >= 20
