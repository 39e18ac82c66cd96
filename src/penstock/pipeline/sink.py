"""Writing to topics, exactly once: each task attempt in a transaction of its own, and one decision per batch.

    task attempt:  begin → write → prepare (from now on without a timeout) → message to the driver
    driver:        record the decision → commit the winners → abort everything else the query left open

A task of a batch that is decided already writes nothing. An attempt that lost, or that nobody remembers, has a
transactional id that begins with its query's name, so whoever commits next finds it open and aborts it.
A broker without two-phase commit (KIP-939) is refused.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.admin.admin import Admin
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.options import ConnectionOptions
from penstock.client.raw import RawClient
from penstock.client.transactions import (
    Prepared,
    TransactionalWriter,
    abort_all,
    list_open_transactions,
    speaks_two_phase,
)
from penstock.pipeline.decisions import Decision, finish, forget, make_topic, read_decisions, write_decision
from penstock.pipeline.encode import encode_payloads, finish_batch, partition_rows, read_rows
from penstock.pipeline.errors import PipelineError
from penstock.records.compression import Codec

log = logging.getLogger("penstock.pipeline")

T = TypeVar("T")
_ID_PREFIX = "penstock-sink/"
JOB_PREFIX = "job-"
_REMEMBER_JOBS_MS = 7 * 86_400_000
_WRITE_TIMEOUT_MS = 900_000  # how long an attempt may write before its transaction is aborted
_KNOWN = ("topic", "compression", "maxBatchBytes", "queryId", "queryName", "checkpointLocation", "path")


class SinkOptions(NamedTuple):
    bootstrap: str
    topic: str | None = None
    codec: Codec = Codec.NONE
    max_batch_bytes: int = 900_000

    @staticmethod
    def parse(given: Mapping[str, str]) -> "SinkOptions":
        values = {name.lower(): value for name, value in given.items()}
        bootstrap = values.get("kafka.bootstrap.servers")
        if not bootstrap:
            raise PipelineError('the option "kafka.bootstrap.servers" is missing: give it as host:port')
        known = {name.lower() for name in _KNOWN}
        for name in values:
            if name not in known and not name.startswith("kafka."):
                raise PipelineError(
                    f"the penstock sink has no option {name!r}; it has {', '.join(_KNOWN)} and kafka.*"
                )
        compression = values.get("compression") or values.get("kafka.compression.type", "none")
        try:
            codec = Codec[compression.upper()]
        except KeyError:
            names = ", ".join(codec.name.lower() for codec in Codec)
            raise PipelineError(f"compression is one of {names}, not {compression!r}") from None
        most = values.get("maxbatchbytes", "900000")
        if not most.isdigit() or not int(most):
            raise PipelineError(f"maxBatchBytes is a number, not {most!r}")
        return SinkOptions(bootstrap, values.get("topic"), codec, int(most))


class Attempt(NamedTuple):
    """Who writes: `query` lives over restarts, `run` until the next; the rest tells attempts of one run apart."""

    query: str
    run: str
    batch_id: int
    partition: int
    attempt: str

    @property
    def transactional_id(self) -> str:
        return f"{_ID_PREFIX}{self.query}/{self.run}/{self.partition}/{self.attempt}"


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


def abort(options: SinkOptions, messages: Iterable[Written | None]) -> None:
    """Undoes what attempts of a failed batch prepared."""
    ids = [message.prepared.transactional_id for message in messages if message and message.prepared]
    if ids:
        _run(lambda: _abort(options, ids))


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        return asyncio.run(work())
    except ClientError as error:
        raise PipelineError(f"{error}; {error.hint}" if error.hint else str(error)) from error


async def _write(options: SinkOptions, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> Written:
    rows = _nonempty(batches)
    first = next(rows, None)
    if first is None:
        return Written(attempt.query, None, 0)
    async with RawClient(options.bootstrap, client_id="penstock-spark") as client:
        decided = (await read_decisions(client)).get(attempt.query)
    if decided is not None and decided.batch_id >= attempt.batch_id:
        return Written(attempt.query, None, 0)
    cluster = Cluster(ConnectionOptions(options.bootstrap, client_id="penstock-spark"))
    await cluster.start()
    try:
        if not await speaks_two_phase(cluster):
            raise PipelineError(
                f"{options.bootstrap} does not know two-phase commit (KIP-939), so this sink cannot be exactly-once "
                "there; write with Spark's own Kafka sink"
            )
        writer = TransactionalWriter(cluster, attempt.transactional_id, _WRITE_TIMEOUT_MS)
        await writer.begin()
        count = 0
        batch: pa.RecordBatch | None = first
        while batch is not None:
            await _write_rows(cluster, writer, options, batch, attempt.partition)
            count += batch.num_rows
            batch = next(rows, None)
        return Written(attempt.query, await writer.prepare(), count)
    finally:
        await cluster.stop()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _nonempty(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch for batch in batches if batch.num_rows)


async def _write_rows(
    cluster: Cluster, writer: TransactionalWriter, options: SinkOptions, batch: pa.RecordBatch, spare: int
) -> None:
    for topic, part in _by_topic(options, batch):
        info = await cluster.topic(topic, cluster.options.request_timeout_ms)
        count = info.partition_count
        rows = read_rows(part, _now_ms())
        for partition, order in partition_rows(rows, count, spare % count):
            for payload in encode_payloads(rows, partition, order, options.max_batch_bytes):
                sequence = writer.next_sequence(topic, partition, payload.record_count)
                data = finish_batch(
                    payload, options.codec, writer.producer_id, writer.producer_epoch, sequence, transactional=True
                )
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
    for topic in topics.unique().to_pylist():
        yield topic, batch.filter(pc.equal(topics, topic))


async def _commit(
    options: SinkOptions, query: str, batch_id: int, written: list[Written], state: dict[str, Any] | None
) -> None:
    admin = Admin(options.bootstrap, client_id="penstock-spark")
    cluster = Cluster(ConnectionOptions(options.bootstrap, client_id="penstock-spark"))
    await cluster.start()
    try:
        async with RawClient(options.bootstrap, client_id="penstock-spark") as client:
            decisions = await read_decisions(client)
            decision = decisions.get(query)
            if decision is None or decision.batch_id < batch_id:
                winners = tuple(message.prepared for message in written if message.prepared is not None)
                decision = Decision(batch_id, winners, not winners, _now_ms(), state)
                async with admin:
                    await make_topic(admin)
                await write_decision(client, query, decision)
            decisions[query] = decision
            await _finish_all(cluster, client, query, decisions)
        await _abort_losers(cluster, query)
    finally:
        await cluster.stop()


def read_decision(options: SinkOptions, query: str) -> Decision | None:
    """What the query decided last; changes nothing."""
    return _run(lambda: _read_decision(options, query))


async def _read_decision(options: SinkOptions, query: str) -> Decision | None:
    async with RawClient(options.bootstrap, client_id="penstock-spark") as client:
        return (await read_decisions(client)).get(query)


async def _resume(options: SinkOptions, query: str) -> Decision | None:
    cluster = Cluster(ConnectionOptions(options.bootstrap, client_id="penstock-spark"))
    await cluster.start()
    try:
        async with RawClient(options.bootstrap, client_id="penstock-spark") as client:
            decisions = await read_decisions(client)
            await _finish_all(cluster, client, query, decisions)
        await _abort_losers(cluster, query)
        return decisions.get(query)
    finally:
        await cluster.stop()


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
    """Whatever the query has open now is of an attempt that did not win."""
    left = await list_open_transactions(cluster, f"{_ID_PREFIX}{query}/")
    failed = await abort_all(cluster, left)
    if failed:
        log.warning("could not abort %s; the next batch tries again", ", ".join(failed))


async def _abort(options: SinkOptions, transactional_ids: list[str]) -> None:
    cluster = Cluster(ConnectionOptions(options.bootstrap, client_id="penstock-spark"))
    await cluster.start()
    try:
        await abort_all(cluster, transactional_ids)
    finally:
        await cluster.stop()
