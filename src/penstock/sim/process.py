"""One life of a program in the simulated world: a node from its start to its end, or a client.

Everything that runs belongs to a process by its context: tasks, timers and callbacks inherit it from whoever made
them. So a process can be stopped in the middle of anything: a paused one keeps its turns for later, a dead one never
gets another, and nothing it still does has an effect.
"""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from penstock.sim.loop import SimHandle, SimLoop

T = TypeVar("T")

CURRENT: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)
"""None is the world itself: it is never paused and never dies."""


class State(IntEnum):
    RUNNING = 0
    PAUSED = 1
    DEAD = 2


class ProcessDied(Exception):
    """The process ended before it had done what was asked of it."""


class Process:
    """`name` is for traces, `host` is where its sockets are."""

    __slots__ = ("_died", "_loop", "closers", "host", "name", "set_aside", "state", "tasks")

    def __init__(self, loop: "SimLoop", name: str, host: str) -> None:
        self._loop = loop
        self.name = name
        self.host = host
        self.state = State.RUNNING
        self.set_aside: list[SimHandle] = []
        """Turns that came while it was paused."""
        self.closers: dict[object, Callable[[], None]] = {}
        """What the system does with its sockets when it ends, in order of opening."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept when it dies: what is collected would run its `finally` at a moment of the collector's choosing."""
        self._died: asyncio.Future[None] = loop.create_future()

    def __repr__(self) -> str:
        return f"<{self.name} {self.state.name.lower()}>"

    @property
    def is_dead(self) -> bool:
        return self.state is State.DEAD

    def context(self) -> contextvars.Context:
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return context

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self._loop.create_task(work, context=self.context())

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs work of this process and waits for it from outside. Raises `ProcessDied`."""
        if self.is_dead:
            work.close()
            raise ProcessDied(self.name)
        task = self.spawn(work)
        awaited: list[asyncio.Future[Any]] = [task, self._died]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if task.done() and not self.is_dead:
            return task.result()
        raise ProcessDied(self.name)

    # -- faults ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        if self.state is State.RUNNING:
            self.state = State.PAUSED

    def resume(self) -> None:
        if self.state is State.PAUSED:
            self.state = State.RUNNING
            turns, self.set_aside = self.set_aside, []
            for handle in turns:
                self._loop.run_soon(handle)

    def die(self) -> None:
        """As SIGKILL: no further turn. The network learns it through `closers`."""
        if self.is_dead:
            return
        self.state = State.DEAD
        self.set_aside.clear()
        self.tasks = self._loop.tasks_of(self)
        closers, self.closers = self.closers, {}
        for close in closers.values():
            close()
        self._died.set_result(None)


def current_process() -> "Process | None":
    return CURRENT.get()
