"""Which shards this broker leads: opened, loaded in the pool, served, closed, as the metadata image says.

A shard whose log cannot be read, or whose appended records were lost, is not served; it is loaded again after a
while, unless the image has moved it elsewhere by then.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import NamedTuple

from penstock.broker.group_jobs import JobRunner
from penstock.broker.group_loader import LoadFailed, ShardLoader
from penstock.broker.group_partition import CoordinatorPartition, OpenPartition
from penstock.broker.group_shards import LedShard, coordinator_error
from penstock.groups.config import GroupConfig
from penstock.groups.decision import Job, Now
from penstock.groups.shard import GroupShard
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Clock, Rng
from penstock.records.batch import CorruptBatch
from penstock.wire.errors import WireError

log = logging.getLogger("penstock.groups")

# A fresh partition loads in milliseconds: better to let a request wait than to send the client away.
_LOAD_WAIT_SECONDS = 1.0
_RELOAD_SECONDS = 1.0
_MAX_RELOAD_SECONDS = 60.0


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


class _Slot:
    """A partition led here, whether it is loaded already or not. `settled`: loaded, or failed to."""

    __slots__ = (
        "deleted_topics",
        "failures",
        "index",
        "leader_epoch",
        "led",
        "reload",
        "settled",
        "task",
        "topic_id",
    )

    def __init__(self, index: int, topic_id: bytes, leader_epoch: int) -> None:
        self.index = index
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.led: LedShard | None = None
        self.settled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.reload: asyncio.TimerHandle | None = None
        self.failures = 0  # in a row
        self.deleted_topics: list[str] = []  # while it loads


class GroupLeadership:
    def __init__(self, run: ShardRun, node_id: int, on_ready: Callable[[LedShard], None]) -> None:
        """`on_ready`: a shard is loaded, or has decided something by itself."""
        self._run = run
        self._node_id = node_id
        self._on_ready = on_ready
        self._jobs = JobRunner(run.pool)
        self._image = MetadataImage()
        self._slots: dict[int, _Slot] = {}
        self.active: dict[int, LedShard] = {}  # loaded ones, by partition
        self.partition_count = 0  # 0: the topic does not exist

    # -- following the image ----------------------------------------------------------------------------------------

    def follow(self, topic: TopicImage | None) -> None:
        """Leads exactly the partitions of `__consumer_offsets` that this image gives to this broker."""
        partitions = topic.partitions if topic is not None else ()
        topic_id = topic.id if topic is not None else b""
        self.partition_count = len(partitions)
        wanted = {
            index: partition.leader_epoch
            for index, partition in enumerate(partitions)
            if partition.leader == self._node_id
        }
        for slot in list(self._slots.values()):
            if slot.topic_id != topic_id or wanted.get(slot.index) != slot.leader_epoch:
                self.resign(slot.index)
        for index, leader_epoch in wanted.items():
            if index not in self._slots:
                self.become_leader(index, topic_id, leader_epoch)

    def become_leader(self, index: int, topic_id: bytes, leader_epoch: int) -> None:
        slot = self._slots[index] = _Slot(index, topic_id, leader_epoch)
        self._begin_load(slot)

    def resign(self, index: int) -> None:
        """Closes a shard; everybody who waits is told to look for the new coordinator."""
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        if slot.task is not None:
            slot.task.cancel()
        if slot.reload is not None:
            slot.reload.cancel()
        slot.settled.set()
        self._close_shard(slot, ErrorCode.NOT_COORDINATOR)

    def resign_all(self) -> None:
        for index in list(self._slots):
            self.resign(index)

    def follow_topics(self, image: MetadataImage, changed: Collection[str], has_new: bool) -> None:
        """Topics of these names were created or deleted or got partitions: groups that subscribe to them follow."""
        self._image = image
        for led in self.active.values():
            led.shard.follow(image, changed, has_new)

    def forget_topics(self, names: Collection[str]) -> None:
        """Topics were deleted: so are their offsets, in every shard."""
        for slot in self._slots.values():
            if slot.led is None:
                slot.deleted_topics += names
            else:
                now = self._run.now()
                slot.led.apply(slot.led.shard.decide_forget_topics(names, now), now)

    # -- finding a shard --------------------------------------------------------------------------------------------

    async def find(self, index: int) -> LedShard | ErrorCode:
        """The shard, after waiting a little for its load, or why there is none."""
        slot = self._slots.get(index)
        if slot is not None and not slot.settled.is_set():
            try:
                await asyncio.wait_for(slot.settled.wait(), _LOAD_WAIT_SECONDS)
            except TimeoutError:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return self.active.get(index) or self.why_not(index)

    def why_not(self, index: int) -> ErrorCode:
        """Why a shard is not active."""
        slot = self._slots.get(index)
        if slot is None:
            return ErrorCode.NOT_COORDINATOR
        loading = not slot.settled.is_set()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.COORDINATOR_NOT_AVAILABLE

    def led_indexes(self) -> list[int]:
        return list(self._slots)

    # -- loading ----------------------------------------------------------------------------------------------------

    def _begin_load(self, slot: _Slot) -> None:
        slot.reload = None
        slot.settled.clear()
        slot.task = asyncio.get_running_loop().create_task(self._load(slot))
        slot.task.add_done_callback(_report_fault)

    async def _load(self, slot: _Slot) -> None:
        run = self._run
        try:
            partition = await run.open_partition(slot.topic_id, slot.index)
            if isinstance(partition, Refusal):
                raise LoadFailed(partition.message)
            shard = GroupShard(run.config, run.rng)
            loader = ShardLoader(shard, partition, run.load_buffer_bytes)
            loop = asyncio.get_running_loop()
            while loader.has_more:
                await loop.run_in_executor(run.pool, loader.step)
        except (LoadFailed, OSError, CorruptBatch, WireError) as error:
            log.error("groups of partition %d cannot be loaded: %s", slot.index, error)
            self._wait_and_reload(slot)
            return
        if loader.record_count:
            log.info(
                "loaded %d groups with %d offsets from %d records of partition %d",
                len(shard.groups),
                shard.offset_count,
                loader.record_count,
                slot.index,
            )
        self._activate(slot, shard, partition)

    def _activate(self, slot: _Slot, shard: GroupShard, partition: CoordinatorPartition) -> None:
        led = LedShard(
            shard,
            partition,
            self._run.commit_timeout_ms,
            lambda error: self._lost(slot, error),
            self._start_job,
        )
        now = self._run.now()
        shard.follow(self._image, (), True)
        slot.led = self.active[slot.index] = led
        slot.failures = 0
        led.apply(shard.finish_load(now), now)
        if slot.deleted_topics:
            led.apply(shard.decide_forget_topics(slot.deleted_topics, now), now)
            slot.deleted_topics = []
        slot.settled.set()
        self._on_ready(led)

    def _start_job(self, led: LedShard, job: Job) -> None:
        self._jobs.start(job, lambda done: self._finish_job(led, done))

    def _finish_job(self, led: LedShard, job: Job) -> None:
        led.finish_job(job, self._run.now())
        if not led.closed:
            self._on_ready(led)

    def _lost(self, slot: _Slot, error: ErrorCode) -> None:
        """What this shard appended will never be committed: its state is ahead of the log, so it starts over."""
        log.warning("groups of partition %d start over: %s", slot.index, error.message)
        self._close_shard(slot, coordinator_error(error))
        self._wait_and_reload(slot)

    def _close_shard(self, slot: _Slot, error: ErrorCode) -> None:
        led, slot.led = slot.led, None
        if led is not None:
            del self.active[slot.index]
            led.close(error)

    def _wait_and_reload(self, slot: _Slot) -> None:
        slot.settled.set()
        delay = min(_RELOAD_SECONDS * 2**slot.failures, _MAX_RELOAD_SECONDS)
        slot.failures += 1
        slot.reload = asyncio.get_running_loop().call_later(delay, self._begin_load, slot)


def _report_fault(task: "asyncio.Task[None]") -> None:
    """A load that raised something unforeseen must not go unnoticed: nobody awaits it."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        message = "loading groups failed"
        task.get_loop().call_exception_handler({"message": message, "exception": fault, "task": task})
