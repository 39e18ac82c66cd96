"""What an operator asks for when all is well has to be done: a move, an election, a voter removed, a voter added, a
broker drained, load evened out.

While things go wrong it may be refused for good reasons, so that an operator who is always refused shows nothing.
Whatever an answer says, only what the cluster has become counts: a request that timed out may have been heard.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.types import TopicPartition
from penstock.controller.balance import plan_balance
from penstock.controller.reassignment import is_reassigning
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import describe_error
from penstock.sim import probe
from penstock.sim.balancing import MOST, balance, cancel_drain, drain
from penstock.sim.checks import Law
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.operator import add_voter, remove_voter
from penstock.sim.world import WorldFailed

if TYPE_CHECKING:
    from penstock.sim.world import World

_AGAIN_S = 0.5
"""Between two attempts."""


class Drill:
    def __init__(self, world: "World", law: Law, topic: str, brokers: Sequence[int], voters: Sequence[int]) -> None:
        """`voters` are the nodes that may vote, as far as an operator changes who does."""
        self._world = world
        self._law = law
        self._topic = topic
        self._brokers = list(brokers)
        self._voters = set(voters)
        self._random = random.Random(f"{world.seed}:drill")

    async def run(self, bootstrap: Sequence[str], limit_s: float) -> None:
        """Everything once, each within `limit_s`."""
        clock, rng = SimClock(self._world.loop), SimRng(f"{self._world.seed}:drill:rng")
        async with Admin(list(bootstrap), client_id="drill", timeout_ms=5_000, clock=clock, rng=rng) as admin:
            await self._move_and_elect(admin, limit_s)
            if self._voters:
                removed = self._random.choice(sorted(self._voters))
                await self._vote(admin, self._voters, limit_s)
                await self._vote(admin, self._voters - {removed}, limit_s)
                await self._vote(admin, self._voters, limit_s)

    async def drain_and_balance(self, bootstrap: Sequence[str], limit_s: float) -> None:
        """A broker gives away all it has, and gets its share again."""
        clock, rng = SimClock(self._world.loop), SimRng(f"{self._world.seed}:drain:rng")
        async with Admin(list(bootstrap), client_id="drain", timeout_ms=5_000, clock=clock, rng=rng) as admin:
            for broker in sorted(self._law.newest.drained_brokers):  # what was drained under faults
                await self._take_back(admin, broker, limit_s)
            await self._until("balance", self._is_balanced, lambda: balance(admin), limit_s)
            broker = self._random.choice(self._brokers)
            await self._until(
                f"drain {broker}",
                lambda: all(broker not in state.replicas for state in self._states()),
                lambda: drain(admin, broker),
                limit_s,
            )
            await self._take_back(admin, broker, limit_s)
            await self._until("balance", self._is_balanced, lambda: balance(admin), limit_s)

    async def _take_back(self, admin: Admin, broker: int, limit_s: float) -> None:
        await self._until(
            f"end the drain of {broker}",
            lambda: broker not in self._law.newest.drained_brokers,
            lambda: cancel_drain(admin, broker),
            limit_s,
        )

    def _is_balanced(self) -> bool:
        moving = any(is_reassigning(state) for state in self._states())
        return not moving and not plan_balance(self._law.newest, MOST)

    def _states(self) -> list[PartitionImage]:
        return [state for _, _, state in probe.committed_partitions(self._law.newest)]

    async def _move_and_elect(self, admin: Admin, limit_s: float) -> None:
        """To another leader, so that there is something to elect."""
        topic = self._law.newest.topic(self._topic)
        assert topic is not None
        place = TopicPartition(self._topic, self._random.randrange(len(topic.partitions)))
        state = self._state(place)
        first = self._random.choice([broker for broker in self._brokers if broker != state.leader])
        others = [broker for broker in self._brokers if broker != first]
        replicas = (first, *self._random.sample(others, len(state.replicas) - 1))

        def is_moved() -> bool:
            now = self._state(place)
            return now.replicas == replicas and not now.adding_replicas and not now.removing_replicas

        async def move() -> str:
            return str((await admin.alter_reassignments({place: replicas}))[place])

        async def elect() -> str:
            return str((await admin.elect_leaders([place]))[place])

        where = f"{place.topic}-{place.partition}"
        await self._until(f"move {where} to {replicas}", is_moved, move, limit_s)
        await self._until(f"let {first} lead {where}", lambda: self._state(place).leader == first, elect, limit_s)

    async def _vote(self, admin: Admin, wanted: set[int], limit_s: float) -> None:
        async def change() -> str:
            quorum = await admin.describe_quorum()
            added = [each for each in quorum.observers if each.node_id in wanted]
            removed = [each for each in quorum.voters if each.node_id not in wanted]
            if added:
                return describe_error(await add_voter(admin, added[0]))
            return describe_error(await remove_voter(admin, removed[0])) if removed else "nothing to change"

        await self._until(f"let {sorted(wanted)} vote", lambda: self._votes_are(wanted), change, limit_s)

    def _votes_are(self, wanted: set[int]) -> bool:
        views = [view[0] for each in self._world.machines.values() if (view := probe.voters_of(each)) is not None]
        return all(set(voters.by_id) == wanted for voters in views)

    def _state(self, place: TopicPartition) -> PartitionImage:
        topic = self._law.newest.topic(place.topic)
        state = topic.partition(place.partition) if topic is not None else None
        assert state is not None
        return state

    async def _until(
        self, what: str, is_done: Callable[[], bool], ask: Callable[[], Awaitable[str]], limit_s: float
    ) -> None:
        loop, told = self._world.loop, "nothing"
        end = loop.time() + limit_s
        while not is_done():
            if loop.time() > end:
                raise WorldFailed(f"liveness: for {limit_s:g} s nobody could {what}; told was: {told}")
            try:
                told = await ask()
            except (ClientError, OSError) as error:
                told = repr(error)
            self._world.note("drill", f"{what}: {told}")
            await asyncio.sleep(_AGAIN_S)
