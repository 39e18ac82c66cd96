"""Work that is handed to threads comes back to the loop, however it ends."""

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.lanes import IoPool, Lane
from tests.waiting import eventually_async


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def test_results_and_errors_come_to_the_loop() -> None:
    async def live() -> None:
        loop = asyncio.get_running_loop()
        lane, told, faults = Lane("lane-told", 2), list[Any](), list[dict[str, Any]]()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        full = OSError(28, "no space")

        def done(result: object) -> None:
            assert threading.current_thread() is threading.main_thread()
            told.append(result)

        lane.run(loop, lambda: 1, done)
        lane.run(loop, failing(full), done)
        lane.run(loop, failing(ValueError("a fault")), done)
        lane.run(loop, lambda: 2, done)
        await eventually_async(lambda: len(told) == 4 and len(faults) == 1)
        (fault,) = set(told) - {1, 2, full}
        assert isinstance(fault, OSError)
        assert (fault.errno, str(fault.__cause__)) == (errno.EIO, "a fault")
        assert "a fault" in str(faults[0]["exception"])
        lane.close(wait=True)

    asyncio.run(live())


def test_whoever_waits_is_told_though_there_was_no_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def live() -> None:
        loop = asyncio.get_running_loop()
        lane, told, refused = Lane("lane-memory", 1), list[int](), list[bool]()
        call = loop.call_soon_threadsafe

        def short_of_memory(*arguments: Any) -> object:
            if len(refused) < 2:
                refused.append(True)
                raise MemoryError
            return call(*arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", short_of_memory)
        lane.run(loop, lambda: 1, told.append)
        await eventually_async(lambda: told == [1])
        lane.run(loop, lambda: 2, told.append)
        await eventually_async(lambda: told == [1, 2])
        lane.close(wait=True)

    asyncio.run(live())


def test_without_another_thread_the_work_is_done_by_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is none, it has failed."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def live() -> None:
        loop = asyncio.get_running_loop()
        lane, told = Lane("lane-threads", 2), list[Any]()
        loop.set_exception_handler(lambda *_: None)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            lane.run(loop, lambda: 1, told.append)
            await eventually_async(lambda: told)
        assert isinstance(told.pop(), OSError)
        lane.run(loop, lambda: 2, told.append)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            lane.run(loop, lambda: 3, told.append)
        await eventually_async(lambda: told == [2, 3])
        lane.close(wait=True)

    asyncio.run(live())


def test_there_are_as_many_threads_as_work_under_way_and_no_more() -> None:
    def names() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("lane-many")}

    async def live() -> None:
        loop = asyncio.get_running_loop()
        lane, gate, told = Lane("lane-many", 3), threading.Event(), list[bool]()
        for _ in range(5):
            lane.run(loop, lambda: True, told.append)
            await eventually_async(lambda: len(told) > 0)
            told.clear()
        assert names() == {"lane-many-0"}
        for _ in range(8):
            lane.run(loop, lambda: gate.wait(20), told.append)
        assert names() == {"lane-many-0", "lane-many-1", "lane-many-2"}
        gate.set()
        await eventually_async(lambda: told == [True] * 8)
        lane.close(wait=True)
        assert names() == set()

    asyncio.run(live())


def test_a_pool_that_is_shut_down_waits_for_its_syncs() -> None:
    pool, begun, gate, finished = IoPool(2), threading.Event(), threading.Event(), list[bool]()

    def sync() -> None:
        begun.set()
        finished.append(gate.wait(20))

    async def live() -> None:
        pool.syncs.run(asyncio.get_running_loop(), sync, lambda _: None)
        await asyncio.to_thread(begun.wait, 20)

    asyncio.run(live())  # the loop ends before the sync does
    threading.Timer(0.05, gate.set).start()
    pool.shutdown(wait=True)
    assert finished == [True]
