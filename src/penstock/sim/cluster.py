"""A cluster under faults, with clients at work: the world that seeds are run in.

A run has three parts: faults and work; healing, after which everything has to work again within `LIVENESS_S`; and the
reckoning: everything is read back and the histories are checked.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.metadata.settings.replication_settings import RACK_AWARE_SELECTOR
from penstock.sim.balancing import BalancingClient
from penstock.sim.checkers import check_history
from penstock.sim.checks import Law
from penstock.sim.churn import ChurningClient
from penstock.sim.clients import (
    Client,
    ConsumingClient,
    HastyClient,
    ProducingClient,
    TransactionalClient,
    read_all,
    read_commits,
)
from penstock.sim.deleting import PARTITIONS as SHORTENED
from penstock.sim.deleting import DeletingClient
from penstock.sim.drill import Drill
from penstock.sim.extras import PLAIN, Extras, draw_extras
from penstock.sim.faults import KINDS, UNSYNCED_KINDS, FaultRates, Faults, draw_rates
from penstock.sim.history import History, Send, TopicPartition
from penstock.sim.machine import Machine
from penstock.sim.operator import OperatingClient
from penstock.sim.pipeliner import PipeliningClient
from penstock.sim.reader import ReadingClient
from penstock.sim.rot import Rot
from penstock.sim.world import World, WorldFailed

TOPIC = "t"
LIVENESS_S = 60.0
CALM_S = 0.5
"""How long clients pause between two things once all have shown that they get on: what is left is waiting."""
SIZES = (1, 3, 3, 3, 5)
CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZQ"

_OPERATORS = OperatingClient | ChurningClient | BalancingClient
"""What they want may be refused for good reasons."""

Sink = Callable[[str], None]


class Shape(NamedTuple):
    """What a seed's cluster is like, apart from its faults."""

    nodes: int
    partitions: int
    producers: int
    pipelining: bool
    consumers: int
    transactional: bool
    operator: bool
    voters: int
    joins: bool
    """Whether another broker joins in the middle of it."""
    flush_mode: str
    directories: int
    seconds: float
    segment_bytes: int
    session_ms: int
    lag_ms: int
    fetch_timeout_ms: int
    """How soon the cluster takes a broker, a replica, a controller for lost."""

    @property
    def replicas(self) -> int:
        return min(3, self.nodes)

    @property
    def min_isr(self) -> int:
        return 2 if self.replicas == 3 else 1


class Result(NamedTuple):
    digest: str
    turns: int
    virtual_s: float
    acknowledged: int
    faults: int
    snapshots_written: int = 0
    snapshots_taken: int = 0
    """Of metadata: by nodes of their own, and from a leader."""
    rotted: int = 0
    """Bits that flipped at rest."""


def draw_shape(chance: random.Random, nodes: int) -> Shape:
    return Shape(
        nodes=nodes,
        partitions=chance.choice((1, 2, 3)),
        producers=chance.choice((1, 2)),
        pipelining=chance.random() < 0.4,
        consumers=chance.choice((0, 1, 2)),
        transactional=chance.random() < 0.3,
        operator=chance.random() < 0.3 and nodes > 1,
        voters=chance.choice((3, nodes)) if nodes > 3 else nodes,
        joins=chance.random() < 0.2 and nodes > 1,
        flush_mode="os" if chance.random() < 0.12 and nodes > 1 else "ack",
        directories=chance.choice((1, 1, 2)),
        seconds=chance.choice((3.0, 6.0, 10.0)),
        segment_bytes=chance.choice((1_500, 10_000, 1 << 30)),
        session_ms=chance.choice((600, 1_000, 3_000)),
        lag_ms=chance.choice((500, 1_500, 3_000)),
        fetch_timeout_ms=chance.choice((400, 1_000)),
    )


def draw_world(seed: int, nodes: int) -> tuple[random.Random, float, Shape]:
    """The stream of a seed, and what comes from it first: how often data is split on its way, and the shape."""
    chance = random.Random(f"{seed}:shape")
    return chance, chance.choice((0.0, 0.0, 0.1)), draw_shape(chance, nodes)


def draw_nodes(seed: int) -> int:
    """How many nodes the cluster of a seed has."""
    return random.Random(f"{seed}:nodes").choice(SIZES)


