"""`penstock pipeline archive`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.options import parse_assignments
from penstock.cli.pipeline import job_command, stop_on_signal
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary


@job_command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches, also those that come later.")
@click.option("--table", "-t", required=True, metavar="PATH|URL", help="Directory or object store of the archive.")
@click.option(
    "--storage", multiple=True, metavar="NAME=VALUE", help="A setting of the object store; may be repeated."
)
@click.option(
    "--from",
    "start",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="Where topics start that are not in the archive yet: earliest, latest, or a time such as -1h.",
)
@click.option("--once/--continuous", default=True, help="Up to the present end of the topics, or for ever.")
@click.option("--every", default=10.0, show_default=True, metavar="SECONDS", help="How often, if continuous.")
@click.option(
    "--round-records", type=click.IntRange(1), default=2_000_000, show_default=True, help="Most records per commit."
)
@click.option("--group", metavar="ID", help="Group that shows the lag.  [default: penstock-archive-<table>]")
@click.option(
    "--file-mb", type=click.IntRange(1), default=128, show_default=True, help="Size that small files are merged to."
)
@click.option("--vacuum", is_flag=True, help="Delete files that no version of the last week needs.")
@click.option("--skip-lost", is_flag=True, help="Go on without records that retention deleted before they were read.")
def command(
    context: "JobContext",
    topics: tuple[str, ...],
    pattern: str | None,
    table: str,
    storage: tuple[str, ...],
    start: str,
    once: bool,
    every: float,
    round_records: int,
    group: str | None,
    file_mb: int,
    vacuum: bool,
    skip_lost: bool,
) -> "JobSummary":
    """Copy topics into a Delta table of Parquet files, each record exactly once.

    The table is partitioned by topic and day. Run again, the job goes on where it was.
    """
    from penstock.pipeline.archive_job import archive

    stopped = None if once else stop_on_signal()
    return archive(
        context,
        topics,
        table=table,
        pattern=pattern,
        storage_options=parse_assignments(storage, "a setting of the object store"),
        start=start if start in ("earliest", "latest") else str(parse_time_ms(start)),
        continuous=not once,
        round_records=round_records,
        round_seconds=every,
        group_id=group,
        target_file_bytes=file_mb << 20,
        vacuum=vacuum,
        fail_on_data_loss=not skip_lost,
        stopped=stopped,
    )
