"""`penstock sim run`: clusters of real brokers and real clients in a simulated world, seed by seed."""

import os
import time

import click

from penstock.cli import exits
from penstock.cli.exits import talk

_TELL_S = 10.0
"""How often a line tells how far it is."""


@click.group()
def sim() -> None:
    """Run clusters in a deterministic simulation with faults."""


@sim.command("run")
@click.option("--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="How many seeds to run.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--seed", type=click.IntRange(min=0), default=None, help="Run just this seed again.")
@click.option("--trace", is_flag=True, help="Print what happens, line by line; with --seed.")
@click.option("--plain", is_flag=True, help="The seed as it was before worlds had extras; with --seed.")
@click.option("--wire", is_flag=True, help="In the trace, tell every request that arrives.")
@click.option(
    "--nodes", type=click.IntRange(1, 9), default=None, help="Nodes in the cluster; drawn per seed if left out."
)
@click.option("--jobs", type=click.IntRange(min=1), default=None, help="Processes to run seeds in; one per core.")
@click.option("--keep-going", is_flag=True, help="Do not stop at the first seed that fails.")
def run(
    seeds: int,
    first: int,
    seed: int | None,
    trace: bool,
    plain: bool,
    wire: bool,
    nodes: int | None,
    jobs: int | None,
    keep_going: bool,
) -> int:
    """Run seeds until one fails, or all are done.

    A seed decides everything: the cluster, the work, the faults, every delay. A failure says how to see it again.
    """
    if seed is None and (trace or wire or plain):
        raise click.UsageError("--trace, --wire and --plain are about one seed: name it with --seed")
    try:
        import aiokafka  # noqa: F401
    except ImportError:
        talk("error: the simulated clients are aiokafka's, and it is not installed")
        talk("hint: pip install aiokafka")
        return exits.FAILED
    if seed is not None:
        return _run_one(seed, nodes, trace, wire, plain)
    return _run_many(range(first, first + seeds), nodes, jobs or os.cpu_count() or 1, keep_going)


def _run_one(seed: int, nodes: int | None, trace: bool, wire: bool, plain: bool) -> int:
    from penstock.sim.cluster import draw_nodes
    from penstock.sim.runner import try_seed

    outcome = try_seed(seed, nodes or draw_nodes(seed), click.echo if trace else None, wire=wire, plain=plain)
    if outcome.failure is not None:
        _tell(outcome)
        return exits.FAILED
    talk(f"seed {seed} holds: {outcome.result}")
    return exits.OK


def _run_many(seeds: range, nodes: int | None, jobs: int, keep_going: bool) -> int:
    from penstock.sim.cluster import draw_nodes
    from penstock.sim.runner import Tally, run_seeds

    tally = Tally()
    talk(f"{len(seeds)} seeds from {seeds.start} on, in {jobs} {'process' if jobs == 1 else 'processes'}")
    told_at = time.monotonic()
    for outcome in run_seeds(seeds, lambda seed: nodes or draw_nodes(seed), jobs):
        tally.add(outcome)
        if outcome.failure is not None:
            _tell(outcome)
            if not keep_going:
                break
        if time.monotonic() >= told_at + _TELL_S:
            told_at = time.monotonic()
            talk(tally.progress(len(seeds)))
    talk(str(tally))
    return exits.FAILED if tally.failures else exits.OK


def _tell(outcome: object) -> None:
    from penstock.sim.runner import Outcome

    assert isinstance(outcome, Outcome)
    for line in outcome.lines:
        talk(line)
    talk(f"seed {outcome.seed} with {outcome.nodes} nodes failed: {outcome.failure}")
    talk(f"hint: penstock sim run --seed {outcome.seed} --nodes {outcome.nodes} --trace shows how it came")
