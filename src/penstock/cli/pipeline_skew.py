"""`penstock pipeline skew`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.pipeline import job_command
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary


@job_command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches.")
@click.option(
    "--by", type=click.Choice(["records", "bytes"]), default="records", show_default=True, help="What counts."
)
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many keys to show.")
@click.option("--from", "start", metavar="TIME", help="Only what was written since this time, such as -1h.")
@click.option(
    "--capacity",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="What one partition should bear per second at the peak; suggests how many there should be.",
)
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with plots to this file.")
@click.option("--report", type=click.Path(dir_okay=False), help="Write everything found to this file, as JSON.")
def command(
    context: "JobContext",
    topics: tuple[str, ...],
    pattern: str | None,
    by: str,
    top: int,
    start: str | None,
    capacity: float,
    html: str | None,
    report: str | None,
) -> "JobSummary":
    """Find keys and partitions that bear more than their share, and what would even it out.

    Shows the share of the busiest keys, Gini coefficients, and suggests partitions and salting.
    """
    from penstock.pipeline.skew_job import skew

    return skew(
        context,
        topics,
        pattern=pattern,
        by=by,
        top=top,
        start_ms=parse_time_ms(start) if start is not None else None,
        capacity_per_second=capacity,
        html=html,
        json=report,
    )
