"""Writing to topics, exactly once: each task attempt in a transaction of its own, and one decision per batch.

    task attempt:  begin → write → prepare (from now on without a timeout) → message to the driver
    driver:        record the decision → commit the winners → abort everything else the query left open

A task of a batch that is decided already writes nothing. An attempt that fails undoes its own transaction; one that
lost, or that nobody remembers, is found by its id and undone by whoever commits next (`abandoned`).
To a broker without two-phase commit (KIP-939) tasks write at once, as an idempotent producer does, and say that this
is at-least-once: a task or batch that is repeated is written again.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.admin.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.options import ConnectionOptions
from penstock.client.raw import RawClient
from penstock.client.transactions import BatchWriter, Prepared, TransactionalWriter, speaks_two_phase
from penstock.pipeline.abandoned import ID_PREFIX, abort_losers, refuse_late_job
from penstock.pipeline.decisions import (
    DECISIONS_TOPIC,
    Decision,
    finish,
    forget,
    make_topic,
    read_decisions,
    write_decision,
)
from penstock.pipeline.errors import BrokerAway, PipelineError
from penstock.pipeline.formats.columns import TypedRows
from penstock.pipeline.sink_options import AT_LEAST_ONCE, EXACTLY_ONCE, JOB_PREFIX, SinkOptions

__all__ = [
    "Attempt",
    "Decision",
    "SinkOptions",
    "Written",
    "abort",
    "commit",
    "read_decision",
    "resume",
    "write_batches",
]

log = logging.getLogger("penstock.pipeline")

T = TypeVar("T")
_REMEMBER_JOBS_MS = 7 * 86_400_000
_WRITE_TIMEOUT_MS = 900_000  # how long an attempt may write before its transaction is aborted
_warned: set[str] = set()  # brokers that a worker has said it about


class Attempt(NamedTuple):
    """Who writes: `query` lives over restarts, `run` until the next; the rest tells attempts of one run apart."""

    query: str
    run: str
    batch_id: int
    partition: int
    attempt: str

    @property
    def transactional_id(self) -> str:
        return f"{ID_PREFIX}{self.query}/{self.run}/{self.partition}/{self.attempt}"


class Written(NamedTuple):
    """What an attempt tells the driver. Nothing is prepared where there were no rows, or the batch was decided."""

    query: str
    prepared: Prepared | None
    rows: int


def write_batches(options: SinkOptions, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> Written:
    """Writes the rows of one task attempt and leaves them prepared."""
    return _run(lambda: _write(options, attempt, batches))


def commit(
    options: SinkOptions,
    batch_id: int,
    messages: Iterable[Written | None],
    state: dict[str, Any] | None = None,
) -> None:
    """Makes a batch visible, once: what was decided before stays decided. `state` is kept with the decision."""
    written = [message for message in messages if message is not None]
    if written:
        _run(lambda: _commit(options, written[0].query, batch_id, written, state))


def resume(options: SinkOptions, query: str) -> Decision | None:
    """Finishes what the query decided before it was interrupted, and undoes what it did not; answers the decision."""
    return _run(lambda: _resume(options, query))


def abort(options: SinkOptions, query: str | None, messages: Iterable[Written | None]) -> None:
    """Undoes what attempts of a failed batch wrote, also those that never got to say so, if the query is known."""
    written = [message for message in messages if message is not None]
    query = query or next((message.query for message in written), None)
    if query is not None:
        _run(lambda: _abort(options, query))


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except ClientError as error:
        kind = BrokerAway if error.retriable else PipelineError
        raise kind(str(error), hint=error.hint) from error


@asynccontextmanager
async def _connected(options: SinkOptions) -> AsyncIterator[Cluster]:
    """Topics are created by writing to them where the broker allows that, as with every producer."""
    cluster = Cluster(ConnectionOptions(options.bootstrap, client_id=options.client_id), auto_create=True)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def _write(options: SinkOptions, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> Written:
    rows = (batch for batch in batches if batch.num_rows)
    first = next(rows, None)
    if first is None or await _is_decided(options, attempt):
        return Written(attempt.query, None, 0)
    async with _connected(options) as cluster:
        if options.delivery == AT_LEAST_ONCE or not await _is_exactly_once(cluster, options):
            plain = BatchWriter(cluster, _WRITE_TIMEOUT_MS)
            count = await _write_all(cluster, plain, options, attempt, chain((first,), rows))
            await plain.flush()
            return Written(attempt.query, None, count)
        writer = TransactionalWriter(cluster, attempt.transactional_id, _WRITE_TIMEOUT_MS)
        try:
            count = await _write_all(cluster, writer, options, attempt, chain((first,), rows))
            prepared = await writer.prepare()
            # An attempt that comes too late would be found by nobody: no batch may follow this one.
            if await _is_decided(options, attempt):
                await writer.abort()
                return Written(attempt.query, None, 0)
        except BaseException:
            await _undo(writer)
            raise
        return Written(attempt.query, prepared, count)


async def _undo(writer: TransactionalWriter) -> None:
    try:
        await writer.abort()
    except ClientError as error:  # what went wrong first is what is raised
        log.warning("could not abort %s: %s; the next batch tries again", writer.transactional_id, error)


async def _is_decided(options: SinkOptions, attempt: Attempt) -> bool:
    decided = await _read_decision(options, attempt.query)
    return decided is not None and decided.batch_id >= attempt.batch_id


async def _is_exactly_once(cluster: Cluster, options: SinkOptions) -> bool:
    """Whether it can be; says so if not, once per worker, or refuses if it was asked for."""
    if await speaks_two_phase(cluster):
        return True
    message = f"{options.bootstrap} does not know two-phase commit (KIP-939)"
    if options.delivery == EXACTLY_ONCE:
        raise PipelineError(
            f"{message}, so this sink cannot be exactly-once there", hint=f"set delivery={AT_LEAST_ONCE}"
        )
    if options.bootstrap not in _warned:
        _warned.add(options.bootstrap)
        log.warning(
            "%s: this sink is at-least-once there, a task or batch that is repeated is written again. "
            "delivery=%s says that this is meant",
            message,
            AT_LEAST_ONCE,
        )
    return False


async def _write_all(
    cluster: Cluster, writer: BatchWriter, options: SinkOptions, attempt: Attempt, batches: Iterable[pa.RecordBatch]
) -> int:
    await writer.begin()
    typed = None
    if not options.formats.is_plain:
        typed = TypedRows(options.formats, options.key_schema_id, options.value_schema_id)
    count = 0
    for batch in batches:
        count += batch.num_rows
        await _write_rows(cluster, writer, options, typed.apply(batch) if typed else batch, attempt.partition)
    return count


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _write_rows(
    cluster: Cluster, writer: BatchWriter, options: SinkOptions, batch: pa.RecordBatch, spare: int
) -> None:
    # With compiled loops, which the driver's part of a sink need not load.
    from penstock.pipeline.encode import encode_payloads, finish_batch, partition_rows, read_rows

    transactional = writer.transactional_id is not None
    for topic, part in _by_topic(options, batch):
        info = await cluster.topic(topic, cluster.options.request_timeout_ms)
        count = info.partition_count
        rows = read_rows(part, _now_ms())
        for partition, order in partition_rows(rows, count, spare % count):
            for payload in encode_payloads(rows, partition, order, options.max_batch_bytes):
                sequence = writer.next_sequence(topic, partition, payload.record_count)
                producer = (writer.producer_id, writer.producer_epoch, sequence)
                data = finish_batch(payload, options.codec, *producer, transactional=transactional)
                await writer.write(topic, partition, data)


def _by_topic(options: SinkOptions, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The option `topic` goes before the column, as with Spark's own sink."""
    if options.topic is not None:
        yield options.topic, batch
        return
    if "topic" not in batch.schema.names:
        raise PipelineError('give the option "topic", or a column "topic" that says where each row goes')
    topics = batch.column("topic")
    if topics.null_count:
        raise PipelineError('a row has no topic: the column "topic" is null and there is no option "topic"')
    names = topics.unique().to_pylist()
    for topic in names:
        yield topic, batch if len(names) == 1 else batch.filter(pc.equal(topics, topic))


