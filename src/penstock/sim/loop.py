"""An asyncio event loop whose time is a number and whose chances are a seed.

Hard rules:
- Nothing here looks at the real world: no clock, no socket, no thread. Every turn costs `STEP_S` of virtual time;
  when nothing is ready the clock jumps to the next timer; when there is none either, that is a deadlock.
- The same seed gives the same order of turns, in every process: timers of one moment run in the order in which they
  were set, and tasks and futures hash by their number, not by their address.
- Work for a pool takes seeded time, runs in one piece at any moment of it, and is answered at its end: a crash can
  come before a sync, or between a sync and the news of it, and what is written in between is not in that sync. Only
  a crash: whoever gives up waiting for work that was begun does not stop it, as nobody stops a thread.
"""

import asyncio
import contextvars
import heapq
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from penstock.sim.process import CURRENT, Process, State

if TYPE_CHECKING:
    from penstock.sim.network import Network

T = TypeVar("T")

STEP_S = 2e-6
"""What one turn costs. Not nothing: code that waits for time to pass must see it pass."""


class Deadlock(Exception):
    """Nothing is ready and nothing is due: whoever still waits will wait for ever."""


class OutOfTime(Exception):
    """The work did not end within the virtual time given to it."""


class SimHandle(asyncio.TimerHandle):
    """A turn to come. Stands in for asyncio's handles, which would ask the loop for things it does not have."""

    __slots__ = ("callback", "context", "moment", "parameters", "process")

    def __init__(
        self,
        moment: float,
        callback: Callable[..., object],
        parameters: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self.moment = moment
        self.callback: Callable[..., object] | None = callback
        self.parameters = parameters
        self.context = context
        self.process = cast(Process | None, context.get(CURRENT))

    def cancel(self) -> None:
        self.callback = None
        self.parameters = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.moment

    def __repr__(self) -> str:
        return f"<turn at {self.moment:.6f}: {self.callback}>"


class SimFuture(asyncio.Future[T]):
    def __init__(self, loop: "SimLoop") -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()

    def __hash__(self) -> int:
        return self._number


class SimTask(asyncio.Task[T]):
    def __init__(self, coro: Any, loop: "SimLoop", name: str | None, context: contextvars.Context | None) -> None:
        self._number = loop.next_number()
        self.process = (context.get(CURRENT) if context is not None else None) or CURRENT.get()
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)
        if self.process is not None:
            # A dead process never finishes its tasks: that is no news.
            self._log_destroy_pending = False
            if self.process.is_dead:  # made in the turn in which it died: nobody else will ever know of it
                self.process.tasks.append(self)

    def __hash__(self) -> int:
        return self._number


class PoolTimes:
    """How long work in a pool takes: drawn uniformly; the world makes a disk slow by raising it."""

    __slots__ = ("high_s", "low_s")

    def __init__(self, low_s: float = 50e-6, high_s: float = 2e-3) -> None:
        self.low_s = low_s
        self.high_s = high_s


