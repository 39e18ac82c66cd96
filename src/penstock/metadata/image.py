"""The metadata image: everything the cluster knows at one offset of the metadata log.

Immutable. A new image shares with the old one whatever did not change, so readers keep the one they hold and nobody
locks. Made by `delta`; never decides anything.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.metadata.listeners import Listener
from penstock.metadata.partition import PartitionImage
from penstock.metadata.shard_map import ShardMap

# ConfigRecord resource types, as on the wire.
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC})

DRAINED_BROKERS = "cluster.drained.brokers"

_NO_CONFIG: Mapping[str, str] = MappingProxyType({})


def collision_key(name: str) -> str | None:
    """What names that differ only in '.' and '_' have in common; None for a name with neither."""
    return name.replace(".", "_") if "." in name or "_" in name else None


class TopicImage:
    """One topic. Partitions are dense: number n is `partitions[n]`."""

    __slots__ = ("id", "name", "partitions")

    def __init__(self, name: str, topic_id: bytes, partitions: tuple[PartitionImage, ...]) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS

    def partition(self, number: int) -> PartitionImage | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicImage):
            return NotImplemented
        return (self.name, self.id, self.partitions) == (other.name, other.id, other.partitions)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TopicImage({self.name!r}, {len(self.partitions)} partitions)"


class BrokerImage(NamedTuple):
    """One registered broker. `epoch` is the offset of its registration record, so it grows with every start (C5)."""

    id: int
    epoch: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    directories: tuple[bytes, ...]
    features: tuple[tuple[str, int, int], ...] = ()
    host: str | None = None  # the machine it runs on, where it said so

    @property
    def machine(self) -> str:
        """What brokers on one machine have in common: what they say, or the host name that they go by."""
        if self.host is not None:
            return self.host
        return self.listeners[0].host if self.listeners else ""

    def listener(self, name: str) -> Listener | None:
        return next((listener for listener in self.listeners if listener.name == name), None)


class ControllerImage(NamedTuple):
    """One node that can be controller, and where it listens as such (KIP-919)."""

    id: int
    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    features: tuple[tuple[str, int, int], ...] = ()


class MetadataImage(NamedTuple):
    """Everything at one offset. `end_offset` is exclusive: the next record to replay has it."""

    end_offset: int = 0
    epoch: int = 0
    timestamp_ms: int = -1  # of the last batch
    features: Mapping[str, int] = MappingProxyType({})  # 0 where somebody has lowered it so far
    brokers: Mapping[int, BrokerImage] = MappingProxyType({})
    topics: ShardMap[str, TopicImage] = ShardMap()  # by name
    topics_by_id: ShardMap[bytes, TopicImage] = ShardMap()
    configs: ShardMap[tuple[int, str], Mapping[str, str]] = ShardMap()  # by resource type and name
    collision_names: ShardMap[str, str] = ShardMap()  # names with '.' or '_', by `collision_key`
    next_producer_id: int = 0
    partition_count: int = 0
    # Replicas per log directory, so that placement need not count a hundred thousand partitions each time.
    directory_replicas: Mapping[bytes, int] = MappingProxyType({})
    controllers: Mapping[int, ControllerImage] = MappingProxyType({})

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, name: str, number: int) -> PartitionImage | None:
        topic = self.topics.get(name)
        return topic.partition(number) if topic is not None else None

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        return self.configs.get((resource_type, name)) or _NO_CONFIG

    def topic_config(self, name: str) -> Mapping[str, str]:
        """The topic's own values; what it does not name follows the broker."""
        return self.configs.get((TOPIC_RESOURCE, name)) or _NO_CONFIG

    def broker_config(self, broker_id: int) -> Mapping[str, str]:
        return self.configs.get((BROKER_RESOURCE, str(broker_id))) or _NO_CONFIG

    @property
    def cluster_config(self) -> Mapping[str, str]:
        """Dynamic defaults of all brokers."""
        return self.configs.get((BROKER_RESOURCE, "")) or _NO_CONFIG

    @property
    def drained_brokers(self) -> frozenset[int]:
        """Ids of brokers that are to hold no replicas."""
        listed = self.cluster_config.get(DRAINED_BROKERS, "")
        return frozenset(int(broker_id) for broker_id in listed.split(",") if broker_id)

    def usable_brokers(self) -> list[BrokerImage]:
        """Brokers that may be given new replicas, by id; where all that are there are drained, those."""
        there = sorted(b for b in self.brokers.values() if not b.fenced and not b.in_controlled_shutdown)
        drained = self.drained_brokers
        return [broker for broker in there if broker.id not in drained] or there

    def partitions_of(self, broker_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Every partition that has a replica on this broker."""
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if broker_id in partition.replicas:
                    yield topic, number, partition
