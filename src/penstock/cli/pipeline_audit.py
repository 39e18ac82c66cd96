"""`penstock pipeline audit`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.options import parse_assignments
from penstock.cli.pipeline import job_command
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary


@job_command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--pattern", metavar="REGEX", help="All topics whose whole name matches.")
@click.option("--archive", "-a", metavar="PATH|URL", help="Compare with this archive too, record by record.")
@click.option(
    "--storage", multiple=True, metavar="NAME=VALUE", help="A setting of the object store; may be repeated."
)
@click.option("--from", "start", metavar="TIME", help="Only what was written since this time, such as -1h.")
@click.option(
    "--audit-topic", default="__penstock_audit", show_default=True, help="Where producers tell their counters."
)
@click.option("--html", type=click.Path(dir_okay=False), help="Write a report with plots to this file.")
@click.option("--report", type=click.Path(dir_okay=False), help="Write everything found to this file, as JSON.")
def command(
    context: "JobContext",
    topics: tuple[str, ...],
    pattern: str | None,
    archive: str | None,
    storage: tuple[str, ...],
    start: str | None,
    audit_topic: str,
    html: str | None,
    report: str | None,
) -> "JobSummary":
    """Prove that nothing is lost, doubled or out of order. Ends with 1 if something is.

    Checks offsets, checksums, sequence numbers of idempotent producers, transactions, and the counters of producers
    made with audit=True; with --archive also that each record is in the archive once and unchanged.
    """
    from penstock.pipeline.audit_job import audit

    return audit(
        context,
        topics,
        pattern=pattern,
        archive=archive,
        storage_options=parse_assignments(storage, "a setting of the object store"),
        audit_topic=audit_topic,
        start_ms=parse_time_ms(start) if start is not None else None,
        html=html,
        json=report,
    )
