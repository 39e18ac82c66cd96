"""`penstock up`: a broker in this process. Imports nothing of the client and no rich: starting fast is its point."""

import click

from penstock.cli.options import parse_assignments


@click.command()
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Kafka port; 0 picks a free one.  [default: 9092]")
@click.option("--host", help="Address to listen on.  [default: all]")
@click.option("--data", "-d", metavar="DIR", help="Data directory.  [default: ./penstock-data]")
@click.option("--config", "-c", "config_file", type=click.Path(dir_okay=False), help="Configuration file (TOML).")
@click.option("--node-id", type=click.IntRange(min=0), help="Id of this node in its cluster.  [default: 1]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any setting; may be repeated.")
def up(
    port: int | None,
    host: str | None,
    data: str | None,
    config_file: str | None,
    node_id: int | None,
    settings: tuple[str, ...],
) -> int:
    """Run a broker until Ctrl-C or SIGTERM.

    Prints a line with `ready` on stderr when it serves. Options go before settings of the file; `docs/settings.md`
    lists every setting.
    """
    overrides = parse_assignments(settings, "a setting")
    if port is not None or host is not None:
        overrides.setdefault("listeners", f"PLAINTEXT://{_bracketed(host or '')}:{9092 if port is None else port}")
    if data is not None:
        overrides.setdefault("log.dirs", data)
    if node_id is not None:
        overrides.setdefault("node.id", str(node_id))

    from penstock.node.run import run_node

    return run_node(overrides, config_file)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
