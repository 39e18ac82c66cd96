"""The partitions that this broker has replicas of: those it leads by topic name or id, all that are open by topic id.

A partition with one replica that nobody touches is an entry in the metadata image and nothing else: no object, no
file. Opening one may read the disk, so loading happens in the pool; afterwards it is found by one dictionary look-up.
What role an open one has is said by who follows the metadata (`assign`).
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.store import load_quietly
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.replication.partition import Partition

TopicKey = str | bytes
OpenLog = Callable[[TopicImage, int, PartitionImage], PartitionLog]
Assign = Callable[[Partition, PartitionImage], None]

_UNKNOWN_TOPIC = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "this broker does not host that topic or partition")
_UNKNOWN_ID = Refusal(ErrorCode.UNKNOWN_TOPIC_ID, "this broker does not know that topic id")
_NOT_LEADER = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker is not the leader of that partition")
NOT_OPEN = Refusal(ErrorCode.LEADER_NOT_AVAILABLE, "the partition is still being opened")


class PartitionTable:
    """Changed only on the event loop."""

    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], open_log: OpenLog, pool: Executor | None
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._open_log = open_log
        self._pool = pool
        self._open: dict[tuple[TopicKey, int], Partition] = {}  # those led here
        self.opened: Mapping[tuple[TopicKey, int], Partition] = self._open
        """Those led here, by name and by id; the same mapping for ever."""
        self._replicas: dict[tuple[bytes, int], Partition] = {}
        self._opening: dict[tuple[bytes, int], asyncio.Future[Partition | Refusal]] = {}
        self._offline: dict[tuple[bytes, int], Refusal] = {}
        self.assign: Assign = self._assign_alone
        """Gives a partition that was just opened its role."""
        self.may_lead: Callable[[], bool] = lambda: True
        """False while the image may be from before this incarnation: what it says of leaders is not for us then."""
        self.on_closed: Callable[[Partition], None] = lambda _: None
        self.on_damaged: Callable[[TopicImage, int, int | None, str], None] = lambda *_: None
        """A log was found damaged when it was opened: the offset from which on, or None for all of it; and why."""

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[Partition]:
        """All open ones, whatever their role."""
        return iter(list(self._replicas.values()))

    @property
    def offline_count(self) -> int:
        return len(self._offline)

    def is_offline(self, topic_id: bytes, index: int) -> bool:
        """Whether its log cannot be used until somebody repairs it."""
        return (topic_id, index) in self._offline

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, topic: TopicKey, index: int) -> Partition | Refusal:
        """The open partition that this broker leads, or why there is none here."""
        return self._open.get((topic, index)) or self._refusal(topic, index)

    def find_all(self, topics: Sequence[tuple[TopicKey, Sequence[Any]]]) -> list[Partition | Refusal]:
        """`find` for every part of a request, in its order. Each part begins with its index."""
        opened = self._open
        return [
            opened.get((topic, part[0])) or self._refusal(topic, part[0]) for topic, parts in topics for part in parts
        ]

    def find_replica(self, topic: TopicKey, index: int) -> Partition | Refusal:
        """As `find`, but one that follows will do."""
        led = self._open.get((topic, index))
        if led is not None:
            return led
        refusal = self._refusal(topic, index)
        if refusal is not _NOT_LEADER:
            return refusal
        known, _ = self._lookup(topic, index)
        replica = self._replicas.get((known.id, index)) if known is not None else None
        return replica if replica is not None and not replica.is_leader else refusal

    def replica(self, topic_id: bytes, index: int) -> Partition | None:
        return self._replicas.get((topic_id, index))

    def any_closed(self, topics: Sequence[tuple[TopicKey, Sequence[Any]]]) -> bool:
        """Whether a request names a partition that is led here but not open. Each part begins with its index."""
        opened = self._open
        for topic, parts in topics:
            for part in parts:
                if (topic, part[0]) not in opened and self._refusal(topic, part[0]) is NOT_OPEN:
                    return True
        return False

    def _refusal(self, topic: TopicKey, index: int) -> Refusal:
        known, partition = self._lookup(topic, index)
        if known is None:
            return _UNKNOWN_TOPIC if isinstance(topic, str) else _UNKNOWN_ID
        if partition is None:
            return _UNKNOWN_TOPIC
        key = (known.id, index)
        if partition.leader != self._node_id or key in self._replicas or not self.may_lead():
            return _NOT_LEADER
        return self._offline.get(key, NOT_OPEN)

    def _lookup(self, topic: TopicKey, index: int) -> tuple[TopicImage | None, PartitionImage | None]:
        image = self._image()
        known = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)
        return known, known.partition(index) if known is not None else None

    # -- opening ------------------------------------------------------------------------------------------------

    async def open(self, topic: TopicKey, index: int) -> Partition | Refusal:
        """`find`, after opening it where that is all that is missing."""
        found = self.find(topic, index)
        if found is not NOT_OPEN:
            return found
        known, _ = self._lookup(topic, index)
        assert known is not None
        opened = await self.open_replica(known.id, index)
        return self.find(known.id, index) if isinstance(opened, Partition) else opened

    async def open_replica(self, topic_id: bytes, index: int) -> Partition | Refusal:
        """The partition in whatever role, or why there is none here."""
        key = (topic_id, index)
        replica = self._replicas.get(key)
        known, state = self._lookup(topic_id, index)
        if replica is not None:
            return replica
        if known is None or state is None or self._node_id not in state.replicas:
            return _UNKNOWN_TOPIC
        if key in self._offline:
            return self._offline[key]
        opening = self._opening.get(key)
        if opening is None:
            # At once: whoever deletes the topic from now on finds the log, and none is in the way of the next one.
            storage = self._open_log(known, index, state)
            opening = asyncio.ensure_future(self._load_in_pool(known, index, state, storage))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def open_all(self, wanted: Sequence[tuple[TopicKey, int]]) -> None:
        await asyncio.gather(*(self.open(topic, index) for topic, index in wanted))

    async def _load_in_pool(
        self, topic: TopicImage, index: int, state: PartitionImage, storage: PartitionLog
    ) -> Partition | Refusal:
        refusal = await asyncio.get_running_loop().run_in_executor(self._pool, load_quietly, storage)
        _, current = self._lookup(topic.id, index)
        if current is None or self._node_id not in current.replicas:  # deleted or moved while it was being opened
            return _UNKNOWN_TOPIC
        if storage.is_deleted:  # moved away and back meanwhile: what was opened is the log of before
            return await self._load_in_pool(topic, index, current, self._open_log(topic, index, current))
        if storage.lost_records and len(state.replicas) > 1:
            refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "records that were synced are damaged or gone")
            self.on_damaged(topic, index, storage.end_offset, refusal.message)
        elif refusal is not None and storage.fault is not None:
            self.on_damaged(topic, index, None, storage.fault.reason)
        else:
            storage.accept_loss()  # the only replica has nobody who could mend it
        if refusal is not None:
            if storage.is_loaded:  # else its disk is full, and it may be opened when there is room
                self._offline[topic.id, index] = refusal
            return refusal
        alone = current.replicas == (self._node_id,)
        partition = Partition(topic.name, index, topic.id, storage, current.leader_epoch, alone=alone)
        self._replicas[topic.id, index] = partition
        self.assign(partition, current)
        return partition

    # -- roles --------------------------------------------------------------------------------------------------

    def lead(self, partition: Partition) -> None:
        """From now on requests for the leader find it."""
        self._open[partition.topic, partition.index] = self._open[partition.topic_id, partition.index] = partition

    def stop_leading(self, partition: Partition) -> None:
        self._open.pop((partition.topic_id, partition.index), None)
        if self._open.get((partition.topic, partition.index)) is partition:  # a new topic may have taken the name
            del self._open[partition.topic, partition.index]

    def _assign_alone(self, partition: Partition, state: PartitionImage) -> None:
        if state.leader == self._node_id:
            self.lead(partition)

    # -- closing ------------------------------------------------------------------------------------------------

    def take_offline(self, partition: Partition, refusal: Refusal) -> None:
        """Its log cannot be used: whoever waits is told, and so is whoever asks from now on."""
        self._offline[partition.topic_id, partition.index] = refusal
        self._close(partition, refusal.code)

    def forget_offline(self, topic_id: bytes, index: int) -> None:
        """Its log may be opened again."""
        self._offline.pop((topic_id, index), None)

    def fail_directory(self, directory: LogDirectory) -> None:
        """Everything in a failed log directory is offline; whoever waits for it is told."""
        refusal = directory.refusal or Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {directory.path} failed"
        )
        for partition in self:
            if partition.log.directory is directory:
                self.take_offline(partition, refusal)

    def close_replica(self, topic_id: bytes, index: int) -> None:
        """Forgets a partition that this broker has no replica of any more: others have, so whoever waits looks for
        them."""
        self._forget(topic_id, index, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def close_topic(self, topic: TopicImage) -> list[Partition]:
        """Forgets a deleted topic; whoever waits on it is told. Returns the partitions that were open."""
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        closed = [self._forget(topic.id, index, gone) for index in range(len(topic.partitions))]
        return [partition for partition in closed if partition is not None]

    def _forget(self, topic_id: bytes, index: int, told: ErrorCode) -> Partition | None:
        self._offline.pop((topic_id, index), None)
        partition = self._replicas.get((topic_id, index))
        if partition is not None:
            self._close(partition, told)
        return partition

    def _close(self, partition: Partition, error: ErrorCode) -> None:
        self._replicas.pop((partition.topic_id, partition.index), None)
        self.stop_leading(partition)
        self.on_closed(partition)
        partition.resign(error)
