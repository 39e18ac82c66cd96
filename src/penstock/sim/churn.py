"""Somebody who makes, fills, grows, changes and deletes topics in a world, also again under the same names.

What was acknowledged in a topic has to be there in the end, unless somebody has tried to delete it since.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.admin import Admin
from penstock.client.errors import ClientError
from penstock.client.producer.producer import Producer
from penstock.sim.clients import Client
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.history import History, Outcome, Send, TopicPartition

if TYPE_CHECKING:
    from penstock.sim.world import World

_NAMES = ("u0", "u1")
_MOST_PARTITIONS = 5
_SETTINGS = (
    ("segment.bytes", ("600", "2000", "1000000")),
    ("max.message.bytes", ("100000", "1000000")),
    ("retention.ms", ("-1", "86400000")),
    ("flush.ms", ("1", "1000")),
)

_AT_ONCE_S = 0.05
"""What is answered sooner was not asked twice."""


class ChurningClient(Client):
    def __init__(
        self,
        world: "World",
        history: History,
        name: str,
        bootstrap: Sequence[str],
        topic: str,
        partitions: list[TopicPartition],
        *,
        changes_min_isr: bool,
    ) -> None:
        """`partitions` is what everybody writes to, all of `topic`: it grows with the topic. `changes_min_isr` of its
        own topics, where one replica in sync is enough to keep what it holds."""
        super().__init__(world, history, name, bootstrap)
        self._topic = topic
        self._partitions = partitions
        self._settings = _SETTINGS + ((("min.insync.replicas", ("1", "2")),) if changes_min_isr else ())
        self._rng = SimRng(f"{world.seed}:{name}:rng")
        self._clock = SimClock(world.loop)
        self._live: dict[str, int] = {}
        """Topics of its own that are there for sure, and how many partitions they have at least."""
        self._unsure: set[str] = set()
        """Whether they are there nobody can tell: they are deleted before anything else is done with them."""
        self._spent: set[str] = set()
        """Names that are not used again: a delete of them was repeated, and the first one, which names no id, may
        still be on its way through a broker that is cut off from the controller."""
        self._sends: dict[str, list[Send]] = {}
        self._sent = 0

    async def run(self) -> None:
        while not self.stopping:
            try:
                async with Admin(
                    self._bootstrap, client_id=self.name, timeout_ms=5_000, clock=self._clock, rng=self._rng
                ) as admin:
                    await self._do_something(admin)
            except (ClientError, OSError) as error:
                self.world.note(self.name, f"failed: {type(error).__name__}")
            await asyncio.sleep(self.random.expovariate(4.0))

    def settle(self) -> list[TopicPartition]:
        """When all is over: what was sent to topics that are still there goes into the history; answers where."""
        for name in self._live:
            for send in self._sends.get(name, ()):
                self.history.add(send)
        return [(name, index) for name, count in self._live.items() for index in range(count)]

    async def _do_something(self, admin: Admin) -> None:
        name = self.random.choice(_NAMES)
        what = self.random.choice(("write", "write", "delete", "delete", "grow", "grow all", "change", "change all"))
        if name in self._unsure or (name in self._live and what == "delete"):
            await self._delete(admin, name)
        elif what == "grow all":
            await self._grow_all(admin)
        elif what == "change all":
            await self._change(admin, self._topic, _SETTINGS)
        elif name not in self._live:
            if name not in self._spent:
                await self._create(admin, name)
        elif what == "grow":
            await self._grow(admin, name)
        elif what == "change":
            await self._change(admin, name, self._settings)
        else:
            await self._write(name)

    # -- topics -----------------------------------------------------------------------------------------------------

    async def _create(self, admin: Admin, name: str) -> None:
        count = self.random.randrange(1, 4)
        self.world.note(self.name, f"makes {name} with {count} partitions")
        self._unsure.add(name)
        await admin.create_topic(name, count)
        self._unsure.discard(name)
        self._live[name], self._sends[name] = count, []
        self.world.note(self.name, f"made {name}")

    async def _delete(self, admin: Admin, name: str) -> None:
        self.world.note(self.name, f"deletes {name}")
        self._live.pop(name, None)
        self._unsure.add(name)
        begun = self.world.loop.time()
        try:
            outcome = (await admin.delete_topics([name]))[name]
        finally:
            if self.world.loop.time() - begun > _AT_ONCE_S:
                self._spent.add(name)
        if outcome is None or "does not exist" in str(outcome):
            self._unsure.discard(name)
        self.world.note(self.name, f"deleting {name}: {outcome!r}")

    async def _grow(self, admin: Admin, name: str) -> None:
        """If nobody knows whether it grew it is as large as it was, as far as anything is written there."""
        count = self._live[name] + 1
        if count <= _MOST_PARTITIONS:
            self.world.note(self.name, f"grows {name} to {count} partitions")
            await admin.create_partitions(name, count)
            self._live[name] = count

    async def _grow_all(self, admin: Admin) -> None:
        found = await admin.describe_topic(self._topic)
        count = len(found.partitions) + 1
        if count <= _MOST_PARTITIONS:
            self.world.note(self.name, f"grows {self._topic} to {count} partitions")
            await admin.create_partitions(self._topic, count)
            known = len(self._partitions)
            self._partitions += [(self._topic, index) for index in range(known, count)]

    async def _change(self, admin: Admin, name: str, settings: Sequence[tuple[str, Sequence[str]]]) -> None:
        setting, values = self.random.choice(settings)
        if self.random.random() < 0.3:
            self.world.note(self.name, f"unsets {setting} of {name}")
            await admin.alter_configs("topic", name, unset=[setting])
        else:
            value = self.random.choice(values)
            self.world.note(self.name, f"sets {setting} of {name} to {value}")
            await admin.alter_configs("topic", name, {setting: value})

    # -- records ----------------------------------------------------------------------------------------------------

    async def _write(self, name: str) -> None:
        producer = Producer(
            self._bootstrap,
            client_id=self.name,
            linger_ms=0,
            request_timeout_ms=5_000,
            delivery_timeout_ms=10_000,
            clock=self._clock,
            rng=self._rng,
        )
        await producer.start()
        try:
            for _ in range(self.random.randrange(1, 6)):
                await self._send(producer, (name, self.random.randrange(self._live[name])))
        finally:
            await producer.stop(10_000)

    async def _send(self, producer: Producer, partition: TopicPartition) -> None:
        self._sent += 1
        topic, index = partition
        value, timestamp_ms = f"{self.name}:{self._sent}", int(self.world.now() * 1000)
        sends = self._sends[topic]
        place = len(sends)
        sends.append(Send(self.name, partition, value, Outcome.FAILED))
        answer = await producer.send(topic, value, partition=index, timestamp_ms=timestamp_ms)
        sends[place] = Send(self.name, partition, value, Outcome.UNKNOWN)
        told = await answer
        self.world.note(self.name, f"{value} is at {topic}-{index}@{told.offset}")
        sends[place] = Send(self.name, partition, value, Outcome.OK, told.offset)
        if self.on_acknowledged is not None:
            self.on_acknowledged(partition, told.offset)
