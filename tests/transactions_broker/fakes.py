"""Coordinators over partitions in memory, whose commits and faults the test decides."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.broker.transaction_driver import TransactionService
from penstock.broker.transaction_markers import Done
from penstock.broker.transaction_producer_ids import SpareProducerIds
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import TRANSACTION_VERSION
from penstock.metadata.image import TRANSACTION_TOPIC, MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.records.batch import parse_header
from penstock.records.markers import EndMarker, build_end_marker
from penstock.wire.generated.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tests.groups.fakes import NODE_ID, FakePartition, GroupWorld, JumpingClock, image_with

TOPIC_ID = b"x" * 16
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


async def passed_over(times: int = 5) -> None:
    """Lets everything run that can run."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


class MarkedPartition(FakePartition):
    """One that takes markers and knows the epochs of its producers."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, int] = {}

    def append_records(self, batches: bytearray) -> int | Refusal:
        header = parse_header(batches)
        if header.producer_id >= 0 and self.refusal is None:
            self.epochs[header.producer_id] = header.producer_epoch
        return super().append_records(batches)

    def producer_epoch(self, producer_id: int) -> int:
        return self.epochs.get(producer_id, -1)

    def write_marker(self, marker: EndMarker) -> int | Refusal:
        producer_id, producer_epoch, coordinator_epoch, commit, _ = marker
        if self.producer_epoch(producer_id) > producer_epoch:
            return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, "an older epoch")
        return self.append_records(build_end_marker(producer_id, producer_epoch, coordinator_epoch, commit, 1))


class TransactionalGroups(GroupWorld):
    """Groups over partitions that take transactions."""

    def __init__(self, partitions: int = 1, **settings: Any) -> None:
        super().__init__(partitions, **settings)
        self.service.stop()
        self.partitions = {index: MarkedPartition() for index in range(partitions)}
        self.restart()


class FakeMarkers:
    """Where markers go: written at once, or when the test says so."""

    def __init__(self) -> None:
        self.hold = False
        self.errors: list[ErrorCode] = []  # to answer next, one after the other
        self.written: list[tuple[TopicPartition, EndMarker]] = []
        self.held: list[tuple[TopicPartition, EndMarker, Done]] = []

    def write(self, marker: EndMarker, where: TopicPartition, done: Done) -> None:
        if self.hold:
            self.held.append((where, marker, done))
        elif self.errors:
            done(self.errors.pop(0))
        else:
            self.written.append((where, marker))
            done(ErrorCode.NONE)

    def release(self) -> None:
        held, self.held = self.held, []
        for where, marker, done in held:
            self.written.append((where, marker))
            done(ErrorCode.NONE)


def state_topic(count: int = 1, leader: int = NODE_ID, leader_epoch: int = 0) -> TopicImage:
    state = PartitionImage((NODE_ID,), (NODE_ID,), leader, leader_epoch)
    return TopicImage(TRANSACTION_TOPIC, TOPIC_ID, (state,) * count)


class TransactionWorld:
    """Make it inside a running loop."""

    def __init__(self, version: int = 2, **settings: Any) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(given)
        self.clock = JumpingClock()
        self.partition = FakePartition()
        self.markers = FakeMarkers()
        self.version = version
        self.next_id = 1000
        self.ids_refused = False
        self.may_give_ids = asyncio.Event()
        self.may_give_ids.set()
        self.service = self._new_service()
        self.lead(state_topic())

    def _new_service(self) -> TransactionService:
        ids = SpareProducerIds(self._next_producer_id)
        return TransactionService(lambda: self.settings, NODE_ID, self.clock, None, self._open, self.markers, ids)

    async def _open(self, topic_id: bytes, index: int) -> FakePartition | Refusal:
        assert topic_id == TOPIC_ID
        topic = self.image.topic(TRANSACTION_TOPIC)
        assert topic is not None
        self.partition.leader_epoch = topic.partitions[index].leader_epoch
        return self.partition

    async def _next_producer_id(self) -> int | Refusal:
        await self.may_give_ids.wait()
        if self.ids_refused:
            return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "full")
        self.next_id += 1
        return self.next_id

    def lead(self, topic: TopicImage | None) -> None:
        image = image_with(*([topic] if topic is not None else []))
        self.image: MetadataImage = image._replace(features={TRANSACTION_VERSION: self.version})
        self.service.on_metadata(MetadataDelta(self.image), self.image)

    def restart(self) -> None:
        """A new service over the same log."""
        self.service.stop()
        self.service = self._new_service()
        self.service.on_metadata(MetadataDelta(self.image), self.image)

    # -- what clients ask -------------------------------------------------------------------------------------------

    async def init(self, transactional_id: str = "x", timeout_ms: int = 60_000) -> tuple[int, int]:
        answer = await self.service.init_producer_id(InitProducerIdRequest(transactional_id, timeout_ms), 5)
        assert isinstance(answer, InitProducerIdResponse), answer
        return answer.producer_id, answer.producer_epoch

    async def add(self, producer: tuple[int, int], *partitions: TopicPartition, name: str = "x") -> ErrorCode:
        return await self.service.add_partitions(name, *producer, partitions or (T0,))

    async def end(
        self, producer: tuple[int, int], commit: bool = True, name: str = "x"
    ) -> tuple[int, int] | ErrorCode:
        answer = await self.service.end_transaction(EndTxnRequest(name, *producer, commit), 5, 0)
        if isinstance(answer, EndTxnResponse):
            return answer.producer_id, answer.producer_epoch
        return answer

    async def state(self, name: str = "x") -> str:
        return (await self.service.describe_transaction(name)).transaction_state
