"""`penstock config describe|set|unset`: settings of topics and brokers, while they run."""

from typing import Literal

import click

from penstock.cli.exits import talk
from penstock.cli.options import bootstrap_option, client_options, parse_assignments
from penstock.cli.output import print_rows
from penstock.cli.running import admin, run

Kind = Literal["topic", "broker"]

_kind = click.argument("kind", type=click.Choice(["topic", "broker"]), metavar="topic|broker")
_name = click.argument("name", metavar="NAME|ID")


@click.group()
def config() -> None:
    """Look at and change settings of topics and brokers while they run."""


@config.command("describe")
@_kind
@_name
@click.option("--all", "everything", is_flag=True, help="Also settings at their default.")
@click.option("--docs", is_flag=True, help="Also what each setting means.")
@client_options
def describe(kind: Kind, name: str, everything: bool, docs: bool, bootstrap: str, output: str) -> None:
    """Show settings that were changed (or all of them).

    With broker "", what was set for all brokers.
    """
    run(_describe(bootstrap, kind, name, everything, docs, output))


async def _describe(bootstrap: str, kind: Kind, name: str, everything: bool, docs: bool, output: str) -> None:
    async with admin(bootstrap) as client:
        entries = await client.describe_configs(kind, name, documentation=docs)
    rows = [entry._asdict() for entry in entries if everything or not entry.is_default]
    columns = ["name", "value", "source", *(["documentation"] if docs else [])]
    print_rows(rows, columns, output, empty="every setting is at its default; --all shows them")


@config.command("set")
@_kind
@_name
@click.argument("assignments", nargs=-1, required=True, metavar="SETTING=VALUE...")
@bootstrap_option
def set_(kind: Kind, name: str, assignments: tuple[str, ...], bootstrap: str) -> None:
    """Set settings.

    With broker "", for all brokers that have no value of their own: `config set broker "" log.retention.ms=3600000`.
    """
    run(_alter(bootstrap, kind, name, parse_assignments(assignments, "a setting"), ()))


@config.command("unset")
@_kind
@_name
@click.argument("settings", nargs=-1, required=True, metavar="SETTING...")
@bootstrap_option
def unset(kind: Kind, name: str, settings: tuple[str, ...], bootstrap: str) -> None:
    """Put settings back to their default."""
    run(_alter(bootstrap, kind, name, {}, settings))


async def _alter(bootstrap: str, kind: Kind, name: str, values: dict[str, str], removed: tuple[str, ...]) -> None:
    async with admin(bootstrap) as client:
        await client.alter_configs(kind, name, values, unset=removed)
    whose = "all brokers" if kind == "broker" and not name else f"{kind} {name}"
    talk(f"{whose}: {', '.join([*(f'{k}={v}' for k, v in values.items()), *(f'{n} unset' for n in removed)])}")
