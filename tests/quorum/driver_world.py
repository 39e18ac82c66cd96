"""Metadata drivers in virtual time: disks that lose power, a network that cuts and delays, all from one seed.

Between the quorum's own world (no driver) and the simulator of whole clusters (all of the broker): here the driver's
files, images and snapshots are at stake, with many lives per second.
"""

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from penstock.broker.controller_service import ControllerService
from penstock.broker.metadata_driver import MetadataDriver, MetadataUnavailable
from penstock.broker.metadata_store import MetadataStore
from penstock.broker.peers import PeerUnreachable
from penstock.controller.configs import Change, Resource, decide_incremental_alter_configs
from penstock.metadata.settings import BrokerSettings
from penstock.quorum.voters import Endpoint
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.disk import CrashingDisk, PowerLoss
from penstock.sim.loop import SimLoop
from penstock.sim.machine import MountedDisk
from penstock.sim.process import Process, ProcessDied
from tests.quorum.driver_cluster import over_the_wire, serve

TOPIC = 2


class DriverMachine:
    """A disk, and the driver that runs on it from time to time."""

    def __init__(self, world: "DriverWorld", number: int) -> None:
        self.world = world
        self.number = number
        self.clock = SimClock(world.loop)
        self.disk = CrashingDisk(world.random.randrange(1 << 30), now_ms=self.clock.now_ms)
        self.disk.on_power_loss = self.lose_power
        self.process: Process | None = None
        self.driver: MetadataDriver | None = None
        self.lives = 0
        self.epoch = 0

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_dead

    async def start(self) -> None:
        self.lives += 1
        process = self.process = Process(self.world.loop, f"node-{self.number}", f"node-{self.number}")
        try:
            await process.call(self._run(process))
        except (ProcessDied, PowerLoss):
            self.lose_power()

    async def _run(self, process: Process) -> None:
        settings = self.world.settings(self.number)
        disk: Any = MountedDisk(self.disk, process)
        store = MetadataStore(disk, self.clock, "/data", settings)
        rng = SimRng(f"{self.world.seed}:{self.number}:{self.lives}")
        driver = MetadataDriver(
            store,
            settings,
            bytes([self.number]) * 16,
            ThreadPoolExecutor(4),  # the loop knows it by its identity only
            self._failed,
            transport=DriverNetwork(self.world, self),
            rng=rng,
            cluster_id="c",
        )
        driver.controller_endpoints = (Endpoint("CONTROLLER", "h", self.number),)
        await driver.start()
        self.driver = driver
        self.controller = ControllerService(driver, self.clock)
        assert driver.epoch >= self.epoch, "R2"
        self.epoch = driver.epoch

    def _failed(self, error: OSError) -> None:
        raise AssertionError(f"node {self.number} gives up: {error}") from error

    def lose_power(self) -> None:
        if self.process is not None:
            self.process.die()
        self.driver = None
        self.disk.crash()


class DriverNetwork:
    def __init__(self, world: "DriverWorld", source: DriverMachine) -> None:
        self._world = world
        self._source = source

    async def request(self, address: tuple[str, int], message: Any, _: Any, timeout_ms: int) -> Any:
        world, source, target = self._world, self._source.number, world_target(self._world, address)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        await asyncio.sleep(world.delay_s())
        if (source, target.number) not in world.blocked:
            if not target.is_up or target.driver is None or target.driver.quorum is None:
                raise PeerUnreachable("refused", refused=True)
            assert target.process is not None
            sent = over_the_wire(message)
            try:
                async with asyncio.timeout_at(deadline):
                    answer = await target.process.call(serve(target.driver.quorum, sent))
                    await asyncio.sleep(world.delay_s())
                if (target.number, source) not in world.blocked:
                    return over_the_wire(answer)
            except (ProcessDied, PowerLoss, TimeoutError):
                pass
        await asyncio.sleep(max(0.0, deadline - loop.time()))
        raise PeerUnreachable("no answer")


def world_target(world: "DriverWorld", address: tuple[str, int]) -> DriverMachine:
    return world.machines[address[1]]