class _Pool:
    """The workers of one executor."""

    __slots__ = ("free", "queue")

    def __init__(self, workers: int) -> None:
        self.free = workers
        self.queue: deque[tuple[asyncio.Future[Any], Callable[[], None]]] = deque()

    def begin_next(self) -> None:
        """What was called off while it waited for a worker never begins."""
        while self.queue:
            future, begin = self.queue.popleft()
            if not future.cancelled():
                begin()
                return


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(f"{seed}:loop")
        self.turns = 0
        self.faults: list[dict[str, Any]] = []
        """What nobody handled: exceptions of callbacks and of tasks whose result nobody took."""
        self.after_turn: Callable[[Process], None] | None = None
        """Called after every turn of a process; turns of the world itself change no node."""
        self.pool_times: dict[str, PoolTimes] = {}
        """By host; hosts that are not there have `default_pool_times`."""
        self.default_pool_times = PoolTimes()
        self.network: Network | None = None
        self._now = 1.0  # not 0: code may take 0 for "never"
        self._ready: deque[SimHandle] = deque()
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._numbers = 0
        self._pools: dict[int, _Pool] = {}
        self._pool_owners: list[object] = []  # keeps their ids from being given to others
        self._stopping = False
        self._running = False
        self._closed = False

    # -- time and turns -------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(self._now, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def run_soon(self, handle: SimHandle) -> None:
        self._ready.append(handle)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        when = self._now + delay
        handle = SimHandle(when, callback, args, contextvars.copy_context() if context is None else context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> SimHandle:
        handle = SimHandle(when, callback, args, contextvars.copy_context() if context is None else context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, handle))
        return handle

    def _run_turns(self, is_done: Callable[[], bool], end: float) -> None:
        """Turns of processes, and jumps of the clock where nobody is ready, until it is done. The hottest place of
        the simulator: hence in one piece."""
        timers, ready, pop = self._timers, self._ready, heapq.heappop
        while not is_done():
            now = self._now
            while timers and timers[0][0] <= now:
                ready.append(pop(timers)[2])
            if not ready:
                self._jump()
                if self._now > end:
                    raise OutOfTime(f"not done at {end:g} s of virtual time")
                continue
            handle = ready.popleft()
            callback = handle.callback
            if callback is None:
                continue  # cancelled
            process = handle.process
            if process is not None and process.state:
                if process.state is State.PAUSED:
                    process.set_aside.append(handle)
                continue
            self.turns += 1
            self._now = now + STEP_S
            try:
                handle.context.run(callback, *handle.parameters)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"a turn failed: {callback}", "exception": error}, process)
            if self.after_turn is not None and process is not None:
                self.after_turn(process)

    def _jump(self) -> None:
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not timers:
            raise Deadlock(f"nothing is ready and no timer is set at {self._now:.6f}")
        self._now = max(self._now, timers[0][0])

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = 1e9) -> T:
        """Runs until the work is done. Raises `Deadlock`, or `OutOfTime` after that much virtual time."""
        asyncio.set_event_loop(None)
        before, self._running = asyncio._get_running_loop(), True
        asyncio._set_running_loop(self)
        try:
            main = self.create_task(work)
            main.add_done_callback(_look_at_result)
            self._run_turns(main.done, self._now + limit_s)
            return main.result()
        finally:
            self._running = False
            asyncio._set_running_loop(before)

    def run_forever(self) -> None:
        self._stopping = False
        self._run_turns(lambda: self._stopping, float("inf"))

    def run_until_complete(self, future: Any) -> Any:
        return self.run(future)

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    async def shutdown_asyncgens(self) -> None: ...

    async def shutdown_default_executor(self) -> None: ...

    # -- futures, tasks, faults -----------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture(self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        return SimTask(coro, self, name, context)

    def tasks_of(self, process: Process | None) -> list[asyncio.Task[Any]]:
        """Its unfinished tasks, oldest first."""
        tasks = [task for task in asyncio.all_tasks(self) if getattr(task, "process", None) is process]
        return sorted(tasks, key=hash)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None: ...

    def get_exception_handler(self) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any], process: Process | None = None) -> None:
        process = process or CURRENT.get()
        if process is not None and process.is_dead:
            return  # it died in the middle of this
        context["process"] = process.name if process is not None else "the world"
        self.faults.append(context)

    # -- pools ----------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()
        pool = self._pools.get(id(executor))
        if pool is None:
            pool = self._pools[id(executor)] = _Pool(getattr(executor, "_max_workers", 4))
            self._pool_owners.append(executor)
        process = CURRENT.get()
        times = self.pool_times.get(process.host if process is not None else "", self.default_pool_times)

        def begin() -> None:
            pool.free -= 1
            seconds = self.random.uniform(times.low_s, times.high_s)
            before_s = seconds * self.random.random()
            self.call_later(before_s, work, seconds - before_s)

        def work(after_s: float) -> None:
            result: T | None = None
            error: Exception | None = None
            try:  # also when nobody waits for it any more: a thread at work cannot be called off
                result = func(*args)
            except Exception as raised:  # the pool's edge: it is the caller's to handle
                error = raised
            self.call_later(after_s, finish, result, error)

        def finish(result: T | None, error: Exception | None) -> None:
            pool.free += 1
            pool.begin_next()
            _settle(future, result, error)

        if pool.free:
            begin()
        else:
            pool.queue.append((future, begin))
        return future

    # -- network --------------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        assert self.network is not None
        address = self.network.resolve(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, int(port or 0)))]

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert self.network is not None
        return self.network.create_server(protocol_factory, host, port, **options)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        assert self.network is not None
        return await self.network.create_connection(protocol_factory, host, port, **options)


def _settle(future: asyncio.Future[T], result: T | None, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(cast(T, result))


def _look_at_result(task: asyncio.Task[Any]) -> None:
    """What the main task raises is raised by `run`, also when a deadlock gets in first."""
    if not task.cancelled():
        task.exception()
