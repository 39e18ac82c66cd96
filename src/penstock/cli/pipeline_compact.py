"""`penstock pipeline compact`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.options import parse_assignments
from penstock.cli.pipeline import job_command

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary


@job_command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--archive", "-a", required=True, metavar="PATH|URL", help="The archive to read.")
@click.option("--table", "-t", required=True, metavar="PATH|URL", help="The table of latest values; made if missing.")
@click.option(
    "--buckets",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Into how many parts a new table is cut; parts with new keys are written anew.",
)
@click.option(
    "--storage", multiple=True, metavar="NAME=VALUE", help="A setting of the object store; may be repeated."
)
def command(
    context: "JobContext", topics: tuple[str, ...], archive: str, table: str, buckets: int, storage: tuple[str, ...]
) -> "JobSummary":
    """Keep a Delta table with the latest value of each key in an archive.

    Reads only what came into the archive since the last run. A record without a value deletes its key. As in a
    compacted topic, keys are told apart by partition. Needs no broker.
    """
    from penstock.pipeline.compact_job import compact

    return compact(
        context,
        archive,
        table=table,
        topics=topics,
        buckets=buckets,
        storage_options=parse_assignments(storage, "a setting of the object store"),
    )
