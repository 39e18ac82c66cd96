"""A world: a loop, a network, machines with nodes, and clients, all grown from one seed.

    world = World(seed=7)
    machine = world.add_machine("n1", {"log.dirs": "/data", "listeners": "PLAINTEXT://n1:9092"})
    world.run(story(world, machine))

`run` fails with `WorldFailed` when a program raised something that nobody handled, whatever the story says.
"""

import errno
import logging
import random
import traceback
import warnings
import zlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from penstock.sim.clock import EPOCH_S
from penstock.sim.loop import SimLoop
from penstock.sim.machine import Machine
from penstock.sim.network import Network
from penstock.sim.process import Process
from penstock.sim.surroundings import LogTap, simulated_surroundings, tapped_logs
from penstock.sim.trace import Trace

T = TypeVar("T")


class WorldFailed(AssertionError):
    """A property of the law does not hold in this world. The message says which; the trace says how it came."""


class World:
    def __init__(self, seed: int, *, keep: int = 0, sink: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.random = random.Random(f"{seed}:world")
        self.loop = SimLoop(seed)
        self.trace = Trace(self.loop.time, keep, sink)
        self.network = Network(self.loop, seed, self.trace)
        self.machines: dict[str, Machine] = {}
        self._processes: list[Process] = []
        """All that ever lived: what a dead one holds must not be collected before the end."""
        self._bugs: list[str] = []

    def seed_of(self, part: str) -> int:
        return zlib.crc32(f"{self.seed}:{part}".encode())

    def now(self) -> float:
        """True time, which no machine's clock need show."""
        return EPOCH_S + self.loop.time()

    def note(self, who: str, what: str) -> None:
        self.trace.note(who, what)

    def add_machine(self, name: str, settings: Mapping[str, str]) -> Machine:
        machine = self.machines[name] = Machine(self, name, settings)
        return machine

    def add_client(self, name: str) -> Process:
        """A process on a host of its own."""
        self.network.add_host(name)
        return self.begin_process(name)

    def begin_process(self, name: str) -> Process:
        process = Process(self.loop, name, name)
        self._processes.append(process)
        return process

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, story: Coroutine[Any, Any, T], limit_s: float = 3600.0) -> T:
        """Runs the story to its end. Whatever fails, the note of the seed and the last lines come with it."""
        levels = {"penstock": logging.INFO, "aiokafka": logging.WARNING, "asyncio": logging.WARNING}
        with simulated_surroundings(self.loop, self.seed), tapped_logs(LogTap(self._logged), levels):
            try:
                result = self.loop.run(story, limit_s)
                self.check_programs()
                return result
            except BaseException as error:
                error.add_note(f"seed {self.seed}, {self.loop.turns} turns, {self.loop.time():.6f} s")
                if not isinstance(error, WorldFailed) or str(error) not in self._bugs:
                    self._gather_faults()
                    for bug in self._bugs[:1]:  # it may be why
                        error.add_note(f"before that: {bug}")
                raise
            finally:
                self._end()

    def _logged(self, who: str, message: str, record: logging.LogRecord) -> None:
        ours = record.name.startswith("penstock")
        if ours:
            self.trace.note(who, message)
        elif self.trace.readable:
            self.trace.say(who, f"({record.name}) {message}")
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError) and error.errno == errno.EIO:
            return  # what only a dying disk says, and the end of a node that cannot do without it
        if ours and error is not None and record.levelno >= logging.ERROR:
            text = "".join(traceback.format_exception(error))
            self._bugs.append(f"{who} logged: {message}\n{text}")

    def check_programs(self) -> None:
        """No program may fail in a way it did not foresee."""
        self._gather_faults()
        if self._bugs:
            raise WorldFailed(self._bugs[0])

    def _gather_faults(self) -> None:
        for fault in self.loop.faults:
            error = fault.get("exception")
            text = "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
            self._bugs.append(f"{fault['process']}: {fault['message']}\n{text}")
        self.loop.faults.clear()

    def _end(self) -> None:
        """Everybody dies, in an order; whatever their last words are, nobody hears them."""
        for process in self._processes:
            process.die()
        leftovers = [task for process in self._processes for task in process.tasks]
        self.loop.after_turn = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that nobody will ever await
            for task in [*leftovers, *self.loop.tasks_of(None)]:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        self.loop.close()


def _close(work: Any) -> None:
    """Ends a coroutine that will never go on, also one that waits for something while it cleans up."""
    for _ in range(100):
        try:
            work.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                return
        except BaseException:  # its last words
            return
        else:
            return
