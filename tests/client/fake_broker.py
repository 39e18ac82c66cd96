"""A broker in memory for the producer: idempotence by Kafka's rules, connections that break when told to.

Stands for `Cluster` and `Connection` as far as `Sender` and `Producer` use them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from penstock.client.errors import ClientError, ConnectionFailed
from penstock.client.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from penstock.client.options import ConnectionOptions
from penstock.model.errors import ErrorCode
from penstock.records.batch import crc_is_valid, parse_header
from penstock.records.reader import read_records
from penstock.wire.generated.init_producer_id import InitProducerIdResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse

TOPIC = "t"
TOPIC_ID = b"0123456789abcdef"


class PartitionModel:
    """A log of values, and the last five batches of each producer."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = {}

    def append(self, data: bytearray) -> tuple[int, int]:
        """(error code, base offset)."""
        header = parse_header(data)
        assert crc_is_valid(data, 0, header)
        base = len(self.values)
        if header.producer_id >= 0:
            epoch, window = self.producers.get(header.producer_id, (-1, deque()))
            if header.producer_epoch < epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            if header.producer_epoch > epoch:
                if header.base_sequence != 0 and epoch >= 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                window = deque(maxlen=5)
            for first, last, offset in window:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return ErrorCode.NONE, offset
            if window and header.base_sequence != (window[-1][1] + 1) & 0x7FFFFFFF:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            window.append((header.base_sequence, header.last_sequence, base))
            self.producers[header.producer_id] = (header.producer_epoch, window)
        self.values += [record.value for record in read_records(data)]
        return ErrorCode.NONE, base


class FakeBroker:
    """`decide(topic, partition)` may name an error to answer with instead of appending."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        max_batch_bytes: int = 2**31,
        too_large: ErrorCode = ErrorCode.MESSAGE_TOO_LARGE,
    ) -> None:
        self.partitions = [PartitionModel() for _ in range(partitions)]
        self.max_batch_bytes = max_batch_bytes
        self.too_large = too_large
        self.answers_gaps_with = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.refuse: Callable[[int], int] = lambda partition: 0
        self.requests: list[ProduceRequest] = []
        self.next_producer_id = 100

    def produce(self, request: ProduceRequest) -> ProduceResponse:
        self.requests.append(request)
        responses = []
        for topic in request.topic_data:
            assert (topic.name, topic.topic_id) == (TOPIC, TOPIC_ID)
            for partition in topic.partition_data:
                assert isinstance(partition.records, bytearray)
                code, offset = self.refuse(partition.index), -1
                if not code and len(partition.records) > self.max_batch_bytes:
                    code = self.too_large
                if not code:
                    code, offset = self.partitions[partition.index].append(bytearray(partition.records))
                why = None
                if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    code, why = self.answers_gaps_with, "nothing was written"
                responses.append(
                    ProduceResponse.PartitionProduceResponse(
                        index=partition.index, error_code=code, base_offset=offset, error_message=why
                    )
                )
        answered = ProduceResponse.TopicProduceResponse(topic_id=TOPIC_ID, partition_responses=responses)
        return ProduceResponse(responses=[answered])


class FakeConnection:
    """Requests are handled in order, a few turns of the loop later; `breaks` says when the connection goes."""

    def __init__(self, broker: FakeBroker, rng: Random | None, break_chance: float) -> None:
        self.closed = False
        self.is_writing = False
        self.on_written: Callable[[], None] = lambda: None
        self.waiting: deque[tuple[ProduceRequest, asyncio.Future[Any]]] = deque()
        self.held = False
        self._broker = broker
        self._rng = rng
        self._break_chance = break_chance
        self._loop = asyncio.get_running_loop()

    @property
    def inflight_count(self) -> int:
        return len(self.waiting)

    def send(self, request: Any, response_type: type, timeout_ms: float, *, max_version: int | None = None) -> Any:
        if self.closed:
            raise ConnectionFailed("closed")
        future = self._loop.create_future()
        self.waiting.append((request, future))
        if not self.held:
            self._loop.call_later(self._rng.uniform(0, 0.01) if self._rng else 0, self.answer_next)
        return future

    def send_unanswered(self, request: Any, *, max_version: int | None = None) -> None:
        self._broker.produce(request)

    def tell_written(self, on_written: Callable[[], None]) -> None:
        self.on_written = on_written

    def answer_next(self) -> None:
        if self.closed or not self.waiting:
            return
        luck = self._rng.random() if self._rng else 1.0
        if luck < self._break_chance / 2:
            self.lose()
            return
        request, future = self.waiting.popleft()
        response = self._broker.produce(request)
        if luck < self._break_chance:
            self.waiting.appendleft((request, future))
            self.lose()
        elif not future.done():
            future.set_result(response)

    def lose(self) -> None:
        self.closed = True
        for _, future in self.waiting:
            if not future.done():
                future.set_exception(ConnectionFailed("lost"))
        self.waiting.clear()


class FakeCluster:
    """As much of `Cluster` as a producer needs."""

    def __init__(
        self, broker: FakeBroker, rng: Random | None = None, *, break_chance: float = 0.0, backoff_ms: int = 10
    ) -> None:
        self.options = ConnectionOptions(retry_backoff_ms=backoff_ms)
        self.broker = broker
        self.interest: set[str] = set()
        self.refreshes = 0
        self._rng = rng
        self._break_chance = break_chance
        self._connection: FakeConnection | None = None
        partitions = [PartitionInfo(p, 1, 0, (1,), (1,)) for p in range(len(broker.partitions))]
        self.metadata = ClusterMetadata(
            "c", 1, {1: BrokerInfo(1, "h", 1)}, {TOPIC: TopicInfo(TOPIC, TOPIC_ID, partitions)}
        )

    def connected(self, node_id: int, lane: str) -> FakeConnection | None:
        return self._connection if self._connection is not None and not self._connection.closed else None

    async def connection(self, node_id: int, lane: str = "control") -> FakeConnection:
        await asyncio.sleep(0.001)
        if self.connected(node_id, lane) is None:
            self._connection = FakeConnection(self.broker, self._rng, self._break_chance)
        assert self._connection is not None
        return self._connection

    def move(self) -> None:
        """Another broker leads from now on; what was sent to the one before stays there."""
        self._connection = None

    async def call_any(self, request: Any, response_type: type, **_: Any) -> Any:
        await asyncio.sleep(0.001)
        self.broker.next_producer_id += 1
        return InitProducerIdResponse(producer_id=self.broker.next_producer_id, producer_epoch=0)

    async def topic(self, name: str, timeout_ms: float) -> TopicInfo:
        return self.metadata.topics[name]

    async def refresh(self) -> None:
        await asyncio.sleep(0.001)
        self.request_refresh()

    def request_refresh(self) -> None:
        self.refreshes += 1

    async def start(self) -> None: ...

    async def stop(self) -> None:
        if self._connection is not None:
            self._connection.lose()


class Refusals:
    """Answers with an error by chance, a bounded number of times."""

    def __init__(self, rng: Random, chance: float, codes: list[int]) -> None:
        self._rng = rng
        self._chance = chance
        self._codes = codes

    def __call__(self, partition: int) -> int:
        return self._rng.choice(self._codes) if self._rng.random() < self._chance else 0


__all__ = ["TOPIC", "ClientError", "FakeBroker", "FakeCluster", "FakeConnection", "Refusals"]
