"""`penstock produce`: lines in, records out."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from penstock.cli.exits import USAGE, Failure, talk
from penstock.cli.options import bootstrap_option, parse_assignments
from penstock.cli.running import CLIENT_ID, TOPIC_WAIT_MS, run

if TYPE_CHECKING:
    from penstock.client import Producer, RecordMetadata

_CHUNK_BYTES = 256 * 1024
_PROGRESS_EVERY_S = 1.0


class Plan(NamedTuple):
    topic: str
    key: bytes | None
    key_separator: bytes | None
    null_marker: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None


@click.command()
@click.argument("topic")
@click.option("--file", "-f", "source", type=click.File("rb", lazy=False), help="Read from here instead of stdin.")
@click.option("--key", "-k", help="Key of every record.")
@click.option("--key-separator", "-K", metavar="TEXT", help="What parts key and value in a line, such as ':'.")
@click.option("--null-marker", metavar="TEXT", help="A value of exactly this is null: a tombstone.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="On every record; repeatable.")
@click.option("--partition", type=click.IntRange(min=0), help="Send everything to this partition.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True, help="Who must have it."
)
@bootstrap_option
def produce(
    topic: str,
    source: BinaryIO | None,
    key: str | None,
    key_separator: str | None,
    null_marker: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    compression: str,
    acks: str,
    bootstrap: str,
) -> None:
    """Send each line of stdin (or of a file) as a record.

    Lines are sent as the bytes they are. What could not be delivered makes the exit code 1.
    """
    if key is not None and key_separator is not None:
        raise Failure("--key and --key-separator exclude each other", hint="give one of them", exit_code=USAGE)
    if key_separator == "":
        raise Failure("--key-separator is empty", hint="give the text between key and value", exit_code=USAGE)
    plan = Plan(
        topic,
        _encoded(key),
        _encoded(key_separator),
        _encoded(null_marker),
        [(name, value.encode()) for name, value in parse_assignments(headers, "a header").items()],
        partition,
    )
    if source is None and sys.stdin.isatty():
        talk(f"type records for {topic}, one a line; Ctrl-D ends")
    run(_produce(plan, source or sys.stdin.buffer, compression, acks, bootstrap))


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


async def _produce(plan: Plan, source: BinaryIO, compression: str, acks: str, bootstrap: str) -> None:
    from penstock.client import Producer

    producer = Producer(
        bootstrap,
        acks="all" if acks == "all" else 1 if acks == "1" else 0,
        compression=compression,
        client_id=CLIENT_ID,
        start_timeout_ms=0,
        max_block_ms=10_000,
    )
    async with producer:
        await producer.partitions_for(plan.topic, timeout_ms=TOPIC_WAIT_MS)
        tally = Tally()
        async for line in _lines(source):
            await _send(producer, plan, line, tally)
        await producer.flush()
    tally.done()
    if tally.failed:
        assert tally.last_error is not None
        talk(f"{tally.sent} records sent to {plan.topic}, {tally.failed} failed")
        raise tally.last_error
    talk(f"{tally.sent} records sent to {plan.topic}")


async def _send(producer: "Producer", plan: Plan, line: bytes, tally: "Tally") -> None:
    key: bytes | None = plan.key
    value: bytes | None = line
    if plan.key_separator is not None:
        before, separator, after = line.partition(plan.key_separator)
        if not separator:
            raise Failure(
                f"line {tally.taken + 1} has no {plan.key_separator.decode()!r}",
                hint="every line needs the key separator; leave --key-separator out for records without keys",
            )
        key, value = before, after
    if plan.null_marker is not None and value == plan.null_marker:
        value = None
    future = await producer.send(plan.topic, value, key, headers=plan.headers, partition=plan.partition)
    tally.taken += 1
    future.add_done_callback(tally.delivered)
    tally.show()


async def _lines(source: BinaryIO) -> AsyncIterator[bytes]:
    """Lines as they come, without their ends. Reading blocks, so it is done in a thread."""
    loop = asyncio.get_running_loop()
    read = getattr(source, "read1", source.read)
    rest = b""
    while chunk := await loop.run_in_executor(None, read, _CHUNK_BYTES):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


class Tally:
    """Counts, and tells on stderr now and then if the work is long and someone watches."""

    def __init__(self) -> None:
        self.taken = 0
        self.sent = 0
        self.failed = 0
        self.last_error: BaseException | None = None
        self._watched = sys.stderr.isatty()
        self._begun = self._shown = time.monotonic()

    def delivered(self, future: "asyncio.Future[RecordMetadata]") -> None:
        error = future.exception()
        if error is None:
            self.sent += 1
        else:
            self.failed += 1
            self.last_error = error

    def show(self) -> None:
        if self._watched and self.taken % 256 == 0 and time.monotonic() - self._shown > _PROGRESS_EVERY_S:
            self._shown = time.monotonic()
            rate = self.sent / (self._shown - self._begun)
            click.echo(f"\r{self.sent:,} records, {rate:,.0f}/s ", err=True, nl=False)

    def done(self) -> None:
        if self._shown != self._begun:
            click.echo("\r\033[K", err=True, nl=False)
