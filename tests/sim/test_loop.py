"""The loop of the simulator: virtual time, order, processes that stop in the middle of things, pools."""

import asyncio
import gc
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.sim.loop import Deadlock, OutOfTime, SimLoop
from penstock.sim.process import Process, ProcessDied
from penstock.sim.world import World


def test_time_jumps_to_the_next_timer_and_moves_with_every_turn() -> None:
    loop = SimLoop(1)

    async def story() -> list[float]:
        times = [loop.time()]
        await asyncio.sleep(3600)
        times.append(loop.time())
        await asyncio.sleep(0)
        times.append(loop.time())
        return times

    start, later, last = loop.run(story())
    assert 3600 < later - start < 3600.001
    assert 1e-6 <= last - later < 1e-4


def test_timers_of_one_moment_run_in_the_order_they_were_set() -> None:
    loop = SimLoop(1)
    ran: list[int] = []

    async def story() -> None:
        moment = loop.time() + 1
        for number in range(20):
            loop.call_at(moment, ran.append, number)
        await asyncio.sleep(2)

    loop.run(story())
    assert ran == list(range(20))


def test_waiting_for_nothing_is_a_deadlock() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        loop.run(story())


def test_work_that_takes_too_long_is_out_of_time() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1)

    with pytest.raises(OutOfTime):
        loop.run(story(), limit_s=10)


def test_asyncio_timeouts_and_gather_work() -> None:
    loop = SimLoop(1)

    async def story() -> list[int]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.sleep(2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(5), 1)
        return await asyncio.gather(*(asyncio.sleep(1, number) for number in range(3)))

    assert loop.run(story()) == [0, 1, 2]


async def _count(ticks: list[float], loop: SimLoop) -> None:
    while True:
        await asyncio.sleep(1)
        ticks.append(loop.time())


def test_a_paused_process_gets_its_turns_later() -> None:
    loop = SimLoop(1)
    ticks: list[float] = []

    async def story() -> tuple[int, int, int]:
        process = Process(loop, "p", "h")
        process.spawn(_count(ticks, loop))
        await asyncio.sleep(3.5)
        before = len(ticks)
        process.pause()
        await asyncio.sleep(10)
        during = len(ticks)
        process.resume()
        await asyncio.sleep(0.2)
        return before, during, len(ticks)

    assert loop.run(story()) == (3, 3, 4)


def test_a_dead_process_never_gets_another_turn_and_its_callers_learn_it() -> None:
    loop = SimLoop(1)
    ticks: list[float] = []

    async def story() -> None:
        process = Process(loop, "p", "h")
        loop.call_later(3.5, process.die)
        with pytest.raises(ProcessDied):
            await process.call(_count(ticks, loop))
        await asyncio.sleep(10)

    loop.run(story())
    assert len(ticks) == 3


def _die_and_make_a_task() -> None:
    world = World(1)
    process = world.begin_process("p")

    async def last_words() -> None:
        process.die()
        asyncio.get_running_loop().create_task(asyncio.sleep(1))

    async def story() -> None:
        process.spawn(last_words())
        await asyncio.sleep(1)

    world.run(story())


def test_a_task_made_in_the_turn_of_death_ends_with_its_world() -> None:
    """Nobody will ever run it, and nobody may be left to complain that it was not awaited."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _die_and_make_a_task()
        gc.collect()
    assert [each for each in told if "never awaited" in str(each.message)] == []


def test_pool_work_takes_time_and_is_cut_off_by_death() -> None:
    loop = SimLoop(1)
    done: list[str] = []
    pool = ThreadPoolExecutor(1)

    async def work() -> None:
        await loop.run_in_executor(pool, done.append, "ran")
        done.append("told")

    async def story() -> None:
        process = Process(loop, "p", "h")
        loop.default_pool_times.low_s = loop.default_pool_times.high_s = 1.0
        process.spawn(work())
        process.spawn(work())
        await asyncio.sleep(0.99)
        assert done == ["ran"], "in the midst of its time; one worker, and its answer comes at the end"
        await asyncio.sleep(0.02)
        assert done[:2] == ["ran", "told"]
        process.die()
        await asyncio.sleep(5)

    loop.run(story())
    assert done in (["ran", "told"], ["ran", "told", "ran"])


def test_pool_work_that_was_begun_cannot_be_called_off() -> None:
    """As a thread: what waits for one never begins, what has one goes on to its end."""
    loop = SimLoop(1)
    ran: list[str] = []
    pool = ThreadPoolExecutor(1)

    async def story() -> None:
        begun, waiting, last = (loop.run_in_executor(pool, ran.append, name) for name in ("begun", "waiting", "last"))
        begun.cancel()
        waiting.cancel()
        await last

    loop.run(story())
    assert ran == ["begun", "last"]


def test_an_exception_of_the_pool_reaches_the_caller() -> None:
    loop = SimLoop(1)

    async def story() -> None:
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    loop.run(story())


def test_what_nobody_handled_is_kept_with_the_name_of_its_process() -> None:
    loop = SimLoop(1)

    async def fail() -> None:
        raise ValueError("lost")

    async def story() -> None:
        process = Process(loop, "p", "h")
        process.spawn(fail())
        loop.call_soon(lambda: 1 // 0, context=process.context())
        await asyncio.sleep(1)

    loop.run(story())
    assert [type(fault["exception"]).__name__ for fault in loop.faults] == ["ZeroDivisionError", "ValueError"] or [
        type(fault["exception"]).__name__ for fault in loop.faults
    ] == ["ValueError", "ZeroDivisionError"]
    assert {fault["process"] for fault in loop.faults} <= {"p", "the world"}


def test_the_worlds_own_empty_context_is_a_context() -> None:
    """A future that a process completes wakes the world in the world's context, not in that process's."""
    loop = SimLoop(1)

    async def finish(future: asyncio.Future[None]) -> None:
        future.set_result(None)

    async def story() -> None:
        process = Process(loop, "p", "h")
        future: asyncio.Future[None] = loop.create_future()
        process.spawn(finish(future))
        await future
        process.die()
        await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))

    import contextvars

    contextvars.Context().run(loop.run, story())
