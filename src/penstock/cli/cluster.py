"""`penstock cluster up|describe|balance|drain|remove`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.exits import UNREACHABLE, Failure
from penstock.cli.options import bootstrap_option, client_options, parse_assignments
from penstock.cli.output import print_json, print_rows
from penstock.cli.running import admin, run

if TYPE_CHECKING:
    from penstock.client import Admin
    from penstock.client.admin.descriptions import QuorumDescription

_CONTROLLER_WAIT_MS = 5_000
"""Longer than an election takes where there is a majority."""


@click.group()
def cluster() -> None:
    """Run a cluster, look at one, and move what it holds."""


@cluster.command("up")
@click.option("--brokers", "-n", type=click.IntRange(1, 99), default=3, show_default=True, help="Brokers to run.")
@click.option(
    "--port",
    "-p",
    type=click.IntRange(1, 65_000),
    default=9092,
    show_default=True,
    help="Port of the first broker; broker i is on PORT + 2i, its controller one above.",
)
@click.option("--data", "-d", default="./penstock-data", show_default=True, metavar="DIR", help="Data directory.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of all brokers.")
def up(brokers: int, port: int, data: str, settings: tuple[str, ...]) -> int:
    """Run a cluster on this machine, one process per broker, until Ctrl-C.

    Prints a line with `cluster ready` and the bootstrap list on stderr when every broker serves. A broker that ends
    is not started again; its configuration is in DIR, for `penstock broker`.
    """
    from penstock.cli.cluster_up import run_cluster

    return run_cluster(brokers, port, data, parse_assignments(settings, "a setting"))


@cluster.command("describe")
@client_options
def describe(bootstrap: str, output: str) -> None:
    """Show the cluster's id, brokers, active controller, and who votes and follows in the metadata quorum.

    Unclean elections, after which records may be lost, are shown where there were any. Without an active controller,
    what the broker asked knew last is shown, and the exit code is 3.
    """
    run(_describe(bootstrap, output))


async def _describe(bootstrap: str, output: str) -> None:
    from penstock.client.admin.cluster_image import look_at_drained

    async with admin(bootstrap) as client:
        found = await client.describe_cluster(include_fenced=True)
        listed = [topic.name for topic in await client.list_topics(include_internal=True)]
        topics = [each for each in (await client.describe_topics(listed)).values() if not isinstance(each, Exception)]
        quorum = await _quorum(client)
        drained = (await look_at_drained(client)).drained_brokers
    leader_id = quorum.leader_id if quorum is not None else None
    states = [state for topic in topics for state in topic.partitions]
    brokers = [
        {
            "id": b.node_id,
            "host": b.host,
            "port": b.port,
            "rack": b.rack,
            "controller": b.node_id == leader_id,
            "fenced": b.node_id in found.fenced,
            "drained": b.node_id in drained,
            "leads": sum(state.leader == b.node_id for state in states),
            "replicas": sum(b.node_id in state.replicas for state in states),
        }
        for b in found.brokers
    ]
    missing = sum(len(state.isr) < len(state.replicas) for state in states)
    offline = sum(state.leader < 0 for state in states)
    if output == "json":
        summary = {
            "partitions": len(states),
            "under_replicated": missing,
            "offline": offline,
            "unclean_elections": found.unclean_elections,
        }
        shown = {"cluster_id": found.cluster_id, "controller_id": leader_id, "brokers": brokers}
        print_json({**shown, **summary, "quorum": quorum_rows(quorum) if quorum is not None else []})
    else:
        click.echo(f"cluster {found.cluster_id}")
        click.echo(f"{len(states)} partitions, {missing} under-replicated, {offline} without a leader")
        if found.unclean_elections:
            click.echo(
                f"{found.unclean_elections} unclean elections since the broker asked was started: records may be lost"
            )
        columns = ["id", "host", "port", "rack", "controller", "fenced", "drained", "leads", "replicas"]
        print_rows(brokers, columns, output)
        if quorum is not None:
            click.echo(f"metadata quorum: node {leader_id} is the active controller, epoch {quorum.leader_epoch}")
            print_rows(quorum_rows(quorum), ["id", "role", "end_offset", "lag", "behind_ms"], output)
    if quorum is None:
        raise Failure(
            "no active controller answers: metadata cannot change, and what is shown may be old",
            hint="a majority of the nodes of controller.quorum.voters has to run and reach each other",
            exit_code=UNREACHABLE,
        )


async def _quorum(client: "Admin") -> "QuorumDescription | None":
    """None: nobody who answers knows of an active controller."""
    from penstock.client.errors import BrokerError, RequestTimedOut
    from penstock.model.errors import ErrorCode

    try:
        return await client.describe_quorum(timeout_ms=_CONTROLLER_WAIT_MS)
    except RequestTimedOut:
        return None
    except BrokerError as error:
        if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            raise
        return None


def quorum_rows(quorum: "QuorumDescription") -> list[dict[str, object]]:
    """`lag` in records, `behind_ms` since a node had all there was; None where the leader has not heard of it."""
    replicas = [*quorum.voters, *quorum.observers]
    leader = next((each for each in replicas if each.node_id == quorum.leader_id), None)
    rows: list[dict[str, object]] = []
    for each in replicas:
        role = "voter" if each in quorum.voters else "observer"
        rows.append(
            {
                "id": each.node_id,
                "role": "leader" if each is leader else role,
                "directory": each.directory_id,
                "end_offset": each.end_offset if each.end_offset >= 0 else None,
                "lag": _distance(leader.end_offset, each.end_offset) if leader is not None else None,
                "behind_ms": _distance(leader.last_caught_up_ms, each.last_caught_up_ms)
                if leader is not None
                else None,
            }
        )
    return rows


def _distance(leader: int, other: int) -> int | None:
    return max(0, leader - other) if other >= 0 else None


_most = click.option(
    "--moves", type=click.IntRange(1), default=20, show_default=True, help="Partitions on the move at a time."
)
_dry_run = click.option("--dry-run", is_flag=True, help="Show the first moves and do nothing.")


@cluster.command("balance")
@_most
@_dry_run
@client_options
def balance(moves: int, dry_run: bool, bootstrap: str, output: str) -> None:
    """Spread replicas and leaderships evenly over the brokers, and wait until it is done.

    Brokers that have joined get their share, those that are drained get none. With the setting cluster.balance.enable
    the cluster does it by itself.
    """
    from penstock.cli.cluster_moves import balance as carry_out

    run(carry_out(bootstrap, moves, dry_run, output))


@cluster.command("drain")
@click.argument("brokers", nargs=-1, required=True, type=int, metavar="ID...")
@_most
@_dry_run
@click.option("--cancel", is_flag=True, help="Let these brokers take replicas again; moves nothing.")
@client_options
def drain(brokers: tuple[int, ...], moves: int, dry_run: bool, cancel: bool, bootstrap: str, output: str) -> None:
    """Move every replica off these brokers, and wait until they hold none.

    They get no new ones, of new topics or by balancing, until they are removed, or drained no more (--cancel); then
    `penstock cluster balance` gives them their share. The setting cluster.drained.brokers keeps it.
    """
    from penstock.cli.cluster_moves import cancel_drain
    from penstock.cli.cluster_moves import drain as carry_out

    if cancel and dry_run:
        raise click.UsageError("--cancel moves nothing that --dry-run could show")
    if cancel:
        run(cancel_drain(bootstrap, brokers))
        return
    run(carry_out(bootstrap, brokers, moves, dry_run, output))


@cluster.command("remove")
@click.argument("broker", type=int, metavar="ID")
@click.option("--force", is_flag=True, help="Also where it still has replicas, which are then missing.")
@bootstrap_option
def remove(broker: int, force: bool, bootstrap: str) -> None:
    """Take a broker that was drained and stopped out of the cluster for good.

    If it votes in the metadata quorum, it is taken out of that as well.
    """
    from penstock.cli.cluster_moves import remove as carry_out

    run(carry_out(bootstrap, broker, force))
