"""`penstock consume`: records out of a topic, for people, programs or pipes."""

import json
import re
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from penstock.cli.exits import USAGE, Failure, talk
from penstock.cli.options import bootstrap_option
from penstock.cli.output import printable, text_or_base64
from penstock.cli.running import CLIENT_ID, TOPIC_WAIT_MS, run
from penstock.cli.times import format_time, parse_time_ms

if TYPE_CHECKING:
    from penstock.client import Consumer, ConsumerRecord, TopicPartition


class Plan(NamedTuple):
    topic: str
    start: tuple[str, int] | None
    partitions: tuple[int, ...]
    group: str | None
    limit: int | None
    timeout_s: float | None
    follow: bool
    output: str
    key_separator: str | None


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="beginning, end, an offset (5, or -5 for the last five), or a time (time:2026-01-31T12:00Z, time:-1h).  "
    "[default: where the group is, else beginning; end with --follow]",
)
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this; repeatable.")
@click.option("--group", "-g", help="Read as a member of this group, and commit.")
@click.option("--max", "-n", "limit", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--timeout", type=click.FloatRange(min=0), help="Stop when nothing came for so many seconds.")
@click.option("--follow", "-F", is_flag=True, help="Go on at the end: wait for more records, until Ctrl-C.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json", "raw"]),
    default="table",
    show_default=True,
    help="One line a record: for people; a JSON object; or the value's bytes.",
)
@click.option("--key-separator", "-K", metavar="TEXT", help="With raw: key and this before the value.")
@click.option("--committed-only", is_flag=True, help="Only records of committed transactions.")
@bootstrap_option
def consume(
    topic: str,
    start: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    limit: int | None,
    timeout: float | None,
    follow: bool,
    output: str,
    key_separator: str | None,
    committed_only: bool,
    bootstrap: str,
) -> None:
    """Print the records of a topic, up to its present end or (--follow) on and on."""
    if group is not None and partitions:
        raise Failure(
            "--group and --partition exclude each other", hint="a group hands out partitions", exit_code=USAGE
        )
    if group is None and start is None:
        start = "end" if follow else "beginning"
    place = None if start is None else parse_start(start)
    plan = Plan(topic, place, partitions, group, limit, timeout, follow, output, key_separator)
    run(_consume(plan, committed_only, bootstrap))


def parse_start(text: str) -> tuple[str, int]:
    """(kind, number): beginning, end, offset N, back N, time in milliseconds."""
    if text in ("beginning", "earliest"):
        return "beginning", 0
    if text in ("end", "latest"):
        return "end", 0
    if text.startswith("time:"):
        return "time", parse_time_ms(text[5:])
    if match := re.fullmatch(r"(?:offset[: ])?\s*(-?)(\d+)", text):
        return ("back" if match[1] else "offset"), int(match[2])
    try:
        return "time", parse_time_ms(text)
    except Failure:
        raise Failure(
            f"--from {text!r} is not a place",
            hint="one of beginning, end, an offset such as 5 or -5, or a time such as time:-1h",
            exit_code=USAGE,
        ) from None


async def _consume(plan: Plan, committed_only: bool, bootstrap: str) -> None:
    from penstock.client import Consumer

    consumer = Consumer(
        bootstrap,
        group_id=plan.group,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        session_timeout_ms=10_000,
        client_id=CLIENT_ID,
        start_timeout_ms=0,
    )
    async with consumer:
        partitions = await _partitions(consumer, plan)
        if plan.group is not None:
            consumer.subscribe(plan.topic)
            while not consumer.assignment():
                await consumer.poll(100, max_records=0)
        else:
            consumer.assign(partitions)
        if plan.start is not None:
            await _seek(consumer, plan.start)
        count = await _print(consumer, plan)
    if plan.output == "table":
        talk(f"{count} records")


async def _partitions(consumer: "Consumer", plan: Plan) -> "list[TopicPartition]":
    from penstock.client import TopicPartition
    from penstock.client.errors import no_partition

    there = await consumer.partitions_for(plan.topic, timeout_ms=TOPIC_WAIT_MS)
    for wanted in plan.partitions:
        if wanted not in there:
            raise no_partition(plan.topic, len(there), wanted)
    return [TopicPartition(plan.topic, p) for p in plan.partitions or there]


async def _seek(consumer: "Consumer", start: tuple[str, int]) -> None:
    kind, number = start
    if kind == "beginning":
        await consumer.seek_to_beginning()
    elif kind == "end":
        await consumer.seek_to_end()
    elif kind == "time":
        await consumer.seek_to_time(number)
    else:
        starts, ends = await consumer.beginning_offsets(), await consumer.end_offsets()
        for tp, end in ends.items():
            offset = number if kind == "offset" else end - number
            consumer.seek(tp, min(max(offset, starts[tp]), end))


async def _print(consumer: "Consumer", plan: Plan) -> int:
    write = _writer(plan)
    ends = {} if plan.follow else await consumer.end_offsets()
    count = 0
    last = time.monotonic()
    while plan.limit is None or count < plan.limit:
        if ends and not await _more_to_come(consumer, ends):
            break
        left = None if plan.timeout_s is None else plan.timeout_s - (time.monotonic() - last)
        if left is not None and left <= 0:
            break
        room = 500 if plan.limit is None else min(500, plan.limit - count)
        records = await consumer.poll(1000 if left is None else min(1000, left * 1000), max_records=room)
        for record in records:
            write(record)
        if records:
            sys.stdout.flush()
            count += len(records)
            last = time.monotonic()
    return count


async def _more_to_come(consumer: "Consumer", ends: "dict[TopicPartition, int]") -> bool:
    """Whether a partition that is still ours has records before the end it had when we began."""
    held = consumer.assignment() & ends.keys()
    positions = [(ends[tp], await consumer.position(tp)) for tp in held]
    return any(position < end for end, position in positions)


def _writer(plan: Plan) -> "Callable[[ConsumerRecord], None]":
    if plan.output == "json":
        return _write_json
    if plan.output == "raw":
        separator = (plan.key_separator or "").encode()
        out = sys.stdout.buffer

        def write_raw(record: "ConsumerRecord") -> None:
            if plan.key_separator is not None:
                out.write((record.key or b"") + separator)
            out.write((record.value or b"") + b"\n")

        return write_raw
    click.echo(f"{'partition':>9}  {'offset':>8}  {'timestamp':<24}  {'key':<16}  value  [headers]", err=True)
    return _write_line


def _write_json(record: "ConsumerRecord") -> None:
    headers = [{"name": name, **text_or_base64("value", value)} for name, value in record.headers]
    shown = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "timestamp": format_time(record.timestamp_ms),
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": headers,
    }
    sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")


def _write_line(record: "ConsumerRecord") -> None:
    headers = " ".join(f"{name}={printable(value)}" for name, value in record.headers)
    sys.stdout.write(
        f"{record.partition:>9}  {record.offset:>8}  {format_time(record.timestamp_ms):<24}  "
        f"{printable(record.key):<16}  {printable(record.value)}{f'  [{headers}]' if headers else ''}\n"
    )
