"""Penstock's own consumer at work in a world: without a group, from the start of every partition, over and over."""

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from penstock.client.consumer.consumer import Consumer
from penstock.client.errors import ClientError
from penstock.client.types import ConsumerRecord
from penstock.sim.clients import RACK_METADATA_MAX_AGE_MS, Client
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.history import Assigned, Begin, History, Poll, TopicPartition

if TYPE_CHECKING:
    from penstock.sim.world import World

_AGAIN = 0.03
"""How likely it begins again after a poll."""


class ReadingClient(Client):
    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        partitions: list[TopicPartition],
        *,
        read_committed: bool,
        racks: int,
    ) -> None:
        """`partitions` may grow. Where there are `racks`, it is in one at a time."""
        super().__init__(world, history, name, bootstrap)
        self.partitions = partitions
        self._read_committed = read_committed
        self._racks = racks
        self._rng = SimRng(f"{world.seed}:{name}:rng")
        self._life = 0
        self._begun: set[TopicPartition] = set()

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._live()
            except (ClientError, OSError) as error:
                self.world.note(self.name, f"begins again: {type(error).__name__}")
            await asyncio.sleep(self.random.uniform(0.1, 1.0))

    async def _live(self) -> None:
        self._life += 1
        self._begun.clear()
        consumer = Consumer(
            self._bootstrap,
            auto_offset_reset="earliest",
            isolation_level="read_committed" if self._read_committed else "read_uncommitted",
            rack=f"r{self.random.randrange(self._racks)}" if self._racks else None,
            client_id=self.name,
            request_timeout_ms=10_000,
            metadata_max_age_ms=RACK_METADATA_MAX_AGE_MS,
            clock=SimClock(self.world.loop),
            rng=self._rng,
        )
        async with consumer:
            self.history.add(Assigned(self.name, self.name, self._life))
            while not self.stopping:
                consumer.assign(self.partitions)
                self._record(await consumer.poll(500, max_records=self.random.choice((None, 3, 20))))
                if self.random.random() < _AGAIN and self.shown is None:
                    return
                await asyncio.sleep(self.random.expovariate(1 / self.pause_s))

    def _record(self, read: list[ConsumerRecord]) -> None:
        for partition, records in groupby(read, lambda record: (record.topic, record.partition)):
            values = tuple((record.offset, (record.value or b"").decode()) for record in records)
            where, first, last = f"{partition[0]}-{partition[1]}", values[0][0], values[-1][0]
            if partition not in self._begun:
                self._begun.add(partition)
                self.history.add(Begin(self.name, self.name, partition, first, self._life))
            self.successes[partition] += 1
            self.world.note(self.name, f"read {where}@{first}..{last}")
            self.history.add(Poll(self.name, partition, values, self._life, self._read_committed))
            if self.on_read is not None:
                self.on_read(partition, last)
