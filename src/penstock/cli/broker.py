"""`penstock broker`: one member of a cluster in this process. Imports nothing of the client, as `penstock up`."""

import click

from penstock.cli.options import parse_assignments


@click.command()
@click.option(
    "--config",
    "-c",
    "config_file",
    required=True,
    type=click.Path(dir_okay=False),
    help="Configuration file (TOML) of this member.",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any setting; may be repeated.")
def broker(config_file: str, settings: tuple[str, ...]) -> int:
    """Run one member of a cluster until Ctrl-C or SIGTERM.

    Prints a line with `ready` on stderr when it serves: a broker does when the cluster has taken it in. Members are
    told apart by node.id and find each other by controller.quorum.voters; docs/operations.md shows a configuration.
    """
    from penstock.node.run import run_node

    return run_node(parse_assignments(settings, "a setting"), config_file)
