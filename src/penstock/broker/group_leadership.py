"""Which shards of groups this broker leads: loaded in the pool, told of topics, given to the one who serves them."""

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.broker.coordinator_leadership import CoordinatorLeadership, OnLost
from penstock.broker.group_jobs import JobRunner
from penstock.broker.group_loader import ShardLoader
from penstock.broker.group_partition import CoordinatorPartition, OpenPartition
from penstock.broker.group_shards import LedShard, coordinator_error
from penstock.broker.offset_sweeper import OffsetSweeper
from penstock.groups.config import GroupConfig
from penstock.groups.decision import Job, Now
from penstock.groups.shard import GroupShard
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode
from penstock.model.ports import Clock, Rng

log = logging.getLogger("penstock.groups")


class ShardRun(NamedTuple):
    """What shards run with; the same for all of them."""

    config: GroupConfig
    clock: Clock
    rng: Rng
    pool: Executor | None
    open_partition: OpenPartition
    load_buffer_bytes: int
    commit_timeout_ms: int

    def now(self) -> Now:
        clock = self.clock
        return Now(int(clock.monotonic() * 1000), clock.now_ms())


class GroupLeadership(CoordinatorLeadership[LedShard]):
    def __init__(self, run: ShardRun, node_id: int, on_ready: Callable[[LedShard], None]) -> None:
        """`on_ready`: a shard is loaded, or has decided something by itself."""
        super().__init__("groups", node_id, run.open_partition, self._load_groups, self._loaded)
        self._run = run
        self._tell_ready = on_ready
        self._jobs = JobRunner(run.pool)
        self._sweeper = OffsetSweeper(self.active, run.now)
        self.image = MetadataImage()  # the newest; set from outside
        # Topics that were deleted while a shard was not loaded, by shard; in order, for the log of a simulated world.
        self._deleted: dict[int, dict[str, None]] = {}

    # -- following the image ----------------------------------------------------------------------------------------

    def follow_topics(self, changed: Collection[str], has_new: bool) -> None:
        """Topics of these names were created or deleted or got partitions: groups that subscribe to them follow."""
        for led in self.active.values():
            led.shard.follow(self.image, changed, has_new)

    def forget_topics(self, names: Collection[str]) -> None:
        """Topics were deleted: so are their offsets, in every shard."""
        for index in self.led_indexes():
            led = self.active.get(index)
            if led is None:
                self._deleted.setdefault(index, {}).update(dict.fromkeys(names))
            else:
                led.shard.forget_topics(names)
        self._sweeper.begin()

    def resign(self, index: int) -> None:
        super().resign(index)
        self._deleted.pop(index, None)

    def resign_all(self) -> None:
        super().resign_all()
        self._sweeper.stop()

    # -- loading ----------------------------------------------------------------------------------------------------

    async def _load_groups(self, partition: CoordinatorPartition, index: int, on_lost: OnLost) -> LedShard:
        run = self._run
        shard = GroupShard(run.config, run.rng)
        loader = ShardLoader(shard, partition, run.load_buffer_bytes)
        loop = asyncio.get_running_loop()
        while loader.has_more:
            await loop.run_in_executor(run.pool, loader.step)
        if shard.groups:
            await loop.run_in_executor(run.pool, shard.find_strays, self.image)
        if loader.record_count:
            log.info(
                "loaded %d groups with %d offsets from %d records of partition %d",
                len(shard.groups),
                shard.offset_count,
                loader.record_count,
                index,
            )
        return LedShard(shard, partition, run.commit_timeout_ms, on_lost, self._start_job)

    def _loaded(self, index: int, led: LedShard) -> None:
        led.begin()
        if led.closed:
            return
        now = self._run.now()
        led.shard.follow(self.image, (), True)
        led.apply(led.shard.finish_load(now), now)
        led.shard.forget_topics(self._deleted.pop(index, ()))
        self._sweeper.begin()
        self._tell_ready(led)

    def _client_error(self, error: ErrorCode) -> ErrorCode:
        return coordinator_error(error)

    # -- jobs -------------------------------------------------------------------------------------------------------

    def _start_job(self, led: LedShard, job: Job) -> None:
        self._jobs.start(job, lambda done: self._finish_job(led, done))

    def _finish_job(self, led: LedShard, job: Job) -> None:
        led.finish_job(job, self._run.now())
        if not led.closed:
            self._tell_ready(led)
