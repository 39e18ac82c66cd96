"""The partitions this broker leads, opened when they are first used.

A partition that nobody touches is an entry in the metadata image and nothing else: no object, no file. Opening
one may read the disk, so loading happens in the pool; afterwards it is found by one dictionary look-up, by topic
name or by topic id.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
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
        self._open: dict[tuple[TopicKey, int], Partition] = {}
        self._opening: dict[tuple[bytes, int], asyncio.Future[Partition | Refusal]] = {}
        self._offline: dict[tuple[bytes, int], Refusal] = {}

    def __len__(self) -> int:
        return len(self._open) // 2

    def __iter__(self) -> Iterator[Partition]:
        return iter([partition for (key, _), partition in self._open.items() if isinstance(key, str)])

    # -- finding ------------------------------------------------------------------------------------------------

    def find(self, topic: TopicKey, index: int) -> Partition | Refusal:
        """The open partition, or why there is none here."""
        return self._open.get((topic, index)) or self._refusal(topic, index)

    def find_all(self, topics: Sequence[tuple[TopicKey, Sequence[Any]]]) -> list[Partition | Refusal]:
        """`find` for every part of a request, in its order. Each part begins with its index."""
        opened = self._open
        return [
            opened.get((topic, part[0])) or self._refusal(topic, part[0]) for topic, parts in topics for part in parts
        ]

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
        if partition.leader != self._node_id:
            return _NOT_LEADER
        return self._offline.get((known.id, index), NOT_OPEN)

    def _lookup(self, topic: TopicKey, index: int) -> tuple[TopicImage | None, PartitionImage | None]:
        image = self._image()
        known = image.topic(topic) if isinstance(topic, str) else image.topic_by_id(topic)
        return known, known.partition(index) if known is not None else None

    # -- opening ------------------------------------------------------------------------------------------------

    async def open(self, topic: TopicKey, index: int) -> Partition | Refusal:
        found = self.find(topic, index)
        if found is not NOT_OPEN:
            return found
        known, state = self._lookup(topic, index)
        assert known is not None
        assert state is not None
        key = (known.id, index)
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.ensure_future(self._open_in_pool(known, index, state))
            self._opening[key] = opening
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(opening)

    async def open_all(self, wanted: Sequence[tuple[TopicKey, int]]) -> None:
        await asyncio.gather(*(self.open(topic, index) for topic, index in wanted))

    async def _open_in_pool(self, topic: TopicImage, index: int, state: PartitionImage) -> Partition | Refusal:
        storage = self._open_log(topic, index, state)
        refusal = await asyncio.get_running_loop().run_in_executor(self._pool, load_quietly, storage)
        if refusal is not None:
            self._offline[topic.id, index] = refusal
            return refusal
        _, current = self._lookup(topic.id, index)
        if current is None:  # deleted while it was being opened
            return _UNKNOWN_TOPIC
        partition = Partition(topic.name, index, topic.id, storage, current.leader_epoch)
        self._open[topic.name, index] = self._open[topic.id, index] = partition
        return partition

    def fail_directory(self, directory: LogDirectory) -> None:
        """Everything in a failed log directory is offline; whoever waits for it is told."""
        refusal = directory.refusal or Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {directory.path} failed"
        )
        for partition in self:
            if partition.log.directory is directory:
                self._offline[partition.topic_id, partition.index] = refusal
                del self._open[partition.topic, partition.index], self._open[partition.topic_id, partition.index]
                partition.resign(ErrorCode.KAFKA_STORAGE_ERROR)

    # -- closing ------------------------------------------------------------------------------------------------

    def close_topic(self, topic: TopicImage) -> list[Partition]:
        """Forgets a deleted topic; whoever waits on it is told. Returns the partitions that were open."""
        closed = []
        for index in range(len(topic.partitions)):
            self._offline.pop((topic.id, index), None)
            partition = self._open.pop((topic.id, index), None)
            # A new topic may have taken the name already.
            if partition is not None:
                if self._open.get((topic.name, index)) is partition:
                    del self._open[topic.name, index]
                partition.resign(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                closed.append(partition)
        return closed
