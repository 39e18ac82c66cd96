"""Fetches ahead of the application: one request per broker under way, answers buffered per partition.

Hard rules:
- A partition whose buffer is full is left out of the request, and then the request does not park for long, so that
  a drained partition never waits for an idle one.
- Nothing is fetched while `buffer_bytes` are buffered in all.
- An answer counts only for partitions that are still assigned and have not been moved since (`version`).
"""

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from penstock.client.cluster import Cluster
from penstock.client.consumer.partitions import AbortedTransaction, PartitionState, oversized_batch_bytes
from penstock.client.errors import ClientError, CorruptRecords, broker_error
from penstock.client.metadata import NO_LEADER
from penstock.client.offsets import READ_COMMITTED
from penstock.client.types import ConsumerRecord, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.records.batch import CorruptBatch
from penstock.wire.generated.fetch import FetchRequest, FetchResponse

log = logging.getLogger("penstock.client")

_LAST_VERSION_BY_NAME = 12
_HURRIED_WAIT_MS = 20
_STALE_METADATA = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class FetchOptions:
    isolation_level: int = 0
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 16 * 1024 * 1024
    partition_bytes: int = 1024 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    check_crcs: bool = True
    rack: str = ""


class Fetcher:
    """`states` are the partitions being read, in the order in which they take their turns."""

    def __init__(self, cluster: Cluster, options: FetchOptions) -> None:
        self.states: dict[TopicPartition, PartitionState] = {}
        self.out_of_range: set[TopicPartition] = set()
        self._cluster = cluster
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._retry_at: dict[int, float] = {}
        self._error: ClientError | None = None
        self._changed = asyncio.Event()
        self._partition_bytes: dict[TopicPartition, int] = {}
        self._current: PartitionState | None = None
        self._leader_timer: asyncio.TimerHandle | None = None
        self._stopped = False

    # -- assignment ---------------------------------------------------------------------------------------

    def add(self, tp: TopicPartition) -> PartitionState:
        state = self.states.get(tp)
        if state is None:
            state = self.states[tp] = PartitionState(tp, check_crc=self._options.check_crcs)
        return state

    def remove(self, tp: TopicPartition) -> None:
        state = self.states.pop(tp, None)
        if state is not None:
            state.drop_buffer()
        if self._current is state:
            self._current = None
        self.out_of_range.discard(tp)
        self._partition_bytes.pop(tp, None)

    # -- records out --------------------------------------------------------------------------------------

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """Buffered records, from as few partitions as needed; partitions take turns."""
        self._raise_error()
        records: list[ConsumerRecord] = []
        for tp, state in list(self.states.items()):
            if state.paused or not state.has_buffered:
                continue
            while len(records) < max_records and (more := state.take(max_records - len(records))):
                if records:
                    records += more
                else:
                    records = more
            if not state.has_buffered:
                del self.states[tp]
                self.states[tp] = state  # its turn is over
            if len(records) >= max_records:
                break
        return records

    def next_record(self) -> ConsumerRecord | None:
        """One buffered record, from the same partition as the last one while it has any."""
        self._raise_error()
        state = self._current
        if state is not None and not state.paused and (record := state.next_record()) is not None:
            return record
        for state in self.states.values():
            if not state.paused and (record := state.next_record()) is not None:
                self._current = state
                return record
        return None

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    async def wait(self, timeout_s: float) -> None:
        """Until something changed: data, an error, or `notify`."""
        if timeout_s > 0:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._changed.clear()

    def notify(self) -> None:
        self._changed.set()

    # -- requests out -------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Starts a request to every broker from which partitions with room in their buffer are read."""
        buffered = sum(state.buffered_bytes for state in self.states.values())
        if self._stopped or buffered >= self._options.buffer_bytes:
            return
        now = self._loop.time()
        for node_id, states in self._fetchable().items():
            if node_id not in self._tasks and self._retry_at.get(node_id, 0.0) <= now + 0.001:
                hungry = [state for state in states if state.buffered_bytes < self._options.partition_bytes]
                if hungry:
                    hurried = len(hungry) < len(states)
                    self._tasks[node_id] = self._loop.create_task(self._fetch_from(node_id, hungry, hurried))

    def _fetchable(self) -> dict[int, list[PartitionState]]:
        by_broker: dict[int, list[PartitionState]] = defaultdict(list)
        for tp, state in self.states.items():
            if state.position is None or state.paused or tp in self.out_of_range:
                continue
            broker = self._broker_of(state)
            if broker == NO_LEADER:
                self._look_for_leader(tp.topic)
            else:
                by_broker[broker].append(state)
        return by_broker

    def _broker_of(self, state: PartitionState) -> int:
        """The replica that the leader has named, for a while, as long as it is there; else the leader."""
        metadata = self._cluster.metadata
        if state.read_from is not None:
            if state.read_from in metadata.brokers and self._loop.time() < state.read_from_until:
                return state.read_from
            state.read_from = None
        return metadata.leader_of(*state.topic_partition)

    def _look_for_leader(self, topic: str) -> None:
        self._cluster.interest.add(topic)
        self._cluster.request_refresh()
        if self._leader_timer is None:
            delay_s = self._cluster.options.retry_backoff_ms / 1000
            self._leader_timer = self._loop.call_later(delay_s, self._looked_for_leader)

    def _looked_for_leader(self) -> None:
        self._leader_timer = None
        self._resume()

    async def _fetch_from(self, node_id: int, states: list[PartitionState], hurried: bool) -> None:
        asked = [(state, state.version) for state in states]
        request, max_version = self._request(states, hurried)
        timeout_ms = self._cluster.options.request_timeout_ms + self._options.max_wait_ms
        try:
            response = await self._cluster.call(
                node_id, request, FetchResponse, lane="data", timeout_ms=timeout_ms, max_version=max_version
            )
            by_partition = {state.topic_partition: (state, version) for state, version in asked}
            if not self._take_in(node_id, response, by_partition):
                self._pause(node_id, self._cluster.options.retry_backoff_ms)
            elif response.throttle_time_ms:
                self._pause(node_id, response.throttle_time_ms)
        except ClientError as error:
            for state in states:
                state.read_from = None
            self._failed(node_id, error)
        finally:
            self._tasks.pop(node_id, None)
            self.notify()
        self.fetch()

    def _failed(self, node_id: int, error: ClientError) -> None:
        if not error.retriable:
            self._error = error
        log.debug("fetch from broker %d failed: %s", node_id, error)
        self._pause(node_id, self._cluster.options.retry_backoff_ms * 2)
        self._cluster.request_refresh()

    def _pause(self, node_id: int, pause_ms: float) -> None:
        """Leaves a broker alone for a while; then fetching goes on by itself."""
        self._retry_at[node_id] = self._loop.time() + pause_ms / 1000
        self._loop.call_later(pause_ms / 1000, self._resume)

    def _resume(self) -> None:
        self.fetch()
        self.notify()

    def _request(self, states: list[PartitionState], hurried: bool) -> tuple[FetchRequest, int | None]:
        options = self._options
        topics: dict[str, list[FetchRequest.FetchPartition]] = defaultdict(list)
        for state in states:
            topic, partition = tp = state.topic_partition
            info = self._cluster.metadata.partition(topic, partition)
            topics[topic].append(
                FetchRequest.FetchPartition(
                    partition=partition,
                    current_leader_epoch=info.leader_epoch if info is not None else -1,
                    fetch_offset=state.fetch_offset,
                    partition_max_bytes=self._partition_bytes.get(tp, options.partition_bytes),
                )
            )
        max_version: int | None = None
        asked = []
        for name, partitions in topics.items():
            topic_info = self._cluster.metadata.topics.get(name)
            topic_id = topic_info.topic_id if topic_info is not None else ZERO_UUID
            if topic_id == ZERO_UUID:
                max_version = _LAST_VERSION_BY_NAME
            asked.append(FetchRequest.FetchTopic(topic=name, topic_id=topic_id, partitions=partitions))
        request = FetchRequest(
            max_wait_ms=min(options.max_wait_ms, _HURRIED_WAIT_MS) if hurried else options.max_wait_ms,
            min_bytes=options.min_bytes,
            max_bytes=options.max_bytes,
            isolation_level=options.isolation_level,
            topics=asked,
            rack_id=options.rack,
        )
        return request, max_version

    # -- answers in ---------------------------------------------------------------------------------------

    def _take_in(
        self, node_id: int, response: FetchResponse, asked: dict[TopicPartition, tuple[PartitionState, int]]
    ) -> bool:
        """Buffers what came; False if a partition had an error, so that the broker is not asked again at once."""
        good = True
        if response.error_code:
            raise broker_error(response.error_code, what="fetch")
        for topic in response.responses:
            name = self._cluster.metadata.topic_name(topic.topic_id, topic.topic)
            for partition in topic.partitions:
                tp = TopicPartition(name, partition.partition_index)
                state, version = asked.get(tp, (None, -1))
                if state is not None and self.states.get(tp) is state and state.version == version:
                    self._take_in_partition(node_id, state, partition)
                    good = self._follow_leader(state, partition) and good
                good = good and partition.error_code == ErrorCode.NONE
        return good

    def _follow_leader(self, state: PartitionState, answer: Any) -> bool:
        """Reads where the leader says; False if nobody knows where that is."""
        replica = answer.preferred_read_replica
        if replica < 0:
            return True
        state.read_from = replica
        state.read_from_until = self._loop.time() + self._cluster.options.metadata_max_age_ms / 1000
        if replica in self._cluster.metadata.brokers:
            return True
        self._cluster.request_refresh()
        return False

    def _take_in_partition(self, node_id: int, state: PartitionState, answer: Any) -> None:
        tp = state.topic_partition
        code = answer.error_code
        if code != ErrorCode.NONE:
            state.read_from = None
        if code == ErrorCode.NONE:
            state.high_watermark = answer.high_watermark
            state.log_start_offset = answer.log_start_offset
            if answer.records:
                self._buffer(state, memoryview(answer.records), answer.aborted_transactions)
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            # What is buffered is still good; the position is looked at when it is used up. What a follower has tells
            # nothing of what the leader has: that is asked next.
            if not state.has_buffered and node_id == self._cluster.metadata.leader_of(*tp):
                self.out_of_range.add(tp)
        elif code in _STALE_METADATA:
            self._cluster.request_refresh()
        else:
            self._error = broker_error(code, what=str(tp))

    def _buffer(self, state: PartitionState, data: memoryview, aborted: Any) -> None:
        transactions = None
        if self._options.isolation_level == READ_COMMITTED:
            transactions = [AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted or ()]
        try:
            if state.add(data, transactions) == 0 and (size := oversized_batch_bytes(data)):
                self._partition_bytes[state.topic_partition] = size
        except CorruptBatch as error:
            self._error = CorruptRecords(f"{state.topic_partition}: {error}")

    async def stop(self) -> None:
        self._stopped = True
        if self._leader_timer is not None:
            self._leader_timer.cancel()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
