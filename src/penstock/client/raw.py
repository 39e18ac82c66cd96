"""`RawClient`: record batches as they are in the log, unopened. For pipelines that decode whole batches at once.

No buffering, no retries of produced batches, no groups: one call, one request.
"""

from types import TracebackType
from typing import NamedTuple, Self, Unpack

from penstock.client.cluster import Cluster
from penstock.client.consumer.partitions import AbortedTransaction
from penstock.client.errors import Closed, broker_error, raise_for
from penstock.client.offsets import READ_COMMITTED, list_offsets
from penstock.client.options import ConnectionArguments, ConnectionOptions
from penstock.client.types import OffsetAndTimestamp, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.model.ports import Buffer
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse

_LAST_VERSION_BY_NAME = 12


class RawBatches(NamedTuple):
    """`data` holds whole batches (`penstock.records` reads them); the first may begin before the asked offset, and
    a last one may be cut off. `aborted` is only known with read_committed."""

    data: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[AbortedTransaction]


class Produced(NamedTuple):
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


class RawClient:
    def __init__(
        self, bootstrap: str | list[str] = "localhost:9092", **connection: Unpack[ConnectionArguments]
    ) -> None:
        self._options = ConnectionOptions(bootstrap).with_arguments(connection)
        self._cluster_or_none: Cluster | None = None

    async def start(self) -> None:
        cluster = Cluster(self._options)
        await cluster.start()
        self._cluster_or_none = cluster

    async def stop(self) -> None:
        if self._cluster_or_none is not None:
            await self._cluster_or_none.stop()
            self._cluster_or_none = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def _cluster(self) -> Cluster:
        if self._cluster_or_none is None:
            raise Closed("the client is not started")
        return self._cluster_or_none

    async def has_topic(self, topic: str) -> bool:
        """Asks once, and does not wait for a topic to appear."""
        metadata = await self._cluster.fetch_metadata([topic])
        found = metadata.topics.get(topic)
        return found is not None and bool(found.partitions)

    async def partitions(self, topic: str) -> list[int]:
        return list((await self._cluster.topic(topic, self._options.request_timeout_ms)).partitions)

    async def list_offsets(
        self, wanted: dict[TopicPartition, int], *, isolation_level: int = 0
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self._cluster, wanted, isolation_level=isolation_level)

    async def fetch_batches(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = 16 * 1024 * 1024,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        isolation_level: int = 0,
    ) -> RawBatches:
        """Batches from the one that holds `offset` on; empty if none come within `max_wait_ms`."""
        leader, topic_id, epoch, max_version = await self._where(topic, partition)
        asked = FetchRequest.FetchPartition(
            partition=partition, current_leader_epoch=epoch, fetch_offset=offset, partition_max_bytes=max_bytes
        )
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            topics=[FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=[asked])],
        )
        timeout_ms = self._options.request_timeout_ms + max_wait_ms
        response = await self._cluster.call(
            leader, request, FetchResponse, lane="data", timeout_ms=timeout_ms, max_version=max_version
        )
        raise_for(response.error_code, what="fetch")
        for answered in response.responses:
            for answer in answered.partitions:
                if answer.error_code:
                    self._cluster.request_refresh()
                    raise broker_error(answer.error_code, what=f"{topic}-{partition} at offset {offset}")
                aborted = answer.aborted_transactions if isolation_level == READ_COMMITTED else None
                return RawBatches(
                    memoryview(answer.records or b""),
                    answer.high_watermark,
                    answer.last_stable_offset,
                    answer.log_start_offset,
                    [AbortedTransaction(txn.producer_id, txn.first_offset) for txn in aborted or ()],
                )
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what=f"{topic}-{partition}")

    async def produce_batch(self, topic: str, partition: int, batch: Buffer, *, acks: int = -1) -> Produced:
        """Appends one finished batch, as `penstock.records.builder` makes it."""
        leader, topic_id, _, max_version = await self._where(topic, partition)
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            acks=acks,
            timeout_ms=self._options.request_timeout_ms,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
        )
        if acks == 0:
            connection = await self._cluster.connection(leader, "data")
            connection.send_unanswered(request, max_version=max_version)
            return Produced(-1, -1, -1)
        response = await self._cluster.call(leader, request, ProduceResponse, lane="data", max_version=max_version)
        for answered in response.responses:
            for answer in answered.partition_responses:
                if answer.error_code:
                    self._cluster.request_refresh()
                    raise broker_error(answer.error_code, answer.error_message, what=f"{topic}-{partition}")
                return Produced(answer.base_offset, answer.log_append_time_ms, answer.log_start_offset)
        raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, what=f"{topic}-{partition}")

    async def _where(self, topic: str, partition: int) -> tuple[int, bytes, int, int | None]:
        """Leader, topic id, leader epoch, and the highest version usable with what is known of the topic."""
        leader = await self._cluster.leader(topic, partition, self._options.request_timeout_ms)
        info = self._cluster.metadata.topics[topic]
        max_version = _LAST_VERSION_BY_NAME if info.topic_id == ZERO_UUID else None
        return leader, info.topic_id, info.partitions[partition].leader_epoch, max_version
