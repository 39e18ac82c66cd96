"""An operator at work in a world: moves partitions between brokers, calls it off, gives leaderships back, and changes
who votes about metadata.

With Penstock's own client, which has words for it. Nothing it does may cost a record, whatever else goes on.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.admin.descriptions import QuorumReplica
from penstock.client.errors import ClientError
from penstock.client.types import TopicPartition
from penstock.model.errors import describe_error
from penstock.model.ids import parse_uuid
from penstock.sim.clients import Client
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.history import History
from penstock.wire.generated.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from penstock.wire.generated.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse

if TYPE_CHECKING:
    from penstock.sim.world import World


class AdminClient(Client):
    """Asks for one change after the other, whether they are refused or not; each with a client of its own."""

    changes_per_s: float

    def __init__(self, world: "World", history: History, name: str, bootstrap: Sequence[str]) -> None:
        super().__init__(world, history, name, bootstrap)
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
            await asyncio.sleep(self.random.expovariate(self.changes_per_s))

    async def _change_something(self, admin: Admin) -> None:
        raise NotImplementedError


class OperatingClient(AdminClient):
    changes_per_s = 0.5

    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        topic: str,
        partitions: int,
        brokers: Sequence[int],
        voters: Sequence[int] = (),
    ) -> None:
        """`voters` are the nodes that may vote, as far as this operator changes who does."""
        super().__init__(world, history, name, bootstrap)
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._brokers = list(brokers)
        self._voters = list(voters)

    async def _change_something(self, admin: Admin) -> None:
        partition = self.random.choice(self._partitions)
        changes = ("move", "move", "cancel", "elect")
        what = self.random.choice(changes + (("add voter", "remove voter") if self._voters else ()))
        if what == "move":
            replicas = self.random.sample(self._brokers, min(3, len(self._brokers)))
            self.world.note(self.name, f"moves {partition.topic}-{partition.partition} to {replicas}")
            await admin.alter_reassignments({partition: replicas})
        elif what == "cancel":
            await admin.alter_reassignments({partition: None})
        elif what == "elect":
            await admin.elect_leaders([partition])
        elif what == "add voter":
            await self._add_voter(admin)
        else:
            await self._remove_voter(admin)

    async def _remove_voter(self, admin: Admin) -> None:
        """Down to two, not further: with the last one gone nobody could add another."""
        voters = (await admin.describe_quorum()).voters
        if len(voters) > 2:
            voter = self.random.choice(voters)
            self.world.note(self.name, f"removes voter {voter.node_id}")
            error = await remove_voter(admin, voter)
            self.world.note(self.name, f"removing voter {voter.node_id}: {describe_error(error)}")

    async def _add_voter(self, admin: Admin) -> None:
        observers = [each for each in (await admin.describe_quorum()).observers if each.node_id in self._voters]
        if observers:
            voter = self.random.choice(observers)
            self.world.note(self.name, f"adds voter {voter.node_id}")
            error = await add_voter(admin, voter)
            self.world.note(self.name, f"adding voter {voter.node_id}: {describe_error(error)}")


async def remove_voter(admin: Admin, voter: QuorumReplica) -> int:
    """What the controller says to it: refusals are answers here."""
    request = RemoveRaftVoterRequest(None, voter.node_id, parse_uuid(voter.directory_id))
    return (await admin._cluster.call_controller(request, RemoveRaftVoterResponse)).error_code


async def add_voter(admin: Admin, voter: QuorumReplica) -> int:
    listeners = [AddRaftVoterRequest.Listener("CONTROLLER", f"n{voter.node_id}", 9093)]
    request = AddRaftVoterRequest(None, 5_000, voter.node_id, parse_uuid(voter.directory_id), listeners)
    return (await admin._cluster.call_controller(request, AddRaftVoterResponse)).error_code
