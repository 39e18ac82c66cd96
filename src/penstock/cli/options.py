"""Options that commands share."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from penstock.cli.exits import USAGE, Failure

F = TypeVar("F", bound=Callable[..., Any])


def bootstrap_option_named(*names: str) -> Callable[[F], F]:
    return click.option(
        *names,
        default="localhost:9092",
        show_default=True,
        envvar="PENSTOCK_BOOTSTRAP",
        show_envvar=True,
        metavar="HOST:PORT",
        help="A broker to begin with; several separated by commas.",
    )


bootstrap_option = bootstrap_option_named("--bootstrap", "-b")
output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print: for people, or for programs.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def client_options(command: F) -> F:
    """Where to connect, and how to print."""
    return bootstrap_option(output_option(command))


def parse_assignments(pairs: Sequence[str], what: str) -> dict[str, str]:
    """`name=value` arguments as a mapping."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise Failure(f"{pair!r} is not {what}", hint="write it as name=value", exit_code=USAGE)
        parsed[name.strip()] = value
    return parsed


def confirm(question: str, yes: bool) -> None:
    if not yes and not click.confirm(question, err=True):
        raise Failure("nothing was done")