class Cluster:
    def __init__(self, world: World, shape: Shape, rates: FaultRates, extras: Extras = PLAIN) -> None:
        self.world = world
        self.shape = shape
        self.extras = extras
        self.history = History()
        self.faults = Faults(world, rates)
        self.partitions: list[TopicPartition] = [(TOPIC, index) for index in range(shape.partitions)]
        self.brokers = list(range(1, shape.nodes + 1 + shape.joins))
        self.bootstrap = [f"n{number}:9092" for number in range(1, shape.nodes + 1)]
        self.clients: list[Client] = []
        self.churn: ChurningClient | None = None
        machines = [world.add_machine(f"n{number}", self._settings(number)) for number in self.brokers]
        self._first, self._late = machines[: shape.nodes], machines[shape.nodes :]
        self.law = Law(world)
        if not self._changing_voters():
            self.law.expected_voters = set(range(1, shape.voters + 1))
        world.loop.after_turn = self.law.after_turn
        self.faults.leaders = self.law.leaders
        self.faults.can_spare = self.law.can_spare
        self.faults.careful = shape.flush_mode != "ack"

    def _settings(self, number: int) -> dict[str, str]:
        replicas = str(self.shape.replicas)
        listeners = f"PLAINTEXT://n{number}:9092"
        quorum = {}
        if self.shape.nodes > 1:
            voters = ",".join(f"{each}@n{each}:9093" for each in range(1, self.shape.voters + 1))
            quorum = {"controller.quorum.voters": voters}
            if number <= self.shape.voters:
                listeners += f",CONTROLLER://n{number}:9093"
            else:
                quorum["process.roles"] = "broker"
        return {
            **quorum,
            "node.id": str(number),
            "cluster.id": CLUSTER_ID,
            "listeners": listeners,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "min.insync.replicas": str(self.shape.min_isr),
            "transaction.state.log.min.isr": str(self.shape.min_isr),
            "broker.session.timeout.ms": str(self.shape.session_ms),
            "broker.heartbeat.interval.ms": str(self.shape.session_ms // 5),
            "replica.lag.time.max.ms": str(self.shape.lag_ms),
            "controller.quorum.fetch.timeout.ms": str(self.shape.fetch_timeout_ms),
            "controller.quorum.election.timeout.ms": str(self.shape.fetch_timeout_ms // 2),
            "log.dirs": ",".join(("/data", "/more")[: self.shape.directories]),
            "flush.mode": self.shape.flush_mode,
            "io.threads": "2",
            "num.partitions": str(self.shape.partitions),
            "log.segment.bytes": str(self.shape.segment_bytes),
            "log.retention.ms": "-1",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            "group.initial.rebalance.delay.ms": "0",
            **self.extras.settings(),
            **self._rack(number),
        }

    def _rack(self, number: int) -> dict[str, str]:
        if not self.extras.racks:
            return {}
        return {"broker.rack": f"r{number % self.extras.racks}", "replica.selector.class": RACK_AWARE_SELECTOR}

    # -- the three parts --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        self.world.note("world", f"{self.shape}")
        self.world.note("world", f"{self.faults.rates}")
        if self.extras != PLAIN:
            self.world.note("world", f"{self.extras}")
        await asyncio.gather(*(self._start(machine) for machine in self._first))
        for machine in self._late:
            self.faults.let_join(machine, self.shape.seconds)
        working = self._start_clients()
        rot = Rot(self.world, self.law, self.extras.rot_rate) if self.extras.rot_rate else None
        rotting = asyncio.ensure_future(rot.run(self.shape.seconds)) if rot is not None else None
        await self.faults.run(self.shape.seconds)
        if rot is not None and rotting is not None:
            await rotting
            self.faults.counts["rot"] = rot.count
        await asyncio.wait_for(self.faults.heal(), 3 * LIVENESS_S)
        await self._wait_until_all_work(working)
        for client in self.clients:
            client.stopping = isinstance(client, _OPERATORS | DeletingClient)
            client.pause_s = max(client.pause_s, CALM_S)
        await self._wait_until_nothing(self.law.what_is_missing)
        if self.shape.operator or self.extras.balances:
            await self._drill(working)
        for client in self.clients:
            client.stopping = True
        await asyncio.wait_for(asyncio.gather(*working), LIVENESS_S * 3)
        await self._wait_until_nothing(self.law.what_is_open)
        await self._wait_until_nothing(self.law.what_is_unsynced)
        await self._read_back()
        await asyncio.gather(*(machine.stop() for machine in self.world.machines.values()))
        anomalies = check_history(self.history)
        if anomalies:
            raise WorldFailed("; ".join(f"{name}: {what}" for name, what in anomalies[:5]))

    async def _start(self, machine: Machine) -> None:
        while not await machine.start():  # noqa: ASYNC110 - virtual time costs nothing
            await asyncio.sleep(0.1)

    def _start_clients(self) -> list[asyncio.Future[None]]:
        world, shape = self.world, self.shape
        for number in range(shape.producers):
            self.clients.append(ProducingClient(world, self.history, f"p{number}", self.bootstrap, self.partitions))
        if shape.pipelining:
            self.clients.append(PipeliningClient(world, self.history, "q0", self.bootstrap, self.partitions))
        if shape.transactional:
            transactional = TransactionalClient(world, self.history, "x0", self.bootstrap, self.partitions)
            if self.extras.takes_offsets:
                transactional.take_offsets("gx")
            self.clients.append(transactional)
        for number in range(shape.consumers):
            committed = shape.transactional and number == 0
            group = f"g{int(committed)}"
            self.clients.append(
                ConsumingClient(
                    world, self.history, f"c{number}", self.bootstrap, TOPIC, group, read_committed=committed
                )
            )
        self.clients += self._clients_of_younger_extras()
        if shape.operator:
            operator = OperatingClient(
                world,
                self.history,
                "op",
                self.bootstrap,
                TOPIC,
                shape.partitions,
                self.brokers,
                self._changing_voters(),
            )
            self.clients.append(operator)
        if self.extras.churn:
            safe = shape.flush_mode == "ack" and not self.extras.rot_rate
            self.churn = ChurningClient(
                world, self.history, "ch", self.bootstrap, TOPIC, self.partitions, changes_min_isr=safe
            )
            self.clients.append(self.churn)
        if self.extras.balances:
            self.clients.append(BalancingClient(world, self.history, "ba", self.bootstrap, self.brokers))
        if self.extras.deletes:
            self.clients.append(self._deleting_client())
        for client in self.clients:
            client.on_acknowledged = self.law.acknowledged
            client.on_read = self.law.was_read
        return [asyncio.ensure_future(world.add_client(each.name).call(each.run())) for each in self.clients]

    def _clients_of_younger_extras(self) -> Iterator[Client]:
        """Who is hasty, and who reads from replicas nearby."""
        world, extras = self.world, self.extras
        if extras.hasty_acks is not None:
            alone = self.shape.nodes == 1
            yield HastyClient(
                world, self.history, "h0", self.bootstrap, self.partitions, extras.hasty_acks, alone=alone
            )
        committed, racks = extras.reads_committed, extras.racks
        if racks:
            yield ConsumingClient(
                world, self.history, "rk", self.bootstrap, TOPIC, "gr", read_committed=committed, racks=racks
            )
        if extras.reads_all:
            yield ReadingClient(
                world, self.history, "ra", self.bootstrap, self.partitions, read_committed=committed, racks=racks
            )

    def _deleting_client(self) -> DeletingClient:
        retention = self.extras.retention_bytes
        if retention is not None:
            self.law.starts.leave_to_retention(SHORTENED)
        asked = self.law.starts.asked
        return DeletingClient(self.world, self.history, "de", self.bootstrap, self.brokers, retention, asked)

    def _changing_voters(self) -> list[int]:
        """The nodes that may vote, if an operator changes who does: nobody in his senses does that while a disk with
        a vote is gone for good."""
        shape = self.shape
        may_change = shape.operator and shape.voters >= 3 and "replace_disk" not in self.faults.rates.rates
        return list(range(1, shape.voters + 1)) if may_change else []

    async def _wait_until_all_work(self, working: list[asyncio.Future[None]]) -> None:
        """Liveness: after the faults every producer and every group gets on, with all that it is there for, in each
        partition. Who was stopped by a broken rule says so itself."""
        before = self._progress()
        for member in self._members():
            member.eager = True
        for client in self.clients:
            client.shown = client.successes.copy()
            if isinstance(client, DeletingClient):
                client.is_calm = True
        end = self.world.loop.time() + LIVENESS_S
        while True:
            for work in working:
                if work.done():
                    work.result()
            done = self._progress()  # partitions that are added meanwhile are not waited for
            stuck = [name for name, count in before.items() if done[name] <= count]
            if not stuck:
                break
            if self.world.loop.time() > end:
                raise WorldFailed(
                    f"liveness: {', '.join(stuck)} did not get on for {LIVENESS_S:g} s after the faults"
                )
            await asyncio.sleep(0.1)
        for member in self._members():
            member.eager = False

    async def _wait_until_nothing(self, is_missing: Callable[[], str | None]) -> None:
        """Liveness: every replica is in sync again, and every node has heard of it (P-Live); when nobody writes any
        more, every transaction comes to an end."""
        end = self.world.loop.time() + LIVENESS_S
        while True:
            missing = is_missing()
            if missing is None:
                return
            if self.world.loop.time() > end:
                raise WorldFailed(f"liveness: after {LIVENESS_S:g} s {missing}")
            await asyncio.sleep(0.1)

    async def _drill(self, working: list[asyncio.Future[None]]) -> None:
        """Liveness: what an operator asks for now is done. Not while he still waits for what he asked before."""
        operators = [work for client, work in zip(self.clients, working, strict=True) if client.stopping]
        await asyncio.wait_for(asyncio.gather(*operators), LIVENESS_S)
        drill = Drill(self.world, self.law, TOPIC, self.brokers, self._changing_voters())
        if self.shape.operator:
            await self.world.add_client("drill").call(drill.run(self.bootstrap, LIVENESS_S))
        if self.extras.balances:
            await self.world.add_client("drain").call(drill.drain_and_balance(self.bootstrap, LIVENESS_S))
        await self._wait_until_nothing(self.law.what_is_missing)

    def _progress(self) -> dict[str, int]:
        """What was done so far in each partition, by producers and by groups: a member may have none."""
        done: Counter[str] = Counter()
        for who, partitions, successes in self._workers():
            for topic, index in partitions:
                done[f"{who} in {topic}-{index}"] += successes[topic, index]
        return done

    def _workers(self) -> Iterator[tuple[str, list[TopicPartition], Counter[TopicPartition]]]:
        """Who has to get on, where, and how often each did. A group that reads and cannot commit does not."""
        for client in self.clients:
            if isinstance(client, ConsumingClient):
                yield client.group, self.partitions, client.successes
                yield f"commits of {client.group}", self.partitions, client.commits
            elif isinstance(client, ProducingClient | PipeliningClient | ReadingClient):
                yield client.name, client.partitions, client.successes
            if isinstance(client, DeletingClient):
                yield f"deletions of {client.name}", client.partitions, client.deletions

    def _members(self) -> list[ConsumingClient]:
        return [client for client in self.clients if isinstance(client, ConsumingClient)]

    async def _read_back(self) -> None:
        if self.churn is not None:
            self.partitions += self.churn.settle()
        shortened = SHORTENED if self.extras.deletes else []
        self.partitions += shortened
        reader = self.world.add_client("final")
        for committed in (False, True):
            reading = read_all(
                self.world, self.bootstrap, self.partitions, read_committed=committed, shortened=shortened
            )
            for final in await asyncio.wait_for(reader.call(reading), LIVENESS_S):
                self.history.add(final)
        groups = {client.group for client in self.clients if isinstance(client, TransactionalClient) and client.group}
        for group in sorted(groups.union(member.group for member in self._members())):
            partitions = [partition for partition in self.partitions if partition[0] == TOPIC]
            commits = read_commits(self.bootstrap, partitions, group)
            for commit in await asyncio.wait_for(reader.call(commits), LIVENESS_S):
                self.history.add(commit)


def run_seed(
    seed: int,
    nodes: int = 1,
    *,
    kinds: tuple[str, ...] = KINDS,
    sink: Sink | None = None,
    wire: bool = False,
    plain: bool = False,
    extras: Extras | None = None,
) -> Result:
    """Runs one seed to its end. Raises what is wrong with it. `kinds` of faults other than all make other worlds, and
    so do `plain`, without the extras, and `extras` that are not the seed's own."""
    chance, split_rate, shape = draw_world(seed, nodes)
    world = World(seed, sink=sink)
    world.trace.wire = wire
    world.network.split_rate = split_rate
    if extras is None:
        extras = PLAIN if plain else draw_extras(seed, nodes)
    if extras.flush_ms is not None and shape.flush_mode == "ack":
        shape = shape._replace(flush_mode="interval")
    if shape.flush_mode != "ack":
        kinds = tuple(kind for kind in kinds if kind in UNSYNCED_KINDS)
    cluster = Cluster(world, shape, draw_rates(chance, nodes, kinds), extras)
    world.run(cluster.run(), 600)
    acknowledged = sum(isinstance(event, Send) and event.offset >= 0 for event in cluster.history.events)
    faults = sum(cluster.faults.counts.values())
    return Result(
        world.trace.digest(),
        world.loop.turns,
        world.loop.time(),
        acknowledged,
        faults,
        cluster.law.snapshots_written,
        cluster.law.snapshots_taken,
        cluster.faults.counts.get("rot", 0),
    )
