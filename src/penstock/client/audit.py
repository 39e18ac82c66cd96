"""End-to-end counters of a producer: what it was given and what was acknowledged, told to an audit topic.

`penstock pipeline audit` compares them with what is in the log. Counted per batch, never per record, in cells of
topic, partition, producer identity and time window (of the batch's first timestamp, which brokers leave alone), so
the log can be counted the same way.
Hard rules:
- Told values are totals of a cell: a later one replaces an earlier one, so telling twice does no harm and the topic
  can be compacted. A cell that was told and forgotten never comes back: its successor has another `part`.
- The audited producer never waits for its counters, and never fails because of them.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.client.errors import ClientError, UsageError
from penstock.client.options import ConnectionOptions
from penstock.model.errors import ErrorCode

if TYPE_CHECKING:
    from penstock.client.producer.batch import ProducerBatch
    from penstock.client.producer.producer import Producer

log = logging.getLogger("penstock.client")

AUDIT_TOPIC = "__penstock_audit"
LATENCY_BUCKETS = 20
"""Acknowledgements by latency: bucket i holds those that took less than 2**i ms, the last one all others."""
_VERSION = 1
_KEPT_WINDOWS = 2
_STOP_TIMEOUT_S = 5.0


class AuditOptions(NamedTuple):
    topic: str = AUDIT_TOPIC
    interval_ms: int = 10_000
    """How often counters are told. A producer that dies leaves at most this much untold."""
    window_ms: int = 60_000


class _Cell:
    __slots__ = ("acknowledged", "changed", "failed", "latencies", "part", "produced")

    def __init__(self, part: int) -> None:
        self.part = part
        self.produced = self.acknowledged = self.failed = 0
        self.latencies = [0] * LATENCY_BUCKETS
        self.changed = True

    @property
    def is_settled(self) -> bool:
        """Told, and nothing of it is under way."""
        return not self.changed and self.acknowledged + self.failed >= self.produced


_CellKey = tuple[str, int, int, int, int]  # topic, partition, producer id, producer epoch, window


class AuditCounters:
    """Counts batches. `take_changed` gives what is to be told; a name and a value for each cell."""

    def __init__(self, options: AuditOptions, client_id: str, incarnation: str, now_ms: int) -> None:
        self.options = options
        self.client_id = client_id
        self.incarnation = incarnation
        self._started_ms = now_ms
        self._cells: dict[_CellKey, _Cell] = {}
        self._parts = 0

    def sent(self, batch: "ProducerBatch") -> None:
        """A batch leaves; only the first attempt counts."""
        if batch.attempts == 1:
            cell = self._cell(batch)
            cell.produced += batch.record_count
            cell.changed = True

    def acknowledged(self, batch: "ProducerBatch", latency_s: float) -> None:
        cell = self._cell(batch)
        cell.acknowledged += batch.record_count
        cell.latencies[min(max(int(latency_s * 1000), 0).bit_length(), LATENCY_BUCKETS - 1)] += batch.record_count
        cell.changed = True

    def failed(self, batch: "ProducerBatch") -> None:
        """Given up: the broker may or may not have it."""
        cell = self._cell(batch)
        if not batch.attempts:
            cell.produced += batch.record_count
        cell.failed += batch.record_count
        cell.changed = True

    def _cell(self, batch: "ProducerBatch") -> _Cell:
        window = batch.timestamps[0] // self.options.window_ms * self.options.window_ms
        key = (batch.topic, batch.partition, batch.producer_id, batch.epoch, window)
        cell = self._cells.get(key)
        if cell is None:
            self._parts += 1
            cell = self._cells[key] = _Cell(self._parts)
        return cell

    def take_changed(self, now_ms: int) -> list[tuple[str, bytes]]:
        """Cells that changed since they were last taken. Those whose time is over were told, and are forgotten."""
        oldest = now_ms - _KEPT_WINDOWS * self.options.window_ms
        for key in [key for key, cell in self._cells.items() if key[4] < oldest and cell.is_settled]:
            del self._cells[key]
        told = []
        for key, cell in self._cells.items():
            if cell.changed:
                cell.changed = False
                told.append((self._name(key, cell), self._value(key, cell)))
        return told

    def repeat(self) -> None:
        """What was taken last may not have arrived: tell everything again that is still known."""
        for cell in self._cells.values():
            cell.changed = True

    def life(self, now_ms: int, *, closed: bool) -> tuple[str, bytes]:
        """That this producer is there, or has ended with everything told."""
        value = {
            "kind": "producer",
            "started": self._started_ms,
            "at": now_ms,
            "cells": self._parts,
            "closed": closed,
        }
        return f"{self.client_id}/{self.incarnation}", self._encode(value)

    def _name(self, key: _CellKey, cell: _Cell) -> str:
        return "/".join(map(str, (self.client_id, self.incarnation, *key, cell.part)))

    def _value(self, key: _CellKey, cell: _Cell) -> bytes:
        topic, partition, producer_id, epoch, window = key
        return self._encode(
            {
                "kind": "counters",
                "topic": topic,
                "partition": partition,
                "producer": producer_id,
                "epoch": epoch,
                "window": window,
                "window_ms": self.options.window_ms,
                "part": cell.part,
                "produced": cell.produced,
                "acknowledged": cell.acknowledged,
                "failed": cell.failed,
                "latencies": cell.latencies,
            }
        )

    def _encode(self, value: dict[str, Any]) -> bytes:
        head = {"v": _VERSION, "client": self.client_id, "incarnation": self.incarnation}
        return msgspec.json.encode({**head, **value})


def parse_audit_options(given: "bool | str | AuditOptions") -> AuditOptions | None:
    if isinstance(given, AuditOptions):
        options = given
    elif isinstance(given, str):
        options = AuditOptions(given)
    else:
        return AuditOptions() if given else None
    if not options.topic or options.interval_ms <= 0 or options.window_ms <= 0:
        raise UsageError(f"{options} cannot be", hint="give a topic, and an interval and a window above 0")
    return options


class AuditPublisher:
    """Tells the counters of one producer, through a producer of its own."""

    def __init__(self, options: AuditOptions, connection: ConnectionOptions) -> None:
        incarnation = connection.rng.random_bytes(8).hex()
        self.counters = AuditCounters(options, connection.client_id, incarnation, connection.clock.now_ms())
        self._options = options
        self._connection = connection
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-audit")

    async def stop(self) -> None:
        """Tells the rest, and that it is the rest. Bounded: a broker that is gone holds nobody up."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self.counters.repeat()  # telling may have been cut short
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._tell(closed=True)
        except TimeoutError:
            log.warning("the audit counters of %s could not be told in time", self.counters.client_id)
        if self._producer is not None:
            await self._producer.stop(0)
            self._producer = None

    async def _run(self) -> None:
        while True:
            await self._tell(closed=False)
            await asyncio.sleep(self._options.interval_ms / 1000)

    async def _tell(self, *, closed: bool) -> None:
        now_ms = self._connection.clock.now_ms()
        try:
            producer = await self._connected()
            records = [*self.counters.take_changed(now_ms), self.counters.life(now_ms, closed=closed)]
            # The word that all is told follows what it is about, and is not said when that failed.
            for part in (records[:-1], records[-1:]):
                sent = [await producer.send(self._options.topic, value, key=name) for name, value in part]
                await asyncio.gather(*sent)
        except ClientError as error:
            self.counters.repeat()
            log.warning("the audit counters of %s are not told: %s", self.counters.client_id, error)

    async def _connected(self) -> "Producer":
        if self._producer is None:
            from penstock.client.producer.producer import Producer

            await self._make_topic()
            connection = self._connection
            producer = Producer(
                connection.bootstrap,
                client_id=f"{connection.client_id}-audit",
                clock=connection.clock,
                rng=connection.rng,
                start_timeout_ms=connection.start_timeout_ms,
            )
            await producer.start()
            self._producer = producer
        return self._producer

    async def _make_topic(self) -> None:
        from penstock.client.admin import Admin, NewTopic

        wanted = NewTopic(self._options.topic, partitions=1, configs={"cleanup.policy": "compact"})
        async with Admin(self._connection.bootstrap, client_id=f"{self._connection.client_id}-audit") as admin:
            outcome = (await admin.create_topics([wanted]))[self._options.topic]
        if isinstance(outcome, ClientError) and outcome.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome
