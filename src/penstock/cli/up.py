"""`penstock up`: a broker in this process, or several behind one address in processes of their own.

Imports nothing of the client and no rich: starting fast is its point.
"""

import click

from penstock.cli.options import parse_assignments


@click.command()
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Kafka port; 0 picks a free one.  [default: 9092]")
@click.option("--host", help="Address to listen on.  [default: all]")
@click.option("--data", "-d", metavar="DIR", help="Data directory.  [default: ./penstock-data]")
@click.option("--config", "-c", "config_file", type=click.Path(dir_okay=False), help="Configuration file (TOML).")
@click.option("--node-id", type=click.IntRange(min=0), help="Id of this node in its cluster.  [default: 1]")
@click.option(
    "--brokers",
    "-n",
    type=click.IntRange(1, 99),
    default=1,
    help="Processes to run behind the one port, each a broker on a core of its own.  [default: 1]",
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any setting; may be repeated.")
def up(
    port: int | None,
    host: str | None,
    data: str | None,
    config_file: str | None,
    node_id: int | None,
    brokers: int,
    settings: tuple[str, ...],
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints a line with `ready` on stderr when it serves. Options go before settings of the file; `docs/settings.md`
    lists every setting.

    With --brokers N clients still need only PORT; the brokers' own are PORT + 2 and following, the controller's is
    PORT + 1. A broker that ends is started again. What a single broker has stored stays with the first of several.
    """
    overrides = parse_assignments(settings, "a setting")
    if port is not None or host is not None:
        overrides.setdefault("listeners", f"PLAINTEXT://{_bracketed(host or '')}:{9092 if port is None else port}")
    if data is not None:
        overrides.setdefault("log.dirs", data)
    if node_id is not None:
        overrides.setdefault("node.id", str(node_id))

    from penstock.cli.node_settings import read_settings, refuse_part_of_data

    chosen, given = read_settings(overrides, config_file)
    refuse_part_of_data(chosen, brokers)
    if brokers > 1:
        from penstock.cli.up_brokers import run_brokers

        return run_brokers(brokers, chosen, given)
    from penstock.node.run import run_node

    return run_node(chosen)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
