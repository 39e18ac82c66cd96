"""What goes wrong in a world, and how often: drawn anew for every seed.

Swarm testing: each seed has some kinds of fault and not others, each at a rate of its own. A world in which
everything always happens at once finds less than many worlds in which a few things happen often.

Every fault ends by itself after a while, and `heal` ends all of them at once.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.sim import probe
from penstock.sim.ghost_log import Violation
from penstock.sim.loop import PoolTimes

if TYPE_CHECKING:
    from penstock.sim.machine import Machine
    from penstock.sim.world import World

KINDS = (
    "kill",
    "power_loss",
    "power_loss_in_operation",
    "power_loss_in_sync",
    "restart",
    "rolling_restart",
    "pause",
    "cut_one_way",
    "cut_two_ways",
    "isolate",
    "slow_link",
    "loss",
    "break_connections",
    "slow_disk",
    "full_disk",
    "directory_failure",
    "replace_disk",
    "clock_jump",
    "power_loss_of_all",
)


class FaultRates:
    """Faults per virtual second, by kind; kinds that are not there do not happen."""

    def __init__(self, rates: dict[str, float], max_down: int, hold_s: float, crash_at_start: float = 0.0) -> None:
        self.rates = rates
        self.max_down = max_down
        """How many machines may be without a running node at a time."""
        self.hold_s = hold_s
        """How long a fault lasts, on average."""
        self.crash_at_start = crash_at_start
        """The share of starts that end in a loss of power, within recovery as likely as not."""

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {rate:.2f}/s" for kind, rate in self.rates.items())
        return f"{kinds or 'no faults'}; at most {self.max_down} down, {self.hold_s:g} s each"


_UNANNOUNCED = (
    "power_loss_in_operation",
    "power_loss_in_sync",
    "power_loss_of_all",
    "directory_failure",
    "full_disk",
)
UNSYNCED_KINDS = tuple(kind for kind in KINDS if kind not in _UNANNOUNCED)
"""Where only replication protects (flush.mode os and interval): what takes down one machine at a time, of which one
knows when."""


def draw_rates(chance: random.Random, machines: int, kinds: tuple[str, ...] = KINDS) -> FaultRates:
    chosen = 0.4 if len(kinds) > 3 else 0.8
    rates = {kind: 10 ** chance.uniform(-1.3, 0.2) for kind in kinds if chance.random() < chosen}
    if machines == 1:
        max_down = 1
    else:
        max_down = chance.choice((1, (machines - 1) // 2, machines))
    crash_at_start = chance.choice((0.0, 0.2)) if "power_loss" in rates else 0.0
    return FaultRates(rates, max_down, chance.choice((0.3, 1.0, 2.0, 4.0)), crash_at_start)


class Faults:
    def __init__(self, world: "World", rates: FaultRates) -> None:
        self.rates = rates
        self.counts: dict[str, int] = {}
        self.leaders: Callable[[], list[str]] = list
        """Names of machines that lead something: faults strike them more often than others."""
        self._world = world
        self._random = random.Random(f"{world.seed}:faults")
        self._busy: dict[str, str] = {}
        """Machines in the hands of a fault, by name."""
        self._tasks: list[asyncio.Task[None]] = []
        self._healing = False
        self.can_spare: Callable[[Machine], bool] = lambda _: False
        """Whether everything committed is kept if this machine loses what it holds."""
        self.careful = False
        """Brokers do not sync what they count: none may go down unless it can be spared."""

    def let_join(self, machine: "Machine", seconds: float) -> None:
        """A machine that is not there yet joins within that time."""
        self._busy[machine.name] = "not there yet"
        self._tasks.append(asyncio.ensure_future(self._join(machine, self._random.uniform(0.0, seconds))))

    async def _join(self, machine: "Machine", delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._bring_up(machine)
        self._give_back(machine)

    async def run(self, seconds: float) -> None:
        """Lets things go wrong for that long."""
        end = self._world.loop.time() + seconds
        self._tasks.append(asyncio.ensure_future(self._operate()))
        kinds, weights = list(self.rates.rates), list(self.rates.rates.values())
        while kinds:
            pause = self._random.expovariate(sum(weights))
            if self._world.loop.time() + pause >= end:
                break
            await asyncio.sleep(pause)
            kind = self._random.choices(kinds, weights)[0]
            self.begin(kind)
        await asyncio.sleep(max(0.0, end - self._world.loop.time()))

    def begin(self, kind: str) -> None:
        fault: Callable[[], Coroutine[Any, Any, None]] = getattr(self, f"_{kind}")
        self._tasks.append(asyncio.ensure_future(fault()))

    async def heal(self) -> None:
        """Ends every fault and brings every machine back. What a machine was in the middle of is finished first."""
        self._healing = True
        world = self._world
        world.note("faults", "end")
        for machine in world.machines.values():
            machine.resume()
            machine.disk.power_loss_at = -1
            machine.disk.power_loss_in_syncs = 0
            machine.disk.capacity_bytes = None
            machine.disk.failing.clear()
        world.loop.pool_times.clear()
        world.network.heal_all()
        for task in self._tasks:  # more come while these end
            await task
        await asyncio.gather(*(self._bring_up(machine) for machine in world.machines.values()))
        for machine in world.machines.values():
            if probe.has_failed_directory(machine):
                raise Violation(f"{machine.name} gave up a log directory whose disk works")

    # -- choosing -------------------------------------------------------------------------------------------------

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def _take(self, kind: str, *, goes_down: bool, for_good: bool = False) -> "Machine | None":
        """A machine that nothing is wrong with, for this fault alone until `_give_back`; only one that can be spared,
        if what it holds is lost `for_good`."""
        machines = [each for each in self._world.machines.values() if each.serving and each.name not in self._busy]
        down = sum(not each.serving and each.lives > 0 for each in self._world.machines.values())
        if not machines or self._healing or (goes_down and down >= self.rates.max_down):
            return None
        machine = self._world.machines[self._choose([each.name for each in machines])]
        if (for_good or (goes_down and self.careful)) and not self.can_spare(machine):
            return None
        self._busy[machine.name] = kind
        self._count(kind)
        return machine

    def _choose(self, names: list[str]) -> str:
        leaders = [name for name in self.leaders() if name in names]
        return self._random.choice(leaders if leaders and self._random.random() < 0.5 else names)

    def _give_back(self, machine: "Machine") -> None:
        self._busy.pop(machine.name, None)

    async def _hold(self) -> None:
        end = self._world.loop.time() + self._random.expovariate(1 / self.rates.hold_s)
        while not self._healing and self._world.loop.time() < end:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(min(0.05, end - self._world.loop.time() + 1e-6))

    async def _bring_up(self, machine: "Machine") -> None:
        while not machine.serving:
            if not machine.is_up:
                if not self._healing and self._random.random() < self.rates.crash_at_start:
                    machine.disk.power_loss_at = machine.disk.operations + self._random.randrange(1, 60)
                if not await machine.start():
                    await asyncio.sleep(0.2)
            else:
                await asyncio.sleep(0.1)
        if self.careful:  # what was to strike during its start must not strike when nobody can spare it any more
            machine.disk.power_loss_at = -1

    async def _operate(self) -> None:
        """Somebody looks after the machines: a node that gave up is started again."""
        while not self._healing:
            await asyncio.sleep(0.5)
            for machine in self._world.machines.values():
                if not machine.is_up and machine.name not in self._busy:
                    self._busy[machine.name] = "gave up"
                    self._tasks.append(asyncio.ensure_future(self._start_again(machine)))

    async def _start_again(self, machine: "Machine") -> None:
        await self._bring_up(machine)
        self._give_back(machine)

    # -- machines -------------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        await self._take_down("kill", lambda machine: machine.kill())

    async def _power_loss(self) -> None:
        await self._take_down("power_loss", lambda machine: machine.lose_power())

    async def _take_down(self, kind: str, end: "Callable[[Machine], None]") -> None:
        machine = self._take(kind, goes_down=True)
        if machine is not None:
            end(machine)
            await self._hold()
            await self._bring_up(machine)
            self._give_back(machine)

    async def _power_loss_in_operation(self) -> None:
        """Within one of the next disk operations, wherever that is."""
        machine = self._take("power_loss_in_operation", goes_down=True)
        if machine is not None:
            machine.disk.power_loss_at = machine.disk.operations + self._random.randrange(1, 40)
            await self._hold()
            machine.disk.power_loss_at = -1
            await self._bring_up(machine)
            self._give_back(machine)

    async def _power_loss_in_sync(self) -> None:
        """A slow sync that never happens: what came since the last one is lost, whatever anybody was told of it."""
        machine = self._take("power_loss_in_sync", goes_down=True)
        if machine is not None:
            times = self._world.loop.pool_times
            times[machine.name] = PoolTimes(50e-6, self._random.choice((2e-3, 0.05, 0.3)))
            machine.disk.power_loss_in_syncs = self._random.randrange(1, 20)
            await self._hold()
            machine.disk.power_loss_in_syncs = 0
            times.pop(machine.name, None)
            await self._bring_up(machine)
            self._give_back(machine)

    async def _power_loss_of_all(self) -> None:
        """The whole room goes dark."""
        self._count("power_loss_of_all")
        machines = [each for each in self._world.machines.values() if each.serving and each.name not in self._busy]
        for machine in machines:
            self._busy[machine.name] = "power_loss_of_all"
            machine.lose_power()
        await self._hold()
        self._random.shuffle(machines)
        await asyncio.gather(*(self._bring_up(machine) for machine in machines))
        for machine in machines:
            self._give_back(machine)

    async def _restart(self) -> None:
        machine = self._take("restart", goes_down=True)
        if machine is not None:
            await machine.stop()
            await self._bring_up(machine)
            self._give_back(machine)

    async def _rolling_restart(self) -> None:
        """Each machine in its turn, as for an upgrade: the next one when the last one serves."""
        for name in list(self._world.machines):
            machine = self._world.machines[name]
            down = any(not each.serving and each.lives > 0 for each in self._world.machines.values())
            if self._healing or down or name in self._busy or not machine.serving:
                continue
            self._busy[name] = "rolling_restart"
            self._count("rolling_restart")
            await machine.stop()
            await self._bring_up(machine)
            self._give_back(machine)

    async def _pause(self) -> None:
        machine = self._take("pause", goes_down=False)
        if machine is not None:
            machine.pause()
            await self._hold()
            machine.resume()
            self._give_back(machine)

    async def _clock_jump(self) -> None:
        """The wall clock only; it stays where it jumped to."""
        machine = self._random.choice(list(self._world.machines.values()))
        self._count("clock_jump")
        jump_ms = int(self._random.choice((-1, 1)) * 10 ** self._random.uniform(1, 6))
        self._world.note(machine.name, f"its clock jumps by {jump_ms} ms")
        machine.clock.skew_ms += jump_ms

    # -- network --------------------------------------------------------------------------------------------------

    def _two_hosts(self) -> tuple[str, str] | None:
        names = list(self._world.network.hosts)
        first = self._random.choice(list(self._world.machines))
        others = [name for name in names if name != first]
        return (first, self._random.choice(others)) if others else None

    async def _cut_one_way(self) -> None:
        pair = self._two_hosts()
        if pair is not None:
            source, target = pair if self._random.random() < 0.5 else pair[::-1]
            await self._cut("cut_one_way", [(source, target)], f"{source} to {target} is cut")

    async def _cut_two_ways(self) -> None:
        pair = self._two_hosts()
        if pair is not None:
            await self._cut("cut_two_ways", [pair, pair[::-1]], f"{pair[0]} and {pair[1]} are cut off each other")

    async def _isolate(self) -> None:
        """One machine from all others, in one direction or both; clients may still reach it."""
        machines = list(self._world.machines)
        name = self._choose(machines)
        others = machines if self._random.random() < 0.5 else list(self._world.network.hosts)
        how = self._random.choice(("in", "out", "both"))
        links = []
        for other in others:
            if other != name:
                links += [(other, name)] if how in ("in", "both") else []
                links += [(name, other)] if how in ("out", "both") else []
        await self._cut("isolate", links, f"{name} is isolated ({how}) from {', '.join(others)}")

    async def _cut(self, kind: str, links: list[tuple[str, str]], what: str) -> None:
        self._count(kind)
        self._world.note("network", what)
        for source, target in links:
            self._world.network.cut(source, target)
        await self._hold()
        self._world.note("network", f"healed: {what}")
        for source, target in links:
            self._world.network.heal(source, target)

    async def _slow_link(self) -> None:
        pair = self._two_hosts()
        if pair is not None:
            self._count("slow_link")
            link = self._world.network.link(*pair)
            link.latency_s, link.jitter_s = self._random.choice((0.01, 0.1, 0.5)), self._random.choice((0.01, 0.1))
            await self._hold()
            link.latency_s = link.jitter_s = link.usual_s

    async def _loss(self) -> None:
        pair = self._two_hosts()
        if pair is not None:
            self._count("loss")
            link = self._world.network.link(*pair)
            link.loss = self._random.choice((0.01, 0.1, 0.3))
            await self._hold()
            link.loss = 0.0

    async def _break_connections(self) -> None:
        ends = list(self._world.network.connections.values())
        self._count("break_connections")
        for end in self._random.sample(ends, min(len(ends), self._random.choice((1, 3, 10)))):
            self._world.network.break_connection(end)

    # -- disks ----------------------------------------------------------------------------------------------------

    async def _slow_disk(self) -> None:
        machine = self._random.choice(list(self._world.machines.values()))
        self._count("slow_disk")
        slowest_s = self._random.choice((0.02, 0.2, 1.0))
        self._world.note(machine.name, f"its disk is slow ({slowest_s:g} s)")
        self._world.loop.pool_times[machine.name] = PoolTimes(50e-6, slowest_s)
        await self._hold()
        self._world.loop.pool_times.pop(machine.name, None)

    async def _replace_disk(self) -> None:
        """What it held is gone for good: only where the others hold all of it."""
        machine = self._take("replace_disk", goes_down=True, for_good=True)
        if machine is not None:
            machine.replace_disk()
            await self._hold()
            await self._bring_up(machine)
            self._give_back(machine)

    async def _directory_failure(self) -> None:
        """One of its log directories takes no more writes; after a while the disk is repaired, and the node started
        again. What was not synced is lost then, as the kernel dropped it."""
        machine = self._take("directory_failure", goes_down=False)
        if machine is None:
            return
        directory = self._random.choice(machine.settings["log.dirs"].split(","))
        self._world.note(machine.name, f"{directory} fails")
        machine.disk.failing[directory] = errno.EIO
        await self._hold()
        machine.disk.failing.clear()
        if machine.is_up:
            self._world.note(machine.name, f"{directory} is repaired")
            machine.lose_power()
        else:
            machine.disk.crash()
        await self._bring_up(machine)
        self._give_back(machine)

    async def _full_disk(self) -> None:
        machine = self._random.choice(list(self._world.machines.values()))
        self._count("full_disk")
        room = self._random.choice((0, 100, 2_000))
        self._world.note(machine.name, f"its disk has {room} bytes left")
        machine.disk.capacity_bytes = machine.disk.used_bytes() + room
        await self._hold()
        machine.disk.capacity_bytes = None
