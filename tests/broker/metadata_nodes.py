"""A controller over a disk of the test's choice, without a broker around it; pool work is done on the spot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from typing import Any

from penstock.broker.controller_service import ControllerService
from penstock.broker.metadata_driver import MetadataDriver
from penstock.broker.metadata_store import MetadataStore
from penstock.broker.transaction_producer_ids import ProducerIdBlocks
from penstock.controller.brokers import Registration
from penstock.controller.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from penstock.controller.topics import CreatedTopic, NewTopic, decide_create_topics, decide_delete_topics
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import Refusal
from penstock.model.ports import Disk, Rng, SystemClock, SystemRng

DIRECTORY_ID = b"d" * 16


class InlineExecutor(Executor):
    """Runs everything at once in the caller: tests stay deterministic."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class MetadataNode:
    def __init__(self, disk: Disk, *, rng: Rng | None = None, **settings: object) -> None:
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(names)
        clock = SystemClock()
        self.failures: list[OSError] = []
        self.published: list[tuple[MetadataDelta, MetadataImage]] = []
        self.store = MetadataStore(disk, clock, "/data", self.settings)
        self.driver = MetadataDriver(self.store, self.settings, DIRECTORY_ID, InlineExecutor(), self.failures.append)
        self.driver.add_listener(lambda delta, image: self.published.append((delta, image)))
        self.controller = ControllerService(self.driver, clock)
        self.producer_ids = ProducerIdBlocks(self._allocate)
        self.rng = rng or SystemRng()

    async def _allocate(self) -> ProducerIdBlock | Refusal:
        return await self.controller.submit(lambda view: decide_allocate_producer_ids(view.image, 1))

    @property
    def image(self) -> MetadataImage:
        return self.driver.image

    async def start(self, *, clean: bool = False) -> int:
        await self.driver.start()
        incarnation_id = self.driver.end_offset.to_bytes(16, "big")  # another one with every start
        epoch = await self.controller.register(
            Registration(1, incarnation_id, (Listener("PLAINTEXT", "h", 9092),), None, (DIRECTORY_ID,), clean)
        )
        assert isinstance(epoch, int), epoch
        return epoch

    async def create(self, *names: str, partitions: int = 1) -> list[CreatedTopic | Refusal]:
        topics = [NewTopic(name, partitions, 1) for name in names]
        return await self.controller.submit(
            lambda view: decide_create_topics(view.image, topics, self.settings, self.rng)
        )

    async def delete(self, *names: str) -> list[TopicImage | Refusal]:
        return await self.controller.submit(lambda view: decide_delete_topics(view.image, names, self.settings))


@asynccontextmanager
async def running(disk: Disk, **settings: object) -> AsyncIterator[MetadataNode]:
    node = MetadataNode(disk, **settings)
    await node.start()
    try:
        yield node
    finally:
        await node.driver.stop()


def live(main: Callable[[], Any]) -> Any:
    return asyncio.run(main())
