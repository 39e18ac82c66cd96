"""`penstock bench compare|render`: Penstock, Apache Kafka and NATS side by side; tables and charts from a file."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli import exits
from penstock.cli.exits import talk

if TYPE_CHECKING:
    from penstock.bench.results.report import Report
    from penstock.bench.workload import Workload

_FILE = click.Path(dir_okay=False, path_type=Path)
_DIRECTORY = click.Path(file_okay=False, path_type=Path)


@click.command("compare")
@click.option("--workloads", "patterns", default="", metavar="NAMES", help="Only these; commas, `*` matches.")
@click.option("--list", "listing", is_flag=True, help="Print the workloads' names and stop.")
@click.option("--repetitions", type=click.IntRange(min=1), help="How often each is run.  [default: 3, quick: 1]")
@click.option("--quick", is_flag=True, help="Fewer workloads, short runs, once: minutes.")
@click.option("--subjects", default="penstock,kafka,nats", show_default=True, help="Who is compared.")
@click.option(
    "--data", type=_DIRECTORY, help="Where the brokers keep their data.  [default: the temporary directory]"
)
@click.option("--json", "json_file", type=_FILE, help="Write every measurement to this file, at once.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write the tables into this page, between its markers.")
@click.option("--headlines", "headlines_file", type=_FILE, help="Write a few rows into this page, likewise.")
@click.option("--charts", type=_DIRECTORY, help="Write charts (SVG) into this directory.")
def compare(
    patterns: str,
    listing: bool,
    repetitions: int | None,
    quick: bool,
    subjects: str,
    data: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
    headlines_file: Path | None,
    charts: Path | None,
) -> int:
    """Compare Penstock with Apache Kafka and NATS JetStream.

    The same work against each in turns, in one run. Fetches Kafka by Maven and builds nats-server by Go, once, into
    ~/.cache/penstock-bench (PENSTOCK_BENCH_CACHE); what cannot be had is left out with the reason. Prints the tables
    as Markdown. docs/performance.md tells how to read them.
    """
    from penstock.bench.comparison import Comparison
    from penstock.bench.workload import FULL, QUICK

    chosen = _chosen(patterns, quick)
    if listing:
        for workload in chosen:
            click.echo(f"{workload.name:24}  {workload.load:10}  {workload.setup.title}: {workload.title}")
        return exits.OK
    names = _subjects(subjects)
    comparison = Comparison(
        chosen,
        QUICK if quick else FULL,
        "quick" if quick else "full",
        repetitions or (1 if quick else 3),
        talk,
        subjects=names,
        data=data,
        keep=lambda report: _keep(report, json_file),
    )
    code = exits.OK
    try:
        comparison.run()
    except KeyboardInterrupt:
        talk("interrupted; what was measured is kept")
        code = exits.INTERRUPTED
    finally:
        _keep(comparison.report, json_file)
        _write(comparison.report, markdown_file, headlines_file, charts)
    return code


@click.command("render")
@click.argument("json_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--markdown", "markdown_file", type=_FILE, help="Write the tables into this page, between its markers.")
@click.option("--headlines", "headlines_file", type=_FILE, help="Write a few rows into this page, likewise.")
@click.option("--charts", type=_DIRECTORY, help="Write charts (SVG) into this directory.")
def render(json_file: Path, markdown_file: Path | None, headlines_file: Path | None, charts: Path | None) -> None:
    """Make tables and charts again from what `compare --json` wrote."""
    import msgspec

    from penstock.bench.results.report import decode_report

    try:
        report = decode_report(json_file.read_bytes())
    except msgspec.DecodeError as error:
        raise exits.Failure(
            f"{json_file} is not a report: {error}", hint="`penstock bench compare --json FILE` writes one"
        ) from None
    _write(report, markdown_file, headlines_file, charts)


def _chosen(patterns: str, quick: bool) -> "list[Workload]":
    """Named ones are run even if a quick comparison would leave them out."""
    from penstock.bench.catalogue import workloads

    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    every = workloads()
    if not wanted:
        return [workload for workload in every if workload.quick or not quick]
    for pattern in wanted:
        if not any(fnmatchcase(workload.name, pattern) for workload in every):
            raise click.UsageError(f"no workload is named {pattern}; --list prints them all")
    return [each for each in every if any(fnmatchcase(each.name, pattern) for pattern in wanted)]


def _subjects(text: str) -> list[str]:
    from penstock.bench.subjects import TITLES

    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in TITLES]
    if unknown or not names:
        raise click.UsageError(f"{text!r} is not a list of subjects (of {', '.join(TITLES)})")
    return names


def _keep(report: "Report", json_file: Path | None) -> None:
    """Whole or not at all: the run may be killed while it writes."""
    from penstock.bench.results.report import encode_report

    if json_file is not None:
        new = json_file.with_name(json_file.name + ".new")
        new.write_bytes(encode_report(report))
        new.replace(json_file)


def _write(report: "Report", markdown_file: Path | None, headlines_file: Path | None, charts: Path | None) -> None:
    from penstock.bench.results.charts import render_charts
    from penstock.bench.results.report import decode_report, encode_report
    from penstock.bench.results.table import render as render_tables
    from penstock.bench.results.table import render_headlines, render_page

    report = decode_report(encode_report(report))  # as the file says it: what is rounded twice may differ
    if markdown_file is None:
        click.echo(render_tables(report))
    else:
        _rewrite(markdown_file, lambda page: render_page(page, report))
    if headlines_file is not None:
        _rewrite(headlines_file, lambda page: render_headlines(page, report))
    if charts is not None:
        charts.mkdir(parents=True, exist_ok=True)
        for name, text in render_charts(report).items():
            (charts / name).write_text(text, encoding="utf-8")


def _rewrite(file: Path, change: Callable[[str], str]) -> None:
    page = file.read_text(encoding="utf-8") if file.exists() else ""
    file.write_text(change(page), encoding="utf-8")
