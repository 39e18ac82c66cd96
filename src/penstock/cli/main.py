"""Entry point: finds the command, imports only its module, turns errors into exit codes."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from penstock.cli import exits

COMMANDS = {
    "up": "penstock.cli.up:up",
    "broker": "penstock.cli.broker:broker",
    "topic": "penstock.cli.topic:topic",
    "produce": "penstock.cli.produce:produce",
    "consume": "penstock.cli.consume:consume",
    "group": "penstock.cli.group:group",
    "config": "penstock.cli.config:config",
    "cluster": "penstock.cli.cluster:cluster",
    "log": "penstock.cli.log:log",
    "pipeline": "penstock.cli.pipeline:pipeline",
    "bench": "penstock.cli.bench:bench",
    "sim": "penstock.cli.sim:sim",
    "version": "penstock.cli.version:version",
}


class LazyGroup(click.Group):
    """Knows the names of its commands; a command's module is imported when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None
        except BrokenPipeError:
            # The reader of our output has seen enough (`| head`); what is left in the buffer goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return exits.OK

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """As click's, with our words for errors and our exit codes."""
        if not extra.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **extra)
        sys.exit(self._exit_code(args, prog_name, extra))

    def _exit_code(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.Abort:
            exits.talk("interrupted")
            return exits.INTERRUPTED
        except Exception as error:  # the edge: what is expected is told in a sentence, the rest is raised again
            return exits.report(error)
        return result if isinstance(result, int) else exits.OK


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 118})
@click.version_option(package_name="penstock", message="%(version)s")
def cli() -> None:
    """Penstock: a message broker that speaks the Kafka protocol."""


def main() -> NoReturn:
    cli(prog_name="penstock")
    raise AssertionError("click exits")
