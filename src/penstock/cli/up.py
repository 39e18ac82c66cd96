"""`penstock up`: a broker on this machine."""

import click


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the Kafka listener; 0 picks a free one. [9092]")
@click.option("--data", type=click.Path(file_okay=False), help="Data directory. [./penstock-data]")
@click.option("--config", type=click.Path(exists=True, dir_okay=False), help="Settings as a TOML file.")
@click.option("--node-id", type=click.IntRange(0), help="Id of this node. [1]")
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="Any setting; may be given several times.")
@click.pass_context
def up(
    context: click.Context,
    port: int | None,
    data: str | None,
    config: str | None,
    node_id: int | None,
    given: tuple[str, ...],
) -> None:
    """Start a broker with everything it needs. Stop it with Ctrl-C or SIGTERM.

    Options go before the file given by --config, and the file before defaults.
    """
    overrides: dict[str, str] = {}
    if port is not None:
        overrides["listeners"] = f"PLAINTEXT://:{port}"
    if data is not None:
        overrides["log.dirs"] = data
    if node_id is not None:
        overrides["node.id"] = str(node_id)
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not of the form NAME=VALUE", param_hint="--set")
        overrides[name] = value
    from penstock.node.run import run_node

    context.exit(run_node(overrides, config))
