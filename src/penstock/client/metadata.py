"""What the client knows about the cluster: brokers, topics, leaders. Replaced whole, never changed in place."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from penstock.model.ids import ZERO_UUID

if TYPE_CHECKING:
    from penstock.wire.generated.metadata import MetadataResponse

NO_LEADER = -1


class BrokerInfo(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class PartitionInfo(NamedTuple):
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


class TopicInfo:
    """`available` are the partitions that have a leader, in order."""

    __slots__ = ("available", "error_code", "is_internal", "name", "partition_count", "partitions", "topic_id")

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        partitions: Iterable[PartitionInfo],
        *,
        is_internal: bool = False,
        error_code: int = 0,
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.is_internal = is_internal
        self.error_code = error_code
        self.partitions = {info.partition: info for info in sorted(partitions)}
        self.partition_count = len(self.partitions)
        self.available = [number for number, info in self.partitions.items() if info.leader != NO_LEADER]


class ClusterMetadata:
    __slots__ = ("brokers", "cluster_id", "controller_id", "names", "topics")

    def __init__(
        self,
        cluster_id: str | None = None,
        controller_id: int = -1,
        brokers: dict[int, BrokerInfo] | None = None,
        topics: dict[str, TopicInfo] | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.controller_id = controller_id
        self.brokers = brokers or {}
        self.topics = topics or {}
        self.names = {topic.topic_id: name for name, topic in self.topics.items() if topic.topic_id != ZERO_UUID}

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        info = self.topics.get(topic)
        return info.partitions.get(partition) if info is not None else None

    def leader_of(self, topic: str, partition: int) -> int:
        info = self.partition(topic, partition)
        return NO_LEADER if info is None else info.leader

    def topic_name(self, topic_id: bytes, name: str | None) -> str:
        """The name of a topic in a response: newer versions carry only the id."""
        return name or self.names.get(topic_id, "")

    def updated(self, response: "MetadataResponse", *, whole: bool) -> "ClusterMetadata":
        """With `whole`, topics that the response does not mention are gone; else they stay as they were."""
        brokers = {b.node_id: BrokerInfo(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
        topics = {} if whole else dict(self.topics)
        for topic in response.topics:
            name = topic.name if topic.name is not None else self.names.get(topic.topic_id, "")
            partitions = [
                PartitionInfo(
                    p.partition_index,
                    p.leader_id,
                    p.leader_epoch,
                    tuple(p.replica_nodes),
                    tuple(p.isr_nodes),
                    tuple(p.offline_replicas),
                )
                for p in topic.partitions
            ]
            topics[name] = _newest(
                topics.get(name),
                TopicInfo(
                    name, topic.topic_id, partitions, is_internal=topic.is_internal, error_code=topic.error_code
                ),
            )
        return ClusterMetadata(response.cluster_id, response.controller_id, brokers, topics)


def _newest(known: TopicInfo | None, told: TopicInfo) -> TopicInfo:
    """A broker that lags behind must not take us back to an older leader: the higher leader epoch stays. (KIP-320)"""
    if known is None or known.topic_id != told.topic_id:
        return told
    kept = [
        old if (old := known.partitions.get(new.partition)) and old.leader_epoch > new.leader_epoch >= 0 else new
        for new in told.partitions.values()
    ]
    return TopicInfo(told.name, told.topic_id, kept, is_internal=told.is_internal, error_code=told.error_code)
