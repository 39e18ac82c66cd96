"""What happens by the clock: retention, compaction, scrubbing, checkpoints, disk usage, producers, lost clients, lag.

Each chore runs by itself at its own interval. A chore that fails with a fault of the disk has failed that directory
already; it is logged and the others go on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.broker.compaction import Compaction
from penstock.log.checkpoints import parse_directory_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.housekeeping")

_REACHABILITY_INTERVAL_S = 5.0
_SCRUB_LOOK_MS = 10_000
_PARTITIONS_PER_TURN = 20


class Housekeeping:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.compaction = Compaction(broker)
        self._scrubbed_s = broker.clock.monotonic()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        settings = self._broker.settings
        self._every(lambda: self._broker.settings.log_dir_usage_check_interval_ms, self.check_usage)
        self._every(lambda: self._broker.settings.log_flush_offset_checkpoint_interval_ms, self.write_checkpoints)
        self._every(
            lambda: self._broker.settings.log_retention_check_interval_ms,
            self.apply_retention,
            first_ms=settings.log_initial_task_delay_ms,
        )
        self._every(lambda: self._broker.settings.log_cleaner_backoff_ms, self.compact_logs)
        self._every(self._scrub_look_ms, self.scrub)
        self._every(lambda: self._broker.settings.producer_id_expiration_check_interval_ms, self.expire_producers)
        self._every(lambda: int(_REACHABILITY_INTERVAL_S * 1000), self.look_for_lost_clients)
        self._every(lambda: self._broker.settings.replica_lag_time_max_ms // 2, self.shrink_isrs)
        self._every(lambda: self._broker.settings.broker_session_timeout_ms // 10, self.check_standing)
        self._every(
            lambda: self._broker.settings.replica_high_watermark_checkpoint_interval_ms, self.write_high_watermarks
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def _every(
        self, interval_ms: Callable[[], int], chore: Callable[[], Awaitable[None]], first_ms: int | None = None
    ) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._repeat(interval_ms, chore, first_ms)))

    async def _repeat(
        self, interval_ms: Callable[[], int], chore: Callable[[], Awaitable[None]], first_ms: int | None
    ) -> None:
        pause_ms = first_ms if first_ms is not None else interval_ms()
        while True:
            await asyncio.sleep(max(pause_ms, 10) / 1000)
            try:
                await chore()
            except OSError as error:
                log.error("%s: %s", getattr(chore, "__name__", "chore"), error)
            except Exception:  # the edge of a task: a bug costs this turn, not retention for ever
                log.exception("%s failed", getattr(chore, "__name__", "chore"))
            pause_ms = interval_ms()

    # -- chores ---------------------------------------------------------------------------------------------------

    async def check_usage(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._broker.pool, self._broker.logs.check_usage)

    async def write_checkpoints(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._broker.pool, self._broker.logs.write_checkpoints)

    async def check_standing(self) -> None:
        self._broker.replicas.check_standing()

    async def shrink_isrs(self) -> None:
        self._broker.replicas.shrink_isrs()

    async def write_high_watermarks(self) -> None:
        """Only replicas need them: who is alone knows at the start that it has what it has."""
        if self._broker.replicas.has_replicated:
            await asyncio.get_running_loop().run_in_executor(
                self._broker.pool, self._broker.logs.write_high_watermarks
            )

    async def apply_retention(self) -> None:
        """Looks at every partition that has data, opening those that were not used since the start."""
        broker = self._broker
        await self._open_what_is_on_disk()
        deleted = 0
        for number, partition in enumerate(broker.partitions):
            deleted += partition.log.apply_retention(broker.clock.now_ms(), partition.high_watermark)
            if number % _PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        if deleted:
            log.info("retention deleted %d segments", deleted)

    async def _open_what_is_on_disk(self) -> None:
        broker = self._broker
        for directory in broker.logs.directories:
            for name in list(directory.on_disk):
                found = parse_directory_name(name)
                if found is not None and name not in directory.logs:
                    await broker.partitions.open(*found)

    async def compact_logs(self) -> None:
        await self.compaction.run()

    def _scrub_look_ms(self) -> int:
        return min(self._broker.settings.log_scrub_interval_ms or _SCRUB_LOOK_MS, _SCRUB_LOOK_MS)

    async def scrub(self) -> None:
        """Whether it is time for it is looked at often: the interval may change."""
        interval_ms = self._broker.settings.log_scrub_interval_ms
        if interval_ms and (self._broker.clock.monotonic() - self._scrubbed_s) * 1000 >= interval_ms:
            from penstock.broker.scrub import Scrub

            await Scrub(self._broker).run()
            self._scrubbed_s = self._broker.clock.monotonic()

    async def expire_producers(self) -> None:
        now_ms = self._broker.clock.now_ms()
        for partition in self._broker.partitions:
            partition.log.expire_producers(now_ms)

    async def look_for_lost_clients(self) -> None:
        for line in self._broker.reachability.overdue(self._broker.clock.monotonic()):
            log.warning("%s", line)
