"""Printing data: tables for people, JSON for programs.

On a terminal tables are drawn by rich; into a pipe they are plain aligned columns, never cut to a width.
"""

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: str, *, empty: str = "nothing to show") -> None:
    """`columns` are what a table shows, in order; JSON shows everything."""
    if output == "json":
        print_json(list(rows))
    elif not rows:
        click.echo(empty, err=True)
    elif sys.stdout.isatty():
        _print_rich(rows, columns)
    else:
        _print_plain(rows, columns)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_facts(facts: Row, output: str) -> None:
    """One thing's properties, a line each."""
    if output == "json":
        print_json(facts)
        return
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {_cell(value)}")


def _print_plain(rows: Sequence[Row], columns: Sequence[str]) -> None:
    lines = [[_heading(column) for column in columns]]
    lines += [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich(rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        numbers = all(isinstance(row.get(column), int | None) for row in rows)
        table.add_column(_heading(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    Console(highlight=False, markup=False).print(table)


def _heading(column: str) -> str:
    return column.replace("_", " ")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value) or "-"
    return str(value)


def text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    """Bytes for JSON: as text where they are text, else under `<name>_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def printable(data: bytes | None, *, null: str = "null") -> str:
    """Bytes for a table: one line, whatever they are."""
    if data is None:
        return null
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return repr(data)[1:]
    return text if text.isprintable() else repr(text)[1:-1]
