"""What leaves when, and what an answer means. Runs on callbacks: a tick is scheduled whenever something changed.

Hard rules:
- At most `max_in_flight` requests per broker, and batches per partition; one batch per partition in a request. With
  acks=0 nothing is sent while the socket has not taken what was sent before.
- A batch whose fate is unknown (lost connection, timeout, a leader that resigned) is sent again unchanged: the broker
  knows its sequence and answers a duplicate with the first offset. OUT_OF_ORDER_SEQUENCE_NUMBER is the proof that it
  was not written; but not of a half of it, which the broker does not know. Such a half has failed then.
- A new epoch, with new numbers, begins when the first undecided batch is out of order, and unasked behind one that
  failed: nobody says whether there is a hole (a leader that is new asks to try again instead), and a late write of
  the old epoch is refused. But only once nothing is in flight and nothing that waits may be written: such a batch
  goes out unchanged first, and the broker's word decides.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from penstock.client.cluster import Cluster
from penstock.client.connection import Connection
from penstock.client.errors import ClientError, ConnectionFailed, DeliveryTimedOut, broker_error
from penstock.client.metadata import NO_LEADER
from penstock.client.producer.accumulator import Accumulator, ProducerOptions
from penstock.client.producer.batch import ProducerBatch
from penstock.client.producer.identity import ProducerIdentity
from penstock.client.producer.queue import NEVER, PartitionQueue
from penstock.model.errors import ErrorCode, error_of
from penstock.model.ids import ZERO_UUID
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from penstock.client.audit import AuditCounters

log = logging.getLogger("penstock.client")

_Sent = list[tuple[PartitionQueue, ProducerBatch]]
_LAST_VERSION_BY_NAME = 12
_MAX_IDENTITY_CHANGES = 5
_LOST_PLACE = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_STALE_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
    }
)


class Sender:
    def __init__(self, cluster: Cluster, accumulator: Accumulator, options: ProducerOptions) -> None:
        self.identity: ProducerIdentity | None = ProducerIdentity() if options.idempotent else None
        self.flushing = 0
        self.audit: AuditCounters | None = None
        """Counts whole batches, where the producer was asked to."""
        self._cluster = cluster
        self._accumulator = accumulator
        self._options = options
        self._linger_s = options.linger_ms / 1000
        self._backoff_s = cluster.options.retry_backoff_ms / 1000
        self._max_inflight = options.max_in_flight if options.idempotent or options.acks == 0 else 1
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = NEVER
        self._node_retry_at: dict[int, float] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._initialising: asyncio.Task[None] | None = None
        self._unanswered: dict[int, Connection] = {}  # by broker; for acks=0
        self._written = asyncio.Event()  # one of those has nothing left to write
        self._stopped = False

    # -- waking -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._scheduled and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._tick)

    def wake_at(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        if not self._stopped:
            self._timer_at = when
            self._timer = self._loop.call_at(when, self._timer_fired)

    def batch_opened(self, batch: ProducerBatch) -> None:
        if self._linger_s <= 0 or self._accumulator.is_exhausted:
            self.wake()
        else:
            self.wake_at(batch.created_at + self._linger_s)

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _tick(self) -> None:
        self._scheduled = False
        if self._stopped:
            return
        now = self._loop.time()
        self._expire(now)
        self._restart_behind_holes()
        if self.identity is not None and not self.identity.known:
            self._obtain_identity(now)
            return
        while True:
            by_node, due_next = self._collect(now)
            if not by_node:
                break
            for node_id, queues in by_node.items():
                self._send(node_id, queues)
        if due_next != NEVER:
            self.wake_at(due_next)

    # -- what may leave -----------------------------------------------------------------------------------

    def _collect(self, now: float) -> tuple[dict[int, list[PartitionQueue]], float]:
        """Partitions with a batch that is due, by leader, as many as fit one request each; and when more are due."""
        linger_s = 0.0 if self.flushing or self._accumulator.is_exhausted else self._linger_s
        by_node: dict[int, list[PartitionQueue]] = {}
        due_next = NEVER
        room: dict[int, int] = {}
        for queue in self._accumulator.active:
            due = queue.next_due(linger_s, self._max_inflight)
            if due > now:
                due_next = min(due_next, due, _soonest_deadline(queue))
                continue
            node_id, ready_at = self._leader(queue, now)
            if ready_at > now:
                due_next = min(due_next, ready_at, _soonest_deadline(queue))
                continue
            left = room.get(node_id, self._options.max_request_bytes)
            size = _next_size(queue)
            if left == self._options.max_request_bytes or size <= left:
                room[node_id] = left - size
                by_node.setdefault(node_id, []).append(queue)
        return by_node, due_next

    def _leader(self, queue: PartitionQueue, now: float) -> tuple[int, float]:
        """The leader and when it can take a request; `NEVER` when an event will wake us."""
        node_id = self._cluster.metadata.leader_of(queue.topic, queue.partition)
        if node_id == NO_LEADER:
            self._cluster.interest.add(queue.topic)
            self._cluster.request_refresh()
            return node_id, now + self._backoff_s
        retry_at = self._node_retry_at.get(node_id, 0.0)
        if retry_at > now:
            return node_id, retry_at
        connection = self._cluster.connected(node_id, "data")
        if connection is None:
            self._connect(node_id)
            return node_id, NEVER
        options = self._options
        is_busy = connection.is_writing if options.acks == 0 else connection.inflight_count >= options.max_in_flight
        return node_id, (NEVER if is_busy else now)

    def _connect(self, node_id: int) -> None:
        if node_id not in self._connecting:
            task = self._loop.create_task(self._open_connection(node_id))
            self._connecting[node_id] = task

    async def _open_connection(self, node_id: int) -> None:
        try:
            if self._unanswered.pop(node_id, None) is not None:
                await self._cluster.refresh()  # a broker that leads no more can tell by hanging up alone
            await self._cluster.connection(node_id, "data")
            self._node_retry_at.pop(node_id, None)
        except ClientError as error:
            log.debug("broker %d cannot be reached: %s", node_id, error)
            self._node_retry_at[node_id] = self._loop.time() + self._backoff_s * 2
            self._cluster.request_refresh()
        finally:
            self._connecting.pop(node_id, None)
            self.wake()

    def _obtain_identity(self, now: float) -> None:
        if self._initialising is None:
            self._initialising = self._loop.create_task(self._init_producer_id())
        deadlines = [_soonest_deadline(queue) for queue in self._accumulator.active]
        if deadlines:
            self.wake_at(min(deadlines))

    async def _init_producer_id(self) -> None:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        try:
            response = await self._cluster.call_any(request, InitProducerIdResponse)
            if response.error_code:
                raise broker_error(response.error_code, what="a producer id")
            assert self.identity is not None
            self.identity.adopt(response.producer_id, response.producer_epoch)
        except ClientError as error:
            if not error.retriable:
                self._fail_everything(error)
            await asyncio.sleep(self._backoff_s)
        finally:
            self._initialising = None
            self.wake()

    # -- out ----------------------------------------------------------------------------------------------

    def _send(self, node_id: int, queues: list[PartitionQueue]) -> None:
        connection = self._cluster.connected(node_id, "data")
        if connection is None:
            return
        sent: _Sent = [(queue, queue.take(self._options.codec, self.identity)) for queue in queues]
        if self.audit is not None:
            for _, batch in sent:
                self.audit.sent(batch)
        request, max_version = self._request(sent)
        try:
            self._write(node_id, connection, request, max_version, sent)
        except ClientError as error:
            self._lost(sent, error)

    def _write(
        self, node_id: int, connection: Connection, request: ProduceRequest, max_version: int | None, sent: _Sent
    ) -> None:
        if self._options.acks == 0:
            if self._unanswered.get(node_id) is not connection:
                self._unanswered[node_id] = connection
                connection.tell_written(self._has_written)
            connection.send_unanswered(request, max_version=max_version)
            for queue, batch in sent:
                queue.answered(batch)
                self._succeed(queue, batch, -1, -1)
            return
        timeout_ms = self._cluster.options.request_timeout_ms
        future = connection.send(request, ProduceResponse, timeout_ms, max_version=max_version)
        future.add_done_callback(lambda done: self._answered(sent, done))

    def _request(self, sent: _Sent) -> tuple[ProduceRequest, int | None]:
        topics: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
        for queue, batch in sent:
            topics.setdefault(queue.topic, []).append(
                ProduceRequest.PartitionProduceData(index=queue.partition, records=batch.data)
            )
        max_version: int | None = None
        data = []
        for name, partitions in topics.items():
            info = self._cluster.metadata.topics.get(name)
            topic_id = info.topic_id if info is not None else ZERO_UUID
            if topic_id == ZERO_UUID:
                max_version = _LAST_VERSION_BY_NAME
            data.append(ProduceRequest.TopicProduceData(name=name, topic_id=topic_id, partition_data=partitions))
        request = ProduceRequest(
            acks=self._options.acks, timeout_ms=self._cluster.options.request_timeout_ms, topic_data=data
        )
        return request, max_version

    def _has_written(self) -> None:
        self._written.set()
        self.wake()

    async def written(self) -> None:
        """With acks=0: until what was sent is with the sockets, or one of them took nothing for too long."""
        try:
            async with asyncio.timeout(self._cluster.options.request_timeout_ms / 1000):
                while any(connection.is_writing for connection in self._unanswered.values()):
                    self._written.clear()
                    await self._written.wait()
        except TimeoutError:
            log.warning("records sent with acks=0 may be lost: a broker does not take them")

    # -- answers ------------------------------------------------------------------------------------------

    def _answered(self, sent: _Sent, future: "asyncio.Future[ProduceResponse]") -> None:
        error = future.exception()
        if error is not None:
            self._lost(sent, error if isinstance(error, ClientError) else ConnectionFailed(str(error)))
            return
        response = future.result()
        results: dict[tuple[str, int], Any] = {}
        for topic in response.responses:
            name = self._cluster.metadata.topic_name(topic.topic_id, topic.name)
            for partition in topic.partition_responses:
                results[name, partition.index] = partition
        for queue, batch in sent:
            queue.answered(batch)
            result = results.get((queue.topic, queue.partition))
            if result is None:
                batch.may_be_written = True
                self._again(queue, batch, broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                self._decide(queue, batch, result)
        self.wake()

    def _decide(self, queue: PartitionQueue, batch: ProducerBatch, result: Any) -> None:
        code = result.error_code
        if code == ErrorCode.NONE:
            self._succeed(queue, batch, result.base_offset, result.log_append_time_ms)
            return
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self._succeed(queue, batch, -1, -1)
            return
        error = broker_error(code, result.error_message, what=f"{queue.topic}-{queue.partition}")
        if code in _LOST_PLACE and self.identity is not None:
            self._lost_place(queue, batch, error)
        elif code in _TOO_LARGE and batch.record_count > 1:
            self._split(queue, batch)
        elif error.retriable:
            if code in _STALE_METADATA:
                self._cluster.request_refresh()
            batch.may_be_written |= not _was_turned_away(result)
            self._again(queue, batch, error)
        else:
            batch.may_be_written |= error_of(code) == ErrorCode.UNKNOWN_SERVER_ERROR  # it came before or after
            queue.refused(batch)
            self._fail(queue, batch, error)

    def _lost_place(self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError) -> None:
        queue.out_of_place(batch)
        is_spent = queue.lost_place and batch.identity_changes >= _MAX_IDENTITY_CHANGES
        if is_spent or batch.whole_may_be_written:
            queue.given_up(batch)
            self._fail(queue, batch, error)
        else:
            self._again(queue, batch, error)

    def _begin_epoch(self, queue: PartitionQueue) -> None:
        """What is sent next to this partition is the first of a new sequence."""
        assert self.identity is not None
        self.identity.move_past(queue.producer_id, queue.epoch)
        queue.restart_sequence = True

    def _lost(self, sent: _Sent, error: ClientError) -> None:
        """No answer: the batches may or may not be written."""
        self._cluster.request_refresh()
        for queue, batch in sent:
            queue.answered(batch)
            batch.may_be_written = True
            self._again(queue, batch, error)
        self.wake()

    def _again(self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError) -> None:
        now = self._loop.time()
        if self._stopped or batch.deadline <= now:
            self._give_up(queue, batch, error)
            return
        delay = min(1.0, self._backoff_s * 2 ** min(batch.attempts - 1, 8))
        queue.send_again([batch], now + delay * self._cluster.options.rng.uniform(0.8, 1.2))

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        halves = batch.split(self._options.codec)
        for half in halves:
            half.attempts, half.may_be_written = batch.attempts, batch.may_be_written
            half.whole_may_be_written = batch.may_be_written or batch.whole_may_be_written
            self._accumulator.reserve(half)
        self._accumulator.release(batch)
        queue.send_again(halves, 0.0)

    def _succeed(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        queue.acknowledged(batch)
        batch.complete(base_offset, append_time_ms)
        if self.audit is not None:
            self.audit.acknowledged(batch, self._loop.time() - batch.created_at)
        self._accumulator.release(batch)
        self._accumulator.leave(queue)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError | None) -> None:
        queue.given_up(batch)
        self._fail(queue, batch, _too_late(batch, error))

    def _fail(self, queue: PartitionQueue, batch: ProducerBatch, error: ClientError) -> None:
        log.warning("%d records for %s-%d not delivered: %s", batch.record_count, batch.topic, batch.partition, error)
        batch.fail(error)
        if self.audit is not None:
            self.audit.failed(batch)
        self._accumulator.release(batch)
        self._accumulator.leave(queue)

    def _expire(self, now: float) -> None:
        for queue in list(self._accumulator.active):
            for batch in queue.take_expired(now):
                self._give_up(queue, batch, None)

    def _restart_behind_holes(self) -> None:
        for queue in self._accumulator.active:
            if queue.may_restart and not queue.restart_sequence:
                log.info("%s-%d: starting a new sequence", queue.topic, queue.partition)
                self._begin_epoch(queue)

    def _fail_everything(self, error: ClientError) -> None:
        for queue in list(self._accumulator.active):
            for batch in queue.take_all():
                self._fail(queue, batch, error)

    async def stop(self, reason: ClientError) -> None:
        """Whatever is not delivered by now fails."""
        self._fail_everything(reason)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        tasks: list[asyncio.Task[Any]] = list(self._connecting.values())
        if self._initialising is not None:
            tasks.append(self._initialising)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _was_turned_away(result: Any) -> bool:
    """Whether nothing was written, though it may be tried again. Those whose records were written, and who wait for
    other replicas when the leader resigns, are told the same, but without an explanation."""
    return result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and result.error_message is not None


def _soonest_deadline(queue: PartitionQueue) -> float:
    heads = [batch.deadline for batch in (queue.open, *queue.ready, *queue.retries) if batch is not None]
    return min(heads, default=NEVER)


def _next_size(queue: PartitionQueue) -> int:
    batch = queue.next_again if queue.retries else queue.ready[0] if queue.ready else queue.open
    assert batch is not None
    return len(batch.data) if batch.data is not None else batch.size_bytes


def _too_late(batch: ProducerBatch, error: ClientError | None) -> DeliveryTimedOut:
    where = f"{batch.topic}-{batch.partition}"
    tries = f"after {batch.attempts} attempts" if batch.attempts else "without an attempt (no leader was reachable)"
    return DeliveryTimedOut(f"{where}: not delivered in time {tries}{f'; last error: {error}' if error else ''}")
