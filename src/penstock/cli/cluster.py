"""`penstock cluster up|describe`."""

import click

from penstock.cli.options import client_options, parse_assignments
from penstock.cli.output import print_json, print_rows
from penstock.cli.running import admin, run


@click.group()
def cluster() -> None:
    """Run a cluster, and look at one."""


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
    """Show the cluster's id, controller and brokers."""
    run(_describe(bootstrap, output))


async def _describe(bootstrap: str, output: str) -> None:
    async with admin(bootstrap) as client:
        found = await client.describe_cluster()
    brokers = [
        {
            "id": b.node_id,
            "host": b.host,
            "port": b.port,
            "rack": b.rack,
            "controller": b.node_id == found.controller_id,
        }
        for b in found.brokers
    ]
    if output == "json":
        print_json({"cluster_id": found.cluster_id, "controller_id": found.controller_id, "brokers": brokers})
        return
    click.echo(f"cluster {found.cluster_id}")
    print_rows(brokers, ["id", "host", "port", "rack", "controller"], output)
