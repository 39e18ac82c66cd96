"""Penstock's own producer at work in a world, with several batches of a partition in flight.

aiokafka has one at a time; others (Java's, librdkafka) have five, and a broker has to put them in order, know them
again when they are sent to the next leader, and sync what came while it was syncing.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.errors import ClientError
from penstock.client.producer.producer import Producer
from penstock.client.types import RecordMetadata
from penstock.sim.clients import Client
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.history import History, Outcome, Send, TopicPartition

if TYPE_CHECKING:
    from penstock.sim.world import World

_STOP_MS = 60_000
_UNANSWERED = 60
"""More than these are not sent before some are answered."""

_Waiting = deque[tuple[TopicPartition, str, "asyncio.Future[RecordMetadata]"]]


class PipeliningClient(Client):
    def __init__(
        self, world: "World", history: History, name: str, bootstrap: Sequence[str], partitions: list[TopicPartition]
    ) -> None:
        super().__init__(world, history, name, bootstrap)
        self.partitions = partitions
        self._rng = SimRng(f"{world.seed}:{name}:rng")
        self._sent = 0

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._live()
            except (ClientError, OSError) as error:
                self.world.note(self.name, f"begins again: {type(error).__name__}")
            await asyncio.sleep(self.random.uniform(0.1, 1.0))

    async def _live(self) -> None:
        producer = Producer(
            self._bootstrap,
            client_id=self.name,
            linger_ms=0,
            request_timeout_ms=10_000,
            delivery_timeout_ms=40_000,
            clock=SimClock(self.world.loop),
            rng=self._rng,
        )
        waiting: _Waiting = deque()
        try:
            await producer.start()
            while not self.stopping:
                await self._send_some(producer, waiting)
                self._record(waiting)
                await asyncio.sleep(self.random.expovariate(4 / self.pause_s))
        finally:
            await producer.stop(_STOP_MS)
            self._record(waiting)

    async def _send_some(self, producer: Producer, waiting: _Waiting) -> None:
        partition = self.choose(self.partitions)
        for _ in range(self.random.choice((1, 3, 6))):
            if len(waiting) >= _UNANSWERED:
                return
            self._sent += 1
            value, timestamp_ms = f"{self.name}:{self._sent}", int(self.world.now() * 1000)
            try:
                answer = await producer.send(partition[0], value, partition=partition[1], timestamp_ms=timestamp_ms)
            except ClientError:  # it was not even put into a batch
                self.history.add(Send(self.name, partition, value, Outcome.FAILED))
                raise
            waiting.append((partition, value, answer))
            await asyncio.sleep(self.random.choice((0.0, 0.0, 0.002)))  # into a batch of its own, or not

    def _record(self, waiting: _Waiting) -> None:
        """In the order in which they were sent: that is the order they have to be found in."""
        while waiting and waiting[0][2].done():
            partition, value, answer = waiting.popleft()
            where = f"{partition[0]}-{partition[1]}"
            error = answer.exception()
            if error is not None:
                self.world.note(self.name, f"{value} to {where}: {type(error).__name__}")
                self.history.add(Send(self.name, partition, value, Outcome.UNKNOWN))
                continue
            told = answer.result()
            self.successes[partition] += 1
            self.world.note(self.name, f"{value} is at {where}@{told.offset}")
            self.history.add(Send(self.name, partition, value, Outcome.OK, told.offset))
            self._acknowledged(partition, told.offset)

    def _acknowledged(self, partition: TopicPartition, offset: int) -> None:
        if self.on_acknowledged is not None:
            self.on_acknowledged(partition, offset)
