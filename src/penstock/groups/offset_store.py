"""Committed offsets of one shard, by group, topic and partition. Changed by replay only."""

from collections.abc import Collection, Container, Iterator
from typing import NamedTuple

from penstock.model.ids import ZERO_UUID
from penstock.wire.generated.records_group import OffsetCommitValue


class CommittedOffset(NamedTuple):
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1  # only clients of old asked for one; −1: the broker's retention counts
    topic_id: bytes = ZERO_UUID

    def belongs_to(self, topic_id: bytes) -> bool:
        """False for what was committed for an earlier topic of the same name."""
        return self.topic_id == topic_id or self.topic_id == ZERO_UUID or topic_id == ZERO_UUID


TopicOffsets = dict[int, CommittedOffset]
GroupOffsets = dict[str, TopicOffsets]


def in_both(some: Collection[str], others: Collection[str]) -> Iterator[str]:
    """Both are quick to look in."""
    fewer, more = sorted((some, others), key=len)
    return (each for each in fewer if each in more)


class OffsetStore:
    __slots__ = ("_by_group", "_topic_ids", "offset_count")

    def __init__(self) -> None:
        self._by_group: dict[str, GroupOffsets] = {}  # no empty dicts in it
        self._topic_ids: dict[bytes, bytes] = {}  # one object per id instead of one per offset
        self.offset_count = 0

    def replay(self, group_id: str, topic: str, partition: int, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._remove(group_id, topic, partition)
            return
        topic_id = self._topic_ids.setdefault(value.topic_id, value.topic_id)
        partitions = self._by_group.setdefault(group_id, {}).setdefault(topic, {})
        self.offset_count += partition not in partitions
        partitions[partition] = CommittedOffset(
            value.offset,
            value.leader_epoch,
            value.metadata,
            value.commit_timestamp,
            value.expire_timestamp,
            topic_id,
        )

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def of_group(self, group_id: str) -> GroupOffsets:
        """Not to be changed by the caller."""
        return self._by_group.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.of_group(group_id).get(topic, {}).get(partition)

    @property
    def topic_ids(self) -> Collection[bytes]:
        """May include ids that no offset has any more."""
        return self._topic_ids

    def having_ids(self, topic_ids: Container[bytes]) -> Iterator[tuple[str, str]]:
        """Groups and topics with an offset that was committed for one of these ids."""
        for group_id, topics in self._by_group.items():
            for topic, partitions in topics.items():
                if any(committed.topic_id in topic_ids for committed in partitions.values()):
                    yield group_id, topic

    def of_topics(self, names: Collection[str]) -> Iterator[tuple[str, str, TopicOffsets]]:
        """With group and topic. `names` are quick to look in."""
        for group_id, topics in self._by_group.items():
            for topic in in_both(names, topics):
                yield group_id, topic, topics[topic]

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(topic, {})
        if partitions.pop(partition, None) is None:
            return
        self.offset_count -= 1
        if not partitions:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]
