"""Somebody who deletes records of a topic of its own, fills it again, and moves its replicas about.

Up to any offset, so within batches too; in some worlds retention deletes as well. What lies at or above the log start
has to be there in the end, and a start is nowhere that nobody asked for.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.types import TopicPartition as Place
from penstock.sim.clock import SimClock
from penstock.sim.history import DeleteRecords, History, Outcome, TopicPartition
from penstock.sim.pipeliner import PipeliningClient

if TYPE_CHECKING:
    from penstock.sim.world import World

TOPIC = "d"
PARTITIONS: list[TopicPartition] = [(TOPIC, 0), (TOPIC, 1)]
_SEGMENT_BYTES = "600"


class DeletingClient(PipeliningClient):
    """Its successes are deletions, of which it makes more once it has written something."""

    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        brokers: Sequence[int],
        retention_bytes: int | None,
        on_deleting: Callable[[TopicPartition, int], None],
    ) -> None:
        """`on_deleting` hears of every offset below which records may go from now on."""
        super().__init__(world, history, name, bootstrap, PARTITIONS)
        self._brokers = list(brokers)
        self._retention_bytes = retention_bytes
        self._on_deleting = on_deleting
        self._clock = SimClock(world.loop)
        self._ends = dict.fromkeys(PARTITIONS, 0)
        """Behind what is known to be written."""
        self.deletions: Counter[TopicPartition] = Counter()
        """Those that were acknowledged."""
        self.is_calm = False
        """Whether faults are over, so that what is acknowledged from now on lasts."""

    async def run(self) -> None:
        while not self.stopping and not await self._try(self._make_topic):  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.2)
        writing = asyncio.ensure_future(super().run())
        while not self.stopping and not writing.done():
            await asyncio.sleep(self.random.expovariate(2.0))
            await self._try(self._do_something)
        await writing

    async def _try(self, work: Callable[[Admin], Awaitable[None]]) -> bool:
        try:
            async with Admin(
                self._bootstrap, client_id=self.name, timeout_ms=5_000, clock=self._clock, rng=self._rng
            ) as admin:
                await work(admin)
        except (ClientError, OSError) as error:
            self.world.note(self.name, f"failed: {type(error).__name__}")
            return False
        return True

    async def _make_topic(self, admin: Admin) -> None:
        configs = {"segment.bytes": _SEGMENT_BYTES}
        if self._retention_bytes is not None:
            configs["retention.bytes"] = str(self._retention_bytes)
        if TOPIC not in {listing.name for listing in await admin.list_topics()}:  # an attempt may have been heard
            await admin.create_topic(TOPIC, len(PARTITIONS), configs=configs)

    async def _do_something(self, admin: Admin) -> None:
        partition = self.random.choice(PARTITIONS)
        if self.random.random() < 0.2:
            replicas = self.random.sample(self._brokers, min(3, len(self._brokers)))
            self.world.note(self.name, f"moves {TOPIC}-{partition[1]} to {replicas}")
            await admin.alter_reassignments({Place(*partition): replicas})
        else:
            await self._delete(admin, partition)

    async def _delete(self, admin: Admin, partition: TopicPartition) -> None:
        """Of what it has written: −1, all that is committed, is for those who know that nobody else writes."""
        offset = self.random.randint(0, self._ends[partition])
        self.world.note(self.name, f"deletes {TOPIC}-{partition[1]} up to {offset}")
        self._on_deleting(partition, offset)
        outcome, lasts = Outcome.UNKNOWN, self.is_calm
        try:
            told = (await admin.delete_records({Place(*partition): offset}))[Place(*partition)]
            if not isinstance(told, ClientError):
                outcome = Outcome.OK
                self.deletions[partition] += 1
            self.world.note(self.name, f"deleting {TOPIC}-{partition[1]} up to {offset}: {told!r}")
        finally:
            self.history.add(DeleteRecords(self.name, partition, offset, outcome, lasts))

    def _acknowledged(self, partition: TopicPartition, offset: int) -> None:
        super()._acknowledged(partition, offset)
        self._ends[partition] = max(self._ends[partition], offset + 1)
