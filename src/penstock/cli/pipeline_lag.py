"""`penstock pipeline lag`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.pipeline import job_command
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary


@job_command()
@click.argument("groups", nargs=-1, metavar="[GROUP]...")
@click.option("--from", "start", metavar="TIME", help="How far to look back, such as -1h.  [default: -24h]")
@click.option("--points", type=click.IntRange(2, 1000), default=60, show_default=True, help="Points in time to show.")
@click.option("--most", type=click.IntRange(0), help="End with 1 if a group is further behind than this.")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with plots to this file.")
@click.option("--report", type=click.Path(dir_okay=False), help="Write everything found to this file, as JSON.")
def command(
    context: "JobContext",
    groups: tuple[str, ...],
    start: str | None,
    points: int,
    most: int | None,
    html: str | None,
    report: str | None,
) -> "JobSummary":
    """Show how far groups are behind, now and over time, in records and in seconds.

    The past is read from the commits that the broker still has; its topic of commits is compacted.
    """
    from penstock.pipeline.lag_job import lag

    return lag(
        context,
        groups,
        start_ms=parse_time_ms(start) if start is not None else None,
        points=points,
        most_lag=most,
        html=html,
        json=report,
    )
