"""An operator at work in a world: moves partitions between brokers, calls it off, gives leaderships back.

With Penstock's own client, which has words for it. Nothing it does may cost a record, whatever else goes on.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.types import TopicPartition
from penstock.sim.clients import Client
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.history import History

if TYPE_CHECKING:
    from penstock.sim.world import World


class OperatingClient(Client):
    def __init__(
        self, world: "World", history: History, name: str, bootstrap: Sequence[str], topic: str, partitions: int
    ) -> None:
        super().__init__(world, history, name, bootstrap)
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._brokers = list(range(1, len(bootstrap) + 1))
        self._rng = SimRng(f"{world.seed}:{name}:rng")

    async def run(self) -> None:
        while not self.stopping:
            try:
                clock = SimClock(self.world.loop)
                async with Admin(
                    self._bootstrap, client_id=self.name, timeout_ms=5_000, clock=clock, rng=self._rng
                ) as admin:
                    await self._change_something(admin)
            except (ClientError, OSError) as error:
                self.world.note(self.name, f"failed: {type(error).__name__}")
            await asyncio.sleep(self.random.expovariate(0.5))

    async def _change_something(self, admin: Admin) -> None:
        partition = self.random.choice(self._partitions)
        what = self.random.choice(("move", "move", "cancel", "elect"))
        if what == "move":
            replicas = self.random.sample(self._brokers, min(3, len(self._brokers)))
            self.world.note(self.name, f"moves {partition.topic}-{partition.partition} to {replicas}")
            await admin.alter_reassignments({partition: replicas})
        elif what == "cancel":
            await admin.alter_reassignments({partition: None})
        else:
            await admin.elect_leaders([partition])
