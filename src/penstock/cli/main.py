"""Entry point of the `penstock` command. Commands are imported when they are used: `penstock up` starts fast."""

import importlib
import sys

import click

from penstock import __version__

# Command → module and attribute that holds it.
_COMMANDS = {
    "up": ("penstock.cli.up", "up"),
}


class LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
def cli() -> None:
    """A message broker that speaks the Apache Kafka wire protocol."""


def main() -> None:
    sys.exit(cli())


if __name__ == "__main__":
    main()
