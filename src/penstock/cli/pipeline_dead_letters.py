"""`penstock pipeline dead-letters list|reasons|redrive`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.pipeline import job_command
from penstock.cli.times import parse_time_ms

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext, JobSummary

_SELECTION: list[Callable[[Any], Any]] = [
    click.argument("topic"),
    click.option("--reason", metavar="REGEX", help="Only those whose reason contains this."),
    click.option("--key", metavar="REGEX", help="Only those whose key contains this."),
    click.option("--source", metavar="TOPIC", help="Only those that came from this topic."),
    click.option("--from", "start", metavar="TIME", help="Only those since this time, such as -1h."),
    click.option("--to-time", "end", metavar="TIME", help="Only those before this time."),
    click.option("--partition", type=click.IntRange(0), help="Only this partition of the dead-letter topic."),
    click.option("--from-offset", type=click.IntRange(0), metavar="N", help="Only from this offset on."),
    click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Only before this offset."),
]


def _selecting(function: Any) -> Any:
    for option in reversed(_SELECTION):
        function = option(function)
    return function


def _selection(options: dict[str, Any]) -> Any:
    from penstock.pipeline.dead_letters_frames import Selection

    start, end = options["start"], options["end"]
    return Selection(
        options["reason"],
        options["key"],
        options["source"],
        parse_time_ms(start) if start is not None else None,
        parse_time_ms(end) if end is not None else None,
        options["partition"],
        options["from_offset"],
        options["to_offset"],
    )


@job_command()
@_selecting
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many to show.")
def list_(context: "JobContext", topic: str, limit: int, **options: Any) -> "JobSummary":
    """List dead letters, the newest first: why, where from, and how often they were driven back."""
    from penstock.pipeline.dead_letters_job import dead_letters

    return dead_letters(context, topic, selection=_selection(options), limit=limit)


@job_command()
@_selecting
def reasons(context: "JobContext", topic: str, **options: Any) -> "JobSummary":
    """Count dead letters by reason. Reasons that differ only in numbers are one."""
    from penstock.pipeline.dead_letters_job import dead_letters

    return dead_letters(context, topic, selection=_selection(options), group_by_reason=True)


@job_command()
@_selecting
@click.option("--to", metavar="TOPIC", help="Drive them to this topic.  [default: where each came from]")
@click.option(
    "--max-retries",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Leave those that were driven back this often.",
)
def redrive(context: "JobContext", topic: str, to: str | None, max_retries: int, **options: Any) -> "JobSummary":
    """Drive dead letters back to the topics they came from, each exactly once.

    Records keep key, value and their own headers, and carry how often they were driven back. Run again, what was
    driven back is left out. --dry-run shows what would go where.
    """
    from penstock.pipeline.dead_letters_job import dead_letters

    return dead_letters(context, topic, selection=_selection(options), redrive=True, to=to, most_retries=max_retries)


@click.group("dead-letters")
def command() -> None:
    """Look at dead-letter topics and drive records back to where they came from."""


command.add_command(list_, "list")
command.add_command(reasons, "reasons")
command.add_command(redrive, "redrive")
