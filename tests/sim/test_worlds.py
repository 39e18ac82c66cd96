"""Whole worlds: the same seed is the same world; seeds that once found something; as many others as time allows."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.sim.cluster import Result, draw_nodes, draw_world, run_seed
from penstock.sim.extras import PLAIN, Extras, draw_extras, draw_first_extras, draw_second_extras
from penstock.sim.runner import Outcome, Tally, run_seeds, try_seed

pytest.importorskip("aiokafka")

SEEDS = Path(__file__).parent / "seeds" / "found.txt"
SWEEP_S = 90.0
"""What `make test` spends on the sweep."""
SWEEP_SEEDS = 20
"""Fewer prove nothing, however slow the machine is."""
UNLIKE = (7, 431, 1479)
"""Short ones that together have all that a world can have."""


EXTRAS: dict[str, Callable[[int, int], Extras]] = {
    "plain": lambda *_: PLAIN,
    "first": draw_first_extras,
    "second": draw_second_extras,
    "all": draw_extras,
}


def named_seeds() -> list[tuple[int, int, str, str]]:
    lines = (line.split() for line in SEEDS.read_text().splitlines() if line and not line.startswith("#"))
    return [(int(nodes), int(seed), name, extras) for nodes, seed, name, extras in lines]


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_same_seed_is_the_same_world(nodes: int) -> None:
    assert run_seed(7, nodes) == run_seed(7, nodes)


def test_another_seed_is_another_world() -> None:
    assert run_seed(7).digest != run_seed(8).digest


def parts_of(seed: int) -> set[str]:
    """What there is in the world of a seed whose order could depend on hashes."""
    nodes = draw_nodes(seed)
    _, _, shape = draw_world(seed, nodes)
    drawn = {**draw_extras(seed, nodes)._asdict(), **shape._asdict()}
    drawn["several partitions"], drawn["several members"] = shape.partitions > 1, shape.consumers > 1
    drawn["takes_offsets"] = drawn["takes_offsets"] and shape.transactional
    return {name for name, value in drawn.items() if value}


def test_the_order_of_hashes_decides_nothing() -> None:
    everything = {"transactional", "takes_offsets", "pipelining", "several partitions", "several members", "operator"}
    everything |= {"churn", "deletes", "retention_bytes", "snapshot_bytes", "compacts", "rot_rate", "balances"}
    everything |= {"racks", "hasty_acks", "reads_all"}
    assert everything <= set().union(*map(parts_of, UNLIKE))
    program = (
        "import sys; from penstock.sim.cluster import draw_nodes, run_seed\n"
        "print([run_seed(seed, draw_nodes(seed)).digest for seed in map(int, sys.argv[1:])])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program, *map(str, UNLIKE)],
            env={**os.environ, "PYTHONHASHSEED": number},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(told) == 1


@pytest.mark.parametrize(("nodes", "seed", "name", "extras"), named_seeds())
def test_a_seed_that_found_something_holds_now(nodes: int, seed: int, name: str, extras: str) -> None:
    run_seed(seed, nodes, extras=EXTRAS[extras](seed, nodes))


@pytest.mark.figures
def test_as_many_seeds_as_fit() -> None:
    """Always the same ones, from 0 on: `make sim` goes further. Whatever was begun is judged."""
    tally = Tally()
    end = time.monotonic() + SWEEP_S

    def seeds() -> Iterator[int]:
        for seed in range(10_000):
            if tally.failures or (time.monotonic() > end and seed >= SWEEP_SEEDS):
                return
            yield seed

    for outcome in run_seeds(seeds(), draw_nodes, os.cpu_count() or 1):
        tally.add(outcome)
    print(tally)
    assert tally.failures or tally.seeds >= SWEEP_SEEDS
    assert not tally.failures, f"{tally.failures[0].failure}\n" + "\n".join(tally.failures[0].lines)


def test_a_failure_is_told_with_its_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sim.ghost_log import GhostLog, Violation

    def fail(self: GhostLog, *_: object) -> None:
        raise Violation("P11: made up")

    monkeypatch.setattr(GhostLog, "shows", fail)
    outcome = try_seed(7, 1)
    assert outcome.failure is not None
    assert "P11: made up" in outcome.failure
    assert any("n1" in line for line in outcome.lines)


def test_the_command_runs_seeds_and_one_of_them_again() -> None:
    from click.testing import CliRunner

    from penstock.cli.main import cli

    many = CliRunner().invoke(
        cli, ["sim", "run", "--seeds", "2", "--nodes", "1", "--jobs", "2"], standalone_mode=False
    )
    assert (many.exception, many.return_value) == (None, 0)
    one = CliRunner().invoke(cli, ["sim", "run", "--seed", "1", "--nodes", "1", "--trace"], standalone_mode=False)
    assert (one.exception, one.return_value) == (None, 0)
    assert "n1       serves" in one.output


@pytest.mark.parametrize(
    ("total", "told"),
    [
        (40, "4 of 40 seeds, 1 failed, 2 seeds/min, 18.0 min left"),
        (400, "4 of 400 seeds, 1 failed, 2 seeds/min, 3.3 h left"),
        (4, "4 of 4 seeds, 1 failed, 2 seeds/min, 0.0 min left"),
    ],
)
def test_a_tally_tells_how_far_it_is(total: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((1_000.0, *(1_120.0,) * 2))
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    tally = Tally()
    for seed in range(3):
        tally.add(Outcome(seed, 1, 0.5, Result("digest", turns=7, virtual_s=2.0, acknowledged=5, faults=1), None))
    tally.add(Outcome(3, 3, 0.5, None, "P1: made up"))
    assert tally.progress(total) == told
    assert (tally.acknowledged, tally.turns, tally.faults, tally.virtual_s) == (15, 21, 3, 6.0)
    assert [outcome.seed for outcome in tally.failures] == [3]


def test_a_tally_of_nothing_can_be_told() -> None:
    assert Tally().progress(5).startswith("0 of 5 seeds, 0 failed, 0 seeds/min, ")
