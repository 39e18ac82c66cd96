"""Deleting files late: renamed to `.deleted` first, removed after `file.delete.delay.ms`.

Before a file goes, the log start offset that makes it dispensable is made durable; otherwise a crash could bring
back an old segment behind a gap. Open spans keep their file readable in any case.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from penstock.log.sync import NO_SPACE_ERRORS
from penstock.model.ports import Disk

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

DELETED_SUFFIX = ".deleted"
SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")


class Deletions:
    """One per log directory. Without a loop (tests, shutdown) everything happens at once."""

    __slots__ = ("_before", "_disk", "_fail", "_loop", "_pool", "_queue", "_running", "_timers")

    def __init__(self, disk: Disk, before: Callable[[], None], fail: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._before = before
        """Blocking; makes log start offsets durable."""
        self._fail = fail
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Executor | None = None
        self._queue: list[tuple[PartitionLog, str]] = []
        self._running = False
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def start(self, loop: asyncio.AbstractEventLoop, pool: Executor | None) -> None:
        self._loop = loop
        self._pool = pool

    def delete_segment(self, log: "PartitionLog", path: str) -> None:
        """`path` without suffix. Loop-safe: the work is done in the pool."""
        self._queue.append((log, path))
        if self._loop is None:
            self._remove_all(self._rename_all(self._take_queue()))
        elif not self._running:
            self._running = True
            self._loop.call_soon(self._start_job)

    def cancel_timers(self) -> None:
        """Called on the loop; `finish` does at once what the timers would have done."""
        for timer in self._timers.values():
            timer.cancel()
        self._loop = None

    def finish(self) -> None:
        """Blocking. Deletes what is left at once."""
        while self._timers:
            _remove(self._disk, self._timers.popitem()[0])
        self._remove_all(self._rename_all(self._take_queue()))

    def _take_queue(self) -> "list[tuple[PartitionLog, str]]":
        taken, self._queue = self._queue, []
        return taken

    def _start_job(self) -> None:
        if self._loop is None:
            return
        future = self._loop.run_in_executor(self._pool, self._rename_all, self._take_queue())
        future.add_done_callback(self._renamed)

    def _renamed(self, done: "asyncio.Future[list[tuple[str, int]]]") -> None:
        self._running = False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, OSError):
            self._fail(error)
            return
        if self._loop is None:
            self._remove_all(done.result())
            return
        for path, delay_ms in done.result():
            self._timers[path] = self._loop.call_later(delay_ms / 1000, self._due, path)
        if self._queue:
            self._running = True
            self._start_job()

    def _due(self, path: str) -> None:
        self._timers.pop(path, None)
        if self._loop is not None:
            self._loop.run_in_executor(self._pool, _remove, self._disk, path)

    def _rename_all(self, segments: "list[tuple[PartitionLog, str]]") -> list[tuple[str, int]]:
        """Blocking. Oldest first, so that a crash in between leaves no gap."""
        if not segments:
            return []
        try:
            self._before()
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:  # a full disk must not keep us from making room
                raise
        renamed = []
        for log, path in segments:
            for suffix in SEGMENT_SUFFIXES:
                if log.is_deleted:  # a new topic may have taken the path
                    break
                with contextlib.suppress(FileNotFoundError):
                    self._disk.rename(path + suffix, path + suffix + DELETED_SUFFIX)
                    renamed.append((path + suffix + DELETED_SUFFIX, log.config.file_delete_delay_ms))
        return renamed

    def _remove_all(self, renamed: list[tuple[str, int]]) -> None:
        for path, _ in renamed:
            _remove(self._disk, path)


def _remove(disk: Disk, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)
