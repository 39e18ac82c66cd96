"""`penstock pipeline replay`."""

from typing import TYPE_CHECKING

import click

from penstock.cli.options import parse_assignments
from penstock.cli.pipeline import job_command
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary
    from penstock.pipeline.offsets import Offsets


@job_command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--table", "-t", required=True, metavar="PATH|URL", help="Directory or object store of the archive.")
@click.option(
    "--storage", multiple=True, metavar="NAME=VALUE", help="A setting of the object store; may be repeated."
)
@click.option("--map", "mapping", multiple=True, metavar="TOPIC=OTHER", help="Where a topic goes; may be repeated.")
@click.option("--from", "start", metavar="TIME", help="Only records from this time on: 2026-01-31T12:00Z, or -1h.")
@click.option("--until", "end", metavar="TIME", help="Only records before this time.")
@click.option("--from-offsets", metavar="JSON", help='Only from these offsets on, such as {"orders":{"0":23}}.')
@click.option("--until-offsets", metavar="JSON", help="Only before these offsets.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Most records per second, on average.")
@click.option("--id", "name", help="Name of this replay.  [default: made from what is replayed to where]")
@click.option("--same-topic", is_flag=True, help="Allow to replay into the topic that was archived.")
@click.option("--create-topics", is_flag=True, help="Make target topics that are missing.")
@click.option(
    "--round-records", type=click.IntRange(1), default=500_000, show_default=True, help="Most records per commit."
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="lz4",
    show_default=True,
    help="Of the batches that are written.",
)
def command(
    context: "JobContext",
    topics: tuple[str, ...],
    table: str,
    storage: tuple[str, ...],
    mapping: tuple[str, ...],
    start: str | None,
    end: str | None,
    from_offsets: str | None,
    until_offsets: str | None,
    rate: float | None,
    name: str | None,
    same_topic: bool,
    create_topics: bool,
    round_records: int,
    compression: str,
) -> "JobSummary":
    """Write records of an archive back into topics, each exactly once, as they were.

    Partitions, order, keys, headers and timestamps are kept. Run again with the same arguments, the job goes on where
    it was, also with what came into the archive since.
    """
    from penstock.pipeline.replay_job import replay

    return replay(
        context,
        topics,
        table=table,
        mapping=parse_assignments(mapping, "a pair of topics"),
        storage_options=parse_assignments(storage, "a setting of the object store"),
        start_ms=parse_time_ms(start) if start is not None else None,
        end_ms=parse_time_ms(end) if end is not None else None,
        start_offsets=_offsets(from_offsets, "--from-offsets"),
        end_offsets=_offsets(until_offsets, "--until-offsets"),
        replay_name=name,
        same_topic=same_topic,
        create_topics=create_topics,
        rate=rate,
        round_records=round_records,
        compression=compression,
    )


def _offsets(text: str | None, option: str) -> "Offsets | None":
    from penstock.pipeline.offsets import parse_offsets

    return None if text is None else parse_offsets(text, option)
