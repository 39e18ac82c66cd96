"""Threads that wait in an event loop's stead, for work that is so frequent that handing it over counts.

`loop.run_in_executor` makes two futures that watch each other, with locks of their own: 46 µs for work that does
nothing. A queue of the interpreter's own and a callback take 23.
"""

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
_RETRY_S = 0.01


class _Work(NamedTuple):
    loop: asyncio.AbstractEventLoop
    do: Callable[[], Any]
    done: Callable[[Any], None]


class Lane:
    """Used on one loop. Threads begin when there is more work under way than they can do."""

    def __init__(self, name: str, most_threads: int) -> None:
        self._name = name
        self._most_threads = most_threads
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0

    def run(self, loop: asyncio.AbstractEventLoop, do: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        """`done` is called on the loop, once, with what `do` returned, or with the OSError it raised.

        Whatever else it raised is a fault, which the loop reports; `done` gets it as an OSError."""
        self._under_way += 1
        if len(self._threads) < min(self._under_way, self._most_threads):
            try:
                self._begin_thread()
            except (RuntimeError, MemoryError) as error:  # the system gives no more threads
                if not self._threads:
                    loop.call_soon(self._finish, done, error)
                    return
        self._queue.put(_Work(loop, do, done))

    def close(self, *, wait: bool = False) -> None:
        """What was asked for before is still done, and told if there is a loop left to tell."""
        threads, self._threads = self._threads, []
        for _ in threads:
            self._queue.put(None)
        if wait:
            for thread in threads:
                thread.join()

    def _begin_thread(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            try:
                result = work.do()
            except Exception as error:
                result = error
            self._tell(work, result)
            del work, result  # files and sockets are not held until the next work comes

    def _tell(self, work: _Work, result: Any) -> None:
        while True:
            try:
                work.loop.call_soon_threadsafe(self._finish, work.done, result)
                return
            except RuntimeError:  # the loop has ended, and with it whoever waited
                return
            except MemoryError:  # somebody waits for this
                time.sleep(_RETRY_S)

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        self._under_way -= 1
        if not isinstance(result, Exception) or isinstance(result, OSError):
            done(result)
            return
        done(as_os_error(result))
        raise result


def as_os_error(fault: BaseException) -> OSError:
    """For those who know what to do when a disk fails: work that ended in any other way is no more done."""
    error = OSError(errno.EIO, f"{type(fault).__name__}: {fault}")
    error.__cause__ = fault
    return error


class IoPool(ThreadPoolExecutor):
    """Threads for whatever waits for a disk. Syncs, of which every append may need one, have a lane of their own, and
    so has what nobody waits for, which a busy disk may hold up for seconds."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads, thread_name_prefix="penstock-io")
        self.syncs = Lane("penstock-sync", threads)
        self.write_backs = Lane("penstock-write-back", 1)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.syncs.close(wait=wait)
        self.write_backs.close(wait=wait)
        super().shutdown(wait, cancel_futures=cancel_futures)
