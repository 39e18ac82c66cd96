"""Power is lost at a random disk operation: every answered change of metadata is there, every refused one is not.

Changes that were not answered may have happened or not. Snapshots are taken all the time, so that they and the
deletion of the log in front of them are hit as well.
"""

import asyncio
import random
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from penstock.metadata.snapshot import parse_snapshot_name
from penstock.sim.disk import CrashingDisk, PowerLoss, _Operation
from tests.broker.metadata_nodes import MetadataNode
from tests.controller.cluster import CountingRng

T = TypeVar("T")
SEEDS = 60
_BLOCK = 20


class DeadDisk(CrashingDisk):
    """Once the power is gone nothing happens any more, however long the program takes to notice."""

    def operation(self, kind: str, path: str) -> _Operation:
        if 0 <= self.power_loss_at <= self.operations:
            raise PowerLoss(f"{kind} {path} without power")
        return super().operation(kind, path)


class Story:
    """One cluster over several lives, and what it was promised."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = DeadDisk(seed)
        self.exists: set[str] = set()
        self.absent: set[str] = set()
        self.producer_ids: set[int] = set()
        self.broker_epoch = -1
        self.epoch = 0
        self.made = 0
        self.surprises: list[dict[str, object]] = []
        self.rng = CountingRng()

    def live(self) -> None:
        if self.random.random() < 0.9:
            self.disk.power_loss_at = self.disk.operations + self.random.randint(1, 120)
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._live(loop))
        except PowerLoss:
            pass
        finally:
            loop.close()
        assert not self.surprises
        self.disk.crash()

    async def _live(self, loop: asyncio.AbstractEventLoop) -> None:
        """The power may go in a call of the pool, whose result nobody awaits: then the loop is told."""
        lost: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(lambda _, context: self._notice(lost, context))
        work = asyncio.ensure_future(self._work())
        await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
        while rest := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
        if lost.done() or (not work.cancelled() and isinstance(work.exception(), PowerLoss)):
            raise PowerLoss
        work.result()

    def _notice(self, lost: "asyncio.Future[None]", context: dict[str, object]) -> None:
        if not isinstance(context.get("exception"), PowerLoss):
            self.surprises.append(context)  # raising here would only be logged
        if not lost.done():
            lost.set_result(None)

    async def _work(self) -> None:
        threshold = self.random.choice((300, 1_000, 1 << 20))
        node = MetadataNode(self.disk, rng=self.rng, metadata_log_max_record_bytes_between_snapshots=threshold)
        broker_epoch = await self.answered(node.start())
        assert broker_epoch > self.broker_epoch, "C5"
        assert node.driver.epoch > self.epoch, "R2"
        self.broker_epoch, self.epoch = broker_epoch, node.driver.epoch
        self.check(node)
        for _ in range(self.random.randint(0, 25)):
            await asyncio.gather(*(self.step(node) for _ in range(self.random.randint(1, 3))))
        await node.driver.stop()

    def check(self, node: MetadataNode) -> None:
        topics = set(node.image.topics)
        assert self.exists <= topics, "answered, so it is there"
        assert not self.absent & topics, "answered, so it is gone"
        self.exists |= topics
        names = self.disk.list_dir("/data/__cluster_metadata-0")
        newest = max((found for name in names if (found := parse_snapshot_name(name))), default=None)
        log = node.store.log
        assert log.log_start_offset == (newest.end_offset if newest else 0), "R13"

    async def answered(self, asked: Awaitable[T]) -> T:
        """An answer counts if there was still power to send it: the rest of the program does not notice at once."""
        answer = await asked
        if 0 <= self.disk.power_loss_at <= self.disk.operations:
            raise PowerLoss
        return answer

    async def step(self, node: MetadataNode) -> None:
        what = self.random.random()
        if what < 0.6:
            self.made += 1
            name = f"topic-{self.made}"
            await self.answered(node.create(name, partitions=self.random.randint(1, 3)))
            self.exists.add(name)
        elif what < 0.85 and self.exists:
            name = self.random.choice(sorted(self.exists))
            self.exists.discard(name)  # until it is answered it may be there or not
            await self.answered(node.delete(name))
            self.absent.add(name)
        else:
            producer_id = await self.answered(node.producer_ids.next_producer_id())
            assert isinstance(producer_id, int)
            assert producer_id not in self.producer_ids
            self.producer_ids.add(producer_id)


@pytest.mark.parametrize("first", range(0, SEEDS, _BLOCK))
def test_what_was_answered_survives(first: int) -> None:
    for seed in range(first, first + _BLOCK):
        story = Story(seed)
        for _ in range(6):
            story.live()
