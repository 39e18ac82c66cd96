"""`penstock cluster describe`."""

import click

from penstock.cli.options import client_options
from penstock.cli.output import print_json, print_rows
from penstock.cli.running import admin, run


@click.group()
def cluster() -> None:
    """Look at the cluster."""


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
