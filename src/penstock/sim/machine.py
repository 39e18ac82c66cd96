"""A computer with a disk, and the node that runs on it from time to time."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.broker.lifecycle import RegistrationRefused
from penstock.broker.metadata_driver import MetadataUnavailable
from penstock.metadata.settings import BrokerSettings
from penstock.node.identity import NodeRefused
from penstock.node.node import Node
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.disk import CrashingDisk, PowerLoss
from penstock.sim.process import Process, ProcessDied, State

if TYPE_CHECKING:
    from penstock.sim.world import World

STOP_S = 120.0
"""A node that takes longer to stop is stuck."""


class MountedDisk:
    """The disk as one process sees it: once that is dead it sees nothing any more."""

    def __init__(self, disk: CrashingDisk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def __getattr__(self, name: str) -> Any:
        if self._process.is_dead:
            raise PowerLoss(f"{self._process.name} is dead")
        return getattr(self._disk, name)


class Machine:
    """`node` is the running node, or the last one that ran."""

    def __init__(self, world: "World", name: str, settings: Mapping[str, str]) -> None:
        self.world = world
        self.name = name
        self.settings = dict(settings)
        self.host = world.network.add_host(name)
        self.clock = SimClock(world.loop)
        self.disks = 0
        """How many it has had."""
        self.disk = self._new_disk()
        self.process: Process | None = None
        self.node: Node | None = None
        self.lives = 0
        self.serving = False

    def _new_disk(self) -> CrashingDisk:
        self.disks += 1
        disk = CrashingDisk(self.world.seed_of(f"{self.name}:disk{self.disks}"), now_ms=self.clock.now_ms)
        disk.flips_bits = True
        disk.on_power_loss = self.lose_power
        return disk

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_dead

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.state is State.RUNNING

    async def start(self) -> bool:
        """Starts a node on what the disk holds; False when it died before it served."""
        assert not self.is_up, f"{self.name} is running"
        self.lives += 1
        self.world.network.power_on(self.name)
        process = self.process = self.world.begin_process(self.name)
        self.world.note(self.name, f"starts, life {self.lives}")
        rng = SimRng(f"{self.world.seed}:{self.name}:{self.lives}")
        refusals = self.disk.refusals
        try:
            await process.call(self._run(process, rng))
        except (ProcessDied, PowerLoss):
            return False
        except (OSError, NodeRefused, MetadataUnavailable) as error:
            no_controller = isinstance(error.__cause__, RegistrationRefused) and "no controller" in str(error)
            if self.disk.refusals == refusals and not no_controller:
                raise
            self.world.note(self.name, f"cannot start now: {error}")
            process.die()
            return False
        self.serving = True
        self.world.note(self.name, "serves")
        return True

    async def _run(self, process: Process, rng: SimRng) -> None:
        disk: Any = MountedDisk(self.disk, process)
        self.node = Node(BrokerSettings.from_mapping(self.settings), disk=disk, clock=self.clock, rng=rng)
        starting = asyncio.ensure_future(self.node.start())
        await asyncio.sleep(0)  # it makes `failed` first of all
        self.node.failed.add_done_callback(lambda _: self._gave_up())
        await starting

    def _gave_up(self) -> None:
        """The node says that it cannot go on: its program exits, and somebody starts it again."""
        self.world.note(self.name, "gives up")
        self.kill()

    async def stop(self) -> bool:
        """Stops the node as an operator would; False when it died on the way."""
        process, node = self.process, self.node
        assert process is not None
        assert node is not None
        self.world.note(self.name, "is told to stop")
        self.serving = False
        try:
            await asyncio.wait_for(process.call(node.stop()), STOP_S)
        except (ProcessDied, PowerLoss):
            return False
        self.world.note(self.name, "has stopped")
        process.die()
        return True

    # -- faults ---------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: the system lives on, so nothing that was written is lost, and peers are told."""
        if self.is_up:
            assert self.process is not None
            self.world.note(self.name, "is killed")
            self.serving = False
            self.process.die()

    def lose_power(self) -> None:
        """What was not synced is lost, wholly or in part, and peers are not told."""
        if self.is_up:
            assert self.process is not None
            self.world.note(self.name, "loses power")
            self.serving = False
            self.world.network.power_off(self.name)
            self.process.die()
            self.disk.crash()

    def replace_disk(self) -> None:
        """The machine dies with its disk; it gets an empty one."""
        self.lose_power()
        self.world.note(self.name, "gets an empty disk")
        self.disk = self._new_disk()

    def pause(self) -> None:
        if self.is_running:
            assert self.process is not None
            self.world.note(self.name, "is paused")
            self.process.pause()

    def resume(self) -> None:
        if self.process is not None and self.process.state is State.PAUSED:
            self.world.note(self.name, "goes on")
            self.process.resume()
