"""`penstock version`."""

import platform

import click

from penstock import __version__
from penstock.cli.options import output_option


@click.command()
@output_option
def version(output: str) -> None:
    """Print the version."""
    if output == "json":
        from penstock.cli.output import print_json

        print_json({"penstock": __version__, "python": platform.python_version(), "platform": platform.platform()})
    else:
        click.echo(f"penstock {__version__} (Python {platform.python_version()}, {platform.system()})")