class DriverWorld:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.loop = SimLoop(seed)
        self.count = self.random.choice((1, 3, 3, 3, 5))
        self.snapshot_bytes = self.random.choice((400, 2_000, 1 << 20))
        self.delay_max_s = self.random.choice((0.001, 0.02, 0.2))
        self.fault_every_s = self.random.choice((0.2, 1.0, 4.0))
        self.blocked: set[tuple[int, int]] = set()
        self.machines = {n: DriverMachine(self, n) for n in range(1, self.count + 1)}
        self.answered: dict[str, int] = {}
        """Setting -> the value that was answered last, while nothing later was asked for."""
        self.open: set[str] = set()
        self.made = 0
        self.faulty = True

    def settings(self, number: int) -> BrokerSettings:
        voters = ",".join(f"{n}@h:{n}" for n in self.machines) if self.count > 1 else ""
        return BrokerSettings.from_mapping(
            {
                "node.id": number,
                "listeners": f"PLAINTEXT://localhost:0,CONTROLLER://localhost:{number}",
                "controller.quorum.voters": voters,
                "metadata.log.max.record.bytes.between.snapshots": self.snapshot_bytes,
            }
        )

    def delay_s(self) -> float:
        return self.random.uniform(0.0001, self.delay_max_s if self.faulty else 0.002)

    @property
    def active(self) -> DriverMachine | None:
        leading = [m for m in self.machines.values() if m.is_up and m.driver is not None and m.driver.is_active]
        return max(leading, key=lambda machine: machine.driver.epoch if machine.driver else 0, default=None)

    # --- work -----------------------------------------------------------------------------------------------------

    async def change(self) -> None:
        machine = self.active
        if machine is None or machine.process is None:
            return
        self.made += 1
        topic, value = f"t{self.random.randrange(5)}", self.made
        if topic in self.open:
            return
        self.open.add(topic)
        self.answered.pop(topic, None)
        try:
            await machine.process.call(self._submit(machine, topic, value))
        except (ProcessDied, PowerLoss, MetadataUnavailable):
            return
        finally:
            self.open.discard(topic)
        if machine.is_up:
            self.answered[topic] = value

    async def _submit(self, machine: DriverMachine, topic: str, value: int) -> None:
        wanted = [(Resource(4, ""), [Change(NAMES[topic], 0, str(value + 10_000))])]
        settings = self.settings(machine.number)
        await machine.controller.submit(lambda view: decide_incremental_alter_configs(view.image, wanted, settings))

    async def work(self) -> None:
        tasks = []
        while self.faulty:
            tasks.append(asyncio.ensure_future(self.change()))
            await asyncio.sleep(self.random.uniform(0, 0.1))
        await asyncio.wait(tasks)

    # --- faults ---------------------------------------------------------------------------------------------------

    async def trouble(self) -> None:
        while self.faulty:
            await asyncio.sleep(self.random.uniform(0, 2 * self.fault_every_s))
            machine = self.random.choice(list(self.machines.values()))
            what = self.random.random()
            if what < 0.3:
                await self.cut(machine)
            elif machine.is_up and what < 0.6:
                machine.disk.power_loss_at = machine.disk.operations + self.random.randint(1, 40)
            elif machine.is_up:
                machine.lose_power()
            if not machine.is_up:
                await asyncio.sleep(self.random.uniform(0, 2))
                if not machine.is_up:
                    await machine.start()

    async def cut(self, machine: DriverMachine) -> None:
        others = [n for n in self.machines if n != machine.number]
        both = self.random.random() < 0.6
        self.blocked = {(machine.number, n) for n in others} | (
            {(n, machine.number) for n in others} if both else set()
        )
        await asyncio.sleep(self.random.uniform(0, 4))
        self.blocked = set()

    # --- the whole story --------------------------------------------------------------------------------------------

    async def live(self, seconds: float) -> None:
        for machine in self.machines.values():
            await machine.start()
        jobs = [asyncio.ensure_future(self.work()), asyncio.ensure_future(self.trouble())]
        await asyncio.sleep(seconds)
        self.faulty = False
        self.blocked = set()
        await asyncio.wait(jobs)
        for job in jobs:
            job.result()
        for machine in self.machines.values():
            machine.disk.power_loss_at = -1
            if not machine.is_up:
                await machine.start()
        await self.settle()

    async def settle(self) -> None:
        """A last change reaches everybody, and everybody has every answered one."""
        deadline = self.loop.time() + 60
        before, last = self.made, -1
        while True:
            assert self.loop.time() < deadline, f"seed {self.seed}: not well again: {self.story()}"
            if last < 0:
                await self.change()
                last = self.made if self.made > before and self.made in self.answered.values() else -1
            elif self.agree():
                break
            await asyncio.sleep(0.05)
        for machine in self.machines.values():
            assert machine.driver is not None
            config = machine.driver.image.cluster_config
            for topic, value in self.answered.items():
                assert config.get(NAMES[topic]) == str(value + 10_000), (
                    f"seed {self.seed}: {topic} of {machine.number}"
                )

    def agree(self) -> bool:
        images = [m.driver.image if m.driver is not None else None for m in self.machines.values()]
        ends = {image.end_offset if image is not None else -1 for image in images}
        return len(ends) == 1 and len({tuple(sorted(image.cluster_config.items())) for image in images if image}) == 1

    def story(self) -> list[tuple[int, bool, Any, Any]]:
        return [
            (m.number, m.is_up, m.driver and m.driver.leader_id, m.driver and m.driver.image.end_offset)
            for m in self.machines.values()
        ]

    def run(self, seconds: float = 20.0) -> None:
        self.loop.run(self.live(seconds), 10_000)
        faults = [fault for fault in self.loop.faults if not isinstance(fault.get("exception"), PowerLoss)]
        assert not faults, f"seed {self.seed}: {faults}"


NAMES = {
    "t0": "log.retention.ms",
    "t1": "log.roll.ms",
    "t2": "log.flush.interval.ms",
    "t3": "log.cleaner.delete.retention.ms",
    "t4": "log.cleaner.min.compaction.lag.ms",
}