async def _commit(
    options: SinkOptions, query: str, batch_id: int, written: list[Written], state: dict[str, Any] | None
) -> None:
    async with _connected(options) as cluster, RawClient(options.bootstrap, client_id=options.client_id) as client:
        decisions = await read_decisions(client)
        decision = decisions.get(query)
        if decision is None or decision.batch_id < batch_id:
            refuse_late_job(query, _now_ms())
            winners = tuple(message.prepared for message in written if message.prepared is not None)
            decision = Decision(batch_id, winners, not winners, _now_ms(), state)
            if not await client.has_topic(DECISIONS_TOPIC):
                async with Admin(options.bootstrap, client_id=options.client_id) as admin:
                    await make_topic(admin)
            await write_decision(client, query, decision)
        decisions[query] = decision
        await _finish_all(cluster, client, query, decisions)
        await _abort_losers(cluster, query)


def read_decision(options: SinkOptions, query: str) -> Decision | None:
    """What the query decided last; changes nothing."""
    return _run(lambda: _read_decision(options, query))


async def _read_decision(options: SinkOptions, query: str) -> Decision | None:
    async with RawClient(options.bootstrap, client_id=options.client_id) as client:
        return (await read_decisions(client)).get(query)


async def _resume(options: SinkOptions, query: str) -> Decision | None:
    async with _connected(options) as cluster, RawClient(options.bootstrap, client_id=options.client_id) as client:
        decisions = await read_decisions(client)
        await _finish_all(cluster, client, query, decisions)
        await _abort_losers(cluster, query)
        return decisions.get(query)


async def _finish_all(cluster: Cluster, client: RawClient, query: str, decisions: dict[str, Decision]) -> None:
    """This query's decision, and those of batch jobs whose driver died: nobody runs those again."""
    now_ms = _now_ms()
    for name, decision in decisions.items():
        is_job = name.startswith(JOB_PREFIX)
        if not decision.done and (name == query or is_job):
            await finish(cluster, decision)
            await write_decision(client, name, decision._replace(done=True))
        elif is_job and now_ms - decision.at_ms > _REMEMBER_JOBS_MS:
            await forget(client, name, now_ms)


async def _abort_losers(cluster: Cluster, query: str) -> None:
    if await speaks_two_phase(cluster):
        await abort_losers(cluster, query, _now_ms())


async def _abort(options: SinkOptions, query: str) -> None:
    """What was decided happens all the same: only a batch that failed before that is undone."""
    async with _connected(options) as cluster, RawClient(options.bootstrap, client_id=options.client_id) as client:
        decision = (await read_decisions(client)).get(query)
        if decision is None or decision.done:
            await _abort_losers(cluster, query)
