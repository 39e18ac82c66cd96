"""Group commit: many appends, one fdatasync.

One per log directory. A log with unsynced bytes is queued; as long as workers are free, queued logs are shared
out among them, each log being synced by one worker at a time. What is appended while a sync runs goes into the
next one, so the number of syncs adapts to the speed of the disk. A failed sync is never retried: the kernel may
have dropped the dirty pages, so a second success would prove nothing.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from penstock.log.disk import OsDisk
from penstock.log.sync import SyncPlan
from penstock.log.unsynced import complete_sync, plan_sync
from penstock.log.write_back import IS_SUPPORTED, begin_write_back
from penstock.model.lanes import IoPool, as_os_error
from penstock.model.ports import Disk, DiskFile

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

_NO_SPACE_RETRY_S = 0.5
_PLANS_PER_WORKER = 8
"""Few enough that the first log of a share does not wait long for the last one."""


class GroupCommit:
    """Used on the loop only; other threads see nothing but `SyncPlan.run`. On a real disk they are the lane of the
    node's pool; elsewhere, as in the simulator, it is what the loop says."""

    __slots__ = (
        "_deferred",
        "_disk",
        "_free_workers",
        "_lane",
        "_loop",
        "_on_failed",
        "_pool",
        "_queued",
        "_scheduled",
        "_stopped",
        "_syncing",
        "_waiters",
        "_write_backs",
        "syncs",
    )

    def __init__(
        self,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        pool: Executor | None,
        on_failed: Callable[[OSError], None],
        *,
        workers: int = 4,
    ) -> None:
        self._disk = disk
        self._loop = loop
        self._pool = pool
        self._on_failed = on_failed
        self._free_workers = workers
        lanes = pool if isinstance(pool, IoPool) and isinstance(disk, OsDisk) else None
        self._lane = lanes.syncs if lanes is not None else None
        self._write_backs = lanes.write_backs if lanes is not None else None
        self._queued: dict[PartitionLog, None] = {}
        self._syncing: set[PartitionLog] = set()
        self._deferred: dict[PartitionLog, asyncio.TimerHandle] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._scheduled = False
        self._stopped = False
        self.syncs = 0
        """Plans run so far: how many fdatasyncs the appends cost."""

    def request(self, log: "PartitionLog", upto_offset: int | None = None) -> None:
        """`log` has bytes to sync; its `on_synced` tells when. Cheap enough for every append."""
        if self._stopped or (upto_offset is not None and log.synced_end_offset >= upto_offset):
            return
        self._queued[log] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._share_out)

    def defer(self, log: "PartitionLog", delay_ms: int) -> None:
        """Sync `log` within `delay_ms` (`flush.mode` = interval)."""
        if log not in self._deferred and not self._stopped:
            self._deferred[log] = self._loop.call_later(delay_ms / 1000, self._due, log)

    def write_back(self, file: DiskFile, piece: range) -> None:
        """The kernel is to begin to write these bytes; nobody waits for it, and no sync waits behind it."""
        if self._write_backs is not None and IS_SUPPORTED and not self._stopped:
            self._write_backs.run(self._loop, partial(_write_back, file, piece), _no_matter)

    async def drain(self) -> None:
        """Returns when nothing is queued or running."""
        while self._queued or self._syncing or self._scheduled:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def stop(self) -> None:
        """No new syncs are started; running ones finish."""
        self._stopped = True
        self._queued.clear()
        for handle in self._deferred.values():
            handle.cancel()
        self._deferred.clear()
        self._wake()

    def _due(self, log: "PartitionLog") -> None:
        self._deferred.pop(log, None)
        self.request(log)

    def _share_out(self) -> None:
        self._scheduled = False
        ready = [log for log in self._queued if log not in self._syncing]
        if not ready or not self._free_workers or self._stopped:
            self._wake()
            return
        workers = min(self._free_workers, len(ready))
        del ready[workers * _PLANS_PER_WORKER :]
        for log in ready:
            del self._queued[log]
        for worker in range(workers):
            plans = [plan for log in ready[worker::workers] if (plan := plan_sync(log)) is not None]
            if plans:
                self._start(plans)
        self._wake()

    def _start(self, plans: list[SyncPlan]) -> None:
        self._free_workers -= 1
        self._syncing.update(plan.log for plan in plans)
        self.syncs += len(plans)
        if self._lane is not None:
            self._lane.run(self._loop, partial(_run_plans, plans, self._disk), partial(self._finish, plans))
            return
        future = self._loop.run_in_executor(self._pool, _run_plans, plans, self._disk)
        future.add_done_callback(lambda done: self._leave(plans, done))

    def _leave(self, plans: list[SyncPlan], done: "asyncio.Future[OSError | None]") -> None:
        if done.cancelled():
            self._free(plans)  # the pool was shut down before it came to them: nothing is synced
            self._wake()
            return
        fault = done.exception()
        self._finish(plans, done.result() if fault is None else as_os_error(fault))
        if fault is not None:
            raise fault  # as a lane does

    def _free(self, plans: list[SyncPlan]) -> None:
        self._free_workers += 1
        self._syncing.difference_update(plan.log for plan in plans)

    def _finish(self, plans: list[SyncPlan], error: OSError | None) -> None:
        self._free(plans)
        if error is not None:
            self.stop()
            self._on_failed(error)
            return
        for plan in plans:
            complete_sync(plan)
            if plan.no_space:
                self._loop.call_later(_NO_SPACE_RETRY_S, self.request, plan.log)
        if self._queued and not self._scheduled and not self._stopped:
            self._share_out()
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiters and not self._queued and not self._syncing:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)


def _run_plans(plans: list[SyncPlan], disk: Disk) -> OSError | None:
    """Whatever else is raised here counts as a failed sync, too: nobody knows how far the plan came."""
    for plan in plans:
        try:
            plan.run(disk)
        except OSError as error:
            if not plan.log.is_deleted:  # a deleted partition's files may be gone
                return error
    return None


def _write_back(file: DiskFile, piece: range) -> None:
    begin_write_back(file.fileno(), piece)


def _no_matter(_: OSError | None) -> None:
    """Whether it was begun: the kernel writes it anyway, later."""
