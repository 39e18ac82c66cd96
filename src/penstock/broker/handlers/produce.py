"""Produce (key 0), versions 3–13: v9 flexible, v10 leader hints (KIP-951), v13 topic ids.

Runs on the frame where it was received: batches are checked, numbered in place and written from there. A request with
one batch for a partition that is open, which is what most clients send, takes a way without lists (`_append_one`, a
fifth less bytecodes); all others, and whatever is refused before it is appended, the general one. Versions
0–2 are advertised but not served (KAFKA-18659). The first batch of a transaction in a partition waits for the
transaction coordinator (KIP-890): up to version 11 it must know the partition, from version 12 on it adds it.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.broker.deadlines import Deadlines
from penstock.broker.partitions import NOT_OPEN
from penstock.broker.produce_hints import encode_answer
from penstock.broker.transactional_produce import Prepared, Topics, is_transactional, settle, unverified, verify
from penstock.log.appending import AppendResult
from penstock.model.errors import ErrorCode, Refusal
from penstock.net.connection import Connection, Reply
from penstock.replication.partition import Partition, Waiter
from penstock.security.verdicts import Operation
from penstock.wire.produce_fast import (
    OneBatch,
    PartitionResult,
    TopicKey,
    decode_one_batch,
    decode_produce,
    encode_produce_frame,
    encode_produced,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Results = list[tuple[TopicKey, list[PartitionResult]]]
# A written partition whose answer must wait: the results it is in, its place there, and how far it must be committed.
Wait = tuple[Partition, int, list[PartitionResult], int]

_NO_TRANSACTIONAL_ID = Refusal(
    ErrorCode.INVALID_REQUEST, "a transactional batch in a request without transactional id"
)
_NOT_ALLOWED = Refusal(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "not authorised for this transactional id")
_WRITE = Operation.WRITE
_BAD_ACKS = Refusal(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be 0, 1 or -1 (all)")


class ProduceHandler:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._opened = broker.partitions.opened
        self._gate = broker.gate
        self._clock = broker.clock
        self._deadlines = Deadlines()

    def handle(
        self,
        connection: Connection,
        reply: Reply,
        context: RequestContext,
        frame: memoryview,
        position: int,
        prepared: Prepared | None,
    ) -> bool:
        """False: a partition has to be opened or the transaction coordinator asked first; nothing was appended."""
        one = decode_one_batch(frame, position, context.api_version)
        if one is not None:
            partition = self._opened.get((one[2], one[3]))
            if (
                partition is not None
                and -1 <= one[0] <= 1
                and not is_transactional(one[4])
                and self._gate.allows_topic(context, _WRITE, partition.topic)
            ):
                self._append_one(connection, reply, context, partition, one)
                return True
        return self._handle_general(connection, reply, context, frame, position, prepared)

    def _append_one(
        self, connection: Connection, reply: Reply, context: RequestContext, partition: Partition, one: OneBatch
    ) -> None:
        acks, timeout_ms, topic, index, records = one
        appended = partition.append(records, self._clock.now_ms(), acks)
        start_offset = partition.log.log_start_offset
        if isinstance(appended, Refusal):
            answer: PartitionResult = (index, appended.code, -1, -1, start_offset, appended.message)
            if acks:
                reply.send((self.encode(context, (partition,), [(topic, [answer])]),))
            else:
                _finish_unacknowledged(connection, reply, [(topic, [answer])])
            return
        base_offset, end_offset, append_time_ms, *_ = appended
        if acks == 0:
            reply.skip()
        elif end_offset > partition.high_watermark and not partition.is_written(end_offset, acks):
            answers: list[PartitionResult] = [(index, 0, base_offset, append_time_ms, start_offset, None)]
            wait = (partition, end_offset, answers, 0)
            _Parked(self._broker, self._deadlines, reply, context, [(topic, answers)], [wait], timeout_ms, acks)
        else:
            reply.send(
                (
                    encode_produced(
                        context.correlation_id,
                        context.api_version,
                        topic,
                        index,
                        base_offset,
                        append_time_ms,
                        start_offset,
                    ),
                )
            )

    def _handle_general(
        self,
        connection: Connection,
        reply: Reply,
        context: RequestContext,
        frame: memoryview,
        position: int,
        prepared: Prepared | None,
    ) -> bool:
        transactional_id, acks, timeout_ms, topics = decode_produce(frame, position, context.api_version)
        found = self._broker.partitions.find_all(topics)
        if prepared is None and (NOT_OPEN in found or (transactional_id is not None and unverified(topics, found))):
            return False
        waits: list[Wait] = []
        if not -1 <= acks <= 1:
            results = _refuse_all(topics, _BAD_ACKS)
        elif transactional_id is not None and not self._broker.gate.allows_transaction(context, transactional_id):
            results = _refuse_all(topics, _NOT_ALLOWED)
        else:
            if transactional_id is not None:
                found = settle(topics, found, prepared or {})
            results = self._append(context, topics, found, waits, transactional_id is not None, acks)
        if acks == 0:
            _finish_unacknowledged(connection, reply, results)
        elif waits:
            _Parked(self._broker, self._deadlines, reply, context, results, waits, timeout_ms, acks)
        else:
            reply.send((self.encode(context, found, results),))
        return True

    def encode(
        self, context: RequestContext, found: Sequence[Partition | Refusal], results: Results
    ) -> bytes | bytearray:
        """The answer; who came to the wrong broker is told where to go."""
        for partition in found:
            if not isinstance(partition, Partition):
                return encode_answer(self._broker, context, results)
        return encode_produce_frame(context.correlation_id, context.api_version, results)

    async def prepare(self, context: RequestContext, frame: memoryview, position: int) -> Prepared:
        transactional_id, _, _, topics = decode_produce(frame, position, context.api_version)
        partitions = self._broker.partitions
        await partitions.open_all([(key, index) for key, parts in topics for index, _ in parts])
        if transactional_id is None:
            return {}
        routes = self._broker.transaction_routes
        return await verify(routes, context, transactional_id, topics, partitions.find_all(topics))

    def is_one_way(self, context: RequestContext, frame: memoryview, position: int) -> bool:
        return decode_produce(frame, position, context.api_version)[1] == 0

    def _append(
        self,
        context: RequestContext,
        topics: Topics,
        found: list[Partition | Refusal],
        waits: list[Wait],
        transactional: bool,
        acks: int,
    ) -> Results:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        partitions = iter(found)
        results: Results = []
        for key, parts in topics:
            answers: list[PartitionResult] = []
            for index, records in parts:
                partition = next(partitions)
                if not isinstance(partition, Partition):
                    answers.append((index, partition.code, -1, -1, -1, partition.message))
                    continue
                if not broker.gate.allows_topic(context, _WRITE, partition.topic):
                    answers.append((index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1, -1, -1, None))
                    continue
                if records is None:
                    appended: AppendResult | Refusal = _NO_RECORDS
                elif not transactional and is_transactional(records):
                    appended = _NO_TRANSACTIONAL_ID
                else:
                    appended = partition.append(records, now_ms, acks)
                start_offset = partition.log.log_start_offset
                if isinstance(appended, AppendResult):
                    base_offset, end_offset, append_time_ms, *_ = appended
                    if end_offset > partition.high_watermark and not partition.is_written(end_offset, acks):
                        waits.append((partition, end_offset, answers, len(answers)))
                    answers.append((index, 0, base_offset, append_time_ms, start_offset, None))
                else:
                    answers.append((index, appended.code, -1, -1, start_offset, appended.message))
            results.append((key, answers))
        return results


_NO_RECORDS = Refusal(ErrorCode.INVALID_RECORD, "the request holds no records for this partition")


class _Parked:
    """A request whose records are written but not committed yet."""

    __slots__ = (
        "_broker",
        "_context",
        "_deadlines",
        "_failed",
        "_remaining",
        "_reply",
        "_results",
        "_timeout_ms",
        "_waiters",
        "_waits",
    )

    def __init__(
        self,
        broker: "Broker",
        deadlines: Deadlines,
        reply: Reply,
        context: RequestContext,
        results: Results,
        waits: list[Wait],
        timeout_ms: int,
        acks: int,
    ) -> None:
        self._broker = broker
        self._deadlines = deadlines
        self._timeout_ms = timeout_ms if timeout_ms > 0 else 0
        self._failed = False
        self._reply = reply
        self._context = context
        self._results = results
        self._waits = waits
        self._remaining = remaining = len(waits)
        # None once it had its turn: otherwise this and its waiters would keep each other alive.
        self._waiters: list[Waiter | None] = [None] * remaining
        reply.parked = self
        deadlines.add(self, self._timeout_ms)
        for number, (partition, end_offset, _, _) in enumerate(waits):
            wait = partition.when_committed if acks == -1 else partition.when_written
            self._waiters[number] = wait(end_offset, partial(self._committed, number))

    def _committed(self, number: int, error: ErrorCode) -> None:
        self._waiters[number] = None
        if error:
            self._failed = True
            _fail(self._waits[number], error)
        self._remaining -= 1
        if not self._remaining:
            self._deadlines.remove(self, self._timeout_ms)
            self._answer()

    def time_out(self) -> None:
        for wait, waiter in zip(self._waits, self._waiters, strict=True):
            if waiter is not None:
                waiter.cancel()
                _fail(wait, ErrorCode.REQUEST_TIMED_OUT)
        self._answer()

    def drop(self) -> None:
        self._deadlines.remove(self, self._timeout_ms)
        self._reply.parked = None
        for waiter in self._waiters:
            if waiter is not None:
                waiter.cancel()

    def _answer(self) -> None:
        context, reply = self._context, self._reply
        reply.parked = None
        if self._failed:
            reply.send((encode_answer(self._broker, context, self._results),))
        else:
            reply.send((encode_produce_frame(context.correlation_id, context.api_version, self._results),))


def _fail(wait: Wait, error: ErrorCode) -> None:
    _, _, answers, place = wait
    answers[place] = (answers[place][0], error, -1, -1, -1, None)


def _refuse_all(topics: Topics, refusal: Refusal) -> Results:
    return [
        (key, [(index, refusal.code, -1, -1, -1, refusal.message) for index, _ in parts]) for key, parts in topics
    ]


def _finish_unacknowledged(connection: Connection, reply: Reply, results: Results) -> None:
    """acks=0 has no answer; a closed connection is the only way to tell the client that something was refused."""
    for _, answers in results:
        for answer in answers:
            if answer[1]:
                connection.abort(f"sent records with acks=0 that were refused with error {answer[1]}")
                return
    reply.skip()
