"""An operator who drains brokers, takes it back and evens out load, by the plans that `penstock cluster` carries out.

Unlike there, a plan is begun and not waited for, so that plans and drains meet the moves of others.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.admin.cluster_image import look
from penstock.client.types import TopicPartition
from penstock.controller.balance import plan_balance, plan_drain
from penstock.controller.reassignment import Reassignment
from penstock.metadata.image import DRAINED_BROKERS, MetadataImage
from penstock.sim.history import History
from penstock.sim.operator import AdminClient

if TYPE_CHECKING:
    from penstock.sim.world import World

MOST = 8
"""Partitions that one plan moves."""


async def move(admin: Admin, plan: Callable[[MetadataImage], list[Reassignment]]) -> str:
    """Begins what the plan says; answers what was said to it."""
    moves = {TopicPartition(each.topic, each.partition): each.replicas for each in plan(await look(admin))}
    if not moves:
        return "nothing to move"
    answers = await admin.alter_reassignments(moves)
    return ", ".join(f"{place.topic}-{place.partition} to {moves[place]}: {told}" for place, told in answers.items())


async def drain(admin: Admin, broker: int) -> str:
    """First what keeps new replicas away, as `penstock cluster drain` does."""
    await admin.alter_configs("broker", "", append={DRAINED_BROKERS: str(broker)})
    return await move(admin, lambda image: plan_drain(image, [broker], MOST))


async def balance(admin: Admin) -> str:
    return await move(admin, lambda image: plan_balance(image, MOST))


async def cancel_drain(admin: Admin, broker: int) -> str:
    await admin.alter_configs("broker", "", subtract={DRAINED_BROKERS: str(broker)})
    return "done"


class BalancingClient(AdminClient):
    changes_per_s = 1.0

    def __init__(
        self, world: "World", history: History, name: str, bootstrap: Sequence[str], brokers: Sequence[int]
    ) -> None:
        super().__init__(world, history, name, bootstrap)
        self._brokers = list(brokers)

    async def _change_something(self, admin: Admin) -> None:
        what, broker = (
            self.random.choice(("drain", "cancel", "balance", "balance")),
            self.random.choice(self._brokers),
        )
        self.world.note(self.name, f"{what} {broker}" if what != "balance" else what)
        if what == "drain":
            told = await drain(admin, broker)
        elif what == "cancel":
            told = await cancel_drain(admin, broker)
        else:
            told = await balance(admin)
        self.world.note(self.name, f"{what}: {told}")
