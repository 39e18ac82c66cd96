"""Which partitions of a coordinator's topic this broker leads: loaded, served, closed, as the metadata image says.

A shard serves one leader epoch of its partition, which is also its own epoch; the next one loads anew. A shard whose
log cannot be read, or whose appended records were lost, is not served; it is loaded again after a while, unless the
image has moved it elsewhere by then. What a shard is made of is the business of who loads it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from penstock.broker.background import report_fault
from penstock.broker.coordinator_log import LoadFailed, LogDamaged
from penstock.broker.group_partition import CoordinatorPartition, OpenPartition
from penstock.metadata.image import TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import CorruptBatch
from penstock.wire.errors import WireError

log = logging.getLogger("penstock.coordinator")

# A fresh partition loads in milliseconds: better to let a request wait than to send the client away.
LOAD_WAIT_SECONDS = 1.0
_RELOAD_SECONDS = 1.0
_MAX_RELOAD_SECONDS = 60.0
# The image is ahead of the partition: it becomes leader within this, or the image moves on.
_LOOK_AGAIN_SECONDS = 0.02
_NOT_LEADER_YET = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE})


class Led(Protocol):
    """A loaded shard."""

    def close(self, error: ErrorCode) -> None:
        """Led here no longer, or not to be trusted: everybody who waits is told, and nothing else happens."""


LedT = TypeVar("LedT", bound=Led)
# Told when what a shard appended will never be committed.
OnLost = Callable[[ErrorCode], None]
# Loads the shard of a partition with this number. Raises `LoadFailed` or what reading raises.
Load = Callable[[CoordinatorPartition, int, OnLost], Awaitable[LedT]]


class _Slot(Generic[LedT]):
    """A partition led here, whether it is loaded already or not. `settled`: loaded, or failed to."""

    __slots__ = ("failures", "index", "leader_epoch", "led", "reload", "settled", "task", "topic_id")

    def __init__(self, index: int, topic_id: bytes, leader_epoch: int) -> None:
        self.index = index
        self.topic_id = topic_id
        self.leader_epoch = leader_epoch
        self.led: LedT | None = None
        self.settled = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.reload: asyncio.TimerHandle | None = None
        self.failures = 0  # in a row


class CoordinatorLeadership(Generic[LedT]):
    """Changed only on the event loop."""

    def __init__(
        self,
        what: str,
        node_id: int,
        open_partition: OpenPartition,
        load: Load[LedT],
        on_ready: Callable[[int, LedT], None],
    ) -> None:
        """`what` the shards hold, for the log. `on_ready` is called with each shard once it is found here."""
        self._what = what
        self._node_id = node_id
        self._open_partition = open_partition
        self._load_shard = load
        self._on_ready = on_ready
        self._slots: dict[int, _Slot[LedT]] = {}
        self.active: dict[int, LedT] = {}  # loaded ones, by partition
        self.partition_count = 0  # 0: the topic does not exist

    # -- following the image ----------------------------------------------------------------------------------------

    def follow(self, topic: TopicImage | None) -> None:
        """Leads exactly the partitions that this image gives to this broker."""
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
        slot: _Slot[LedT] = _Slot(index, topic_id, leader_epoch)
        self._slots[index] = slot
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

    # -- finding a shard --------------------------------------------------------------------------------------------

    async def find(self, index: int) -> LedT | ErrorCode:
        """The shard, after waiting a little for its load, or why there is none."""
        slot = self._slots.get(index)
        if slot is not None and not slot.settled.is_set():
            try:
                await asyncio.wait_for(slot.settled.wait(), LOAD_WAIT_SECONDS)
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

    def _begin_load(self, slot: _Slot[LedT]) -> None:
        slot.reload = None
        slot.settled.clear()
        slot.task = asyncio.get_running_loop().create_task(self._load(slot))
        slot.task.add_done_callback(partial(report_fault, message="loading a coordinator's shard failed"))

    async def _load(self, slot: _Slot[LedT]) -> None:
        try:
            partition = await self._opened(slot)
            led = await self._load_from(partition, slot)
        except (LoadFailed, OSError, CorruptBatch, WireError) as error:
            log.error("%s of partition %d cannot be loaded: %s", self._what, slot.index, error)
            self._wait_and_reload(slot)
            return
        except Exception as fault:  # an edge: a bug must not keep clients waiting for a load that has ended
            message = f"{self._what} of partition {slot.index} cannot be loaded"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": fault})
            self._wait_and_reload(slot)
            return
        slot.led = self.active[slot.index] = led
        slot.failures = 0
        slot.settled.set()
        self._on_ready(slot.index, led)

    async def _load_from(self, partition: CoordinatorPartition, slot: _Slot[LedT]) -> LedT:
        try:
            return await self._load_shard(partition, slot.index, lambda error: self._lost(slot, error))
        except LogDamaged as damage:
            partition.suspect(damage.offset)  # a replica that is whole leads then, where there is one
            raise

    async def _opened(self, slot: _Slot[LedT]) -> CoordinatorPartition:
        """The partition, led here in the slot's own epoch."""
        while True:
            partition = await self._open_partition(slot.topic_id, slot.index)
            if not isinstance(partition, Refusal):
                if partition.leader_epoch == slot.leader_epoch:
                    return partition
            elif partition.code not in _NOT_LEADER_YET:
                raise LoadFailed(partition.message)
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def _lost(self, slot: _Slot[LedT], error: ErrorCode) -> None:
        """What this shard appended will never be committed: it starts over from the log."""
        log.warning("%s of partition %d start over: %s", self._what, slot.index, error.message)
        self._close_shard(slot, self._client_error(error))
        self._wait_and_reload(slot)

    def _client_error(self, error: ErrorCode) -> ErrorCode:
        """What a lost append means to the coordinator's clients."""
        return error

    def _close_shard(self, slot: _Slot[LedT], error: ErrorCode) -> None:
        led, slot.led = slot.led, None
        if led is not None:
            del self.active[slot.index]
            led.close(error)

    def _wait_and_reload(self, slot: _Slot[LedT]) -> None:
        slot.settled.set()
        delay = min(_RELOAD_SECONDS * 2**slot.failures, _MAX_RELOAD_SECONDS)
        slot.failures += 1
        slot.reload = asyncio.get_running_loop().call_later(delay, self._begin_load, slot)
