"""`penstock log dump`."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from penstock.cli.exits import Failure, talk
from penstock.cli.options import output_option
from penstock.cli.times import format_time

_TIMES = ("timestamp", "base_timestamp", "max_timestamp", "last_timestamp")


@click.group()
def log() -> None:
    """Look into a broker's files."""


@log.command("dump")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="PATH...")
@click.option("--records", "-r", is_flag=True, help="Also the records, those of internal topics decoded.")
@output_option
def dump(paths: tuple[Path, ...], records: bool, output: str) -> None:
    """Print what is in segments, indexes, snapshots and checkpoints, and check it.

    Takes files or whole directories; the broker need not run. JSON is one object a line. The exit code is 1 if
    anything is corrupt.
    """
    from penstock.cli.dump import dump_file, files_of

    problems = 0
    for path in paths:
        for file in files_of(path):
            if output == "table":
                sys.stdout.write(f"{file}\n")
            for row in dump_file(file, records=records):
                if output == "json":
                    sys.stdout.write(json.dumps({"file": str(file), **row}, ensure_ascii=False) + "\n")
                else:
                    sys.stdout.write(f"  {_line(row)}\n")
                if "problem" in row:
                    problems += 1
                    talk(f"{file}: {row['problem']}")
    if problems:
        raise Failure(
            f"{problems} problem{'s' if problems > 1 else ''} found",
            hint="a broker truncates a torn tail of its newest segment when it starts; older segments need a replica",
        )


def _line(row: dict[str, Any]) -> str:
    kind = row["kind"]
    if kind == "line":
        return str(row["text"])
    words = [f"{'  ' if kind == 'record' else ''}{kind}"]
    words += [f"{name}={_shown(name, value)}" for name, value in row.items() if name != "kind"]
    return " ".join(words)


def _shown(name: str, value: Any) -> str:
    if name in _TIMES and isinstance(value, int):
        return format_time(value) if value >= 0 else str(value)
    if isinstance(value, str) and (" " in value or not value.isprintable()):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
