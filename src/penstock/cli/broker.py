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
@click.option("--supervised", is_flag=True, hidden=True, help="Stop when the other end of stdin is gone.")
@click.option("--bootstrap-fd", "bootstrap_fds", type=int, multiple=True, hidden=True, help="A listening socket.")
def broker(config_file: str, settings: tuple[str, ...], supervised: bool, bootstrap_fds: tuple[int, ...]) -> int:
    """Run one member of a cluster until Ctrl-C or SIGTERM.

    Prints a line with `ready` on stderr when it serves: a broker does when the cluster has taken it in. Members are
    told apart by node.id and find each other by controller.quorum.voters; docs/operations.md shows a configuration.
    """
    from penstock.cli.node_settings import read_settings
    from penstock.node.run import Supervision, run_node

    chosen, _ = read_settings(parse_assignments(settings, "a setting"), config_file)
    return run_node(chosen, Supervision(supervised, bootstrap_fds), is_meant_as_member=True)
