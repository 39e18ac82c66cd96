"""What the admin client answers with."""

from typing import NamedTuple

from penstock.client.errors import ClientError
from penstock.client.metadata import BrokerInfo, PartitionInfo
from penstock.client.types import TopicPartition

Outcome = ClientError | None
"""Of one item among many: None when it was done, else why not."""

TOPIC = 2
BROKER = 4


class NewTopic(NamedTuple):
    """−1 means the cluster's default. `assignments` (partition -> brokers) replaces both numbers."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] | None = None
    assignments: dict[int, list[int]] | None = None


class CreatedTopic(NamedTuple):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int


class TopicListing(NamedTuple):
    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int


class TopicDescription(NamedTuple):
    name: str
    topic_id: str
    is_internal: bool
    partitions: list[PartitionInfo]


class ClusterDescription(NamedTuple):
    """`fenced`: ids of those among the brokers that do not serve at the moment, where they were asked for.
    `unclean_elections`: of leaders that may lack records, since the broker that was asked has been running; a Kafka
    does not tell."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerInfo]
    fenced: frozenset[int] = frozenset()
    unclean_elections: int = 0


class QuorumReplica(NamedTuple):
    """A node that follows the metadata log. Times are the wall clock's in ms, −1 where they are not known."""

    node_id: int
    directory_id: str
    end_offset: int
    last_fetch_ms: int = -1
    last_caught_up_ms: int = -1


class QuorumDescription(NamedTuple):
    """`leader_id` is the active controller."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class Reassignment(NamedTuple):
    """A partition on the move: all replicas it has meanwhile, those that come and those that go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


class ConfigEntry(NamedTuple):
    """`source` says where the value comes from; only those called `topic` or `dynamic …` were set by someone."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    is_sensitive: bool
    documentation: str | None = None


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    group_type: str


class MemberDescription(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: list[TopicPartition]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: list[MemberDescription]


class OffsetMove(NamedTuple):
    """What a reset does to one partition; `before` None: never committed."""

    partition: TopicPartition
    before: int | None
    after: int


class PartitionSize(NamedTuple):
    partition: TopicPartition
    size_bytes: int
    offset_lag: int


class LogDir(NamedTuple):
    broker_id: int
    path: str
    error: Outcome
    total_bytes: int
    usable_bytes: int
    partitions: list[PartitionSize]


CONFIG_SOURCES = {
    0: "unknown",
    1: "topic",
    2: "dynamic broker",
    3: "dynamic default broker",
    4: "static broker",
    5: "default",
    6: "dynamic broker logger",
    7: "client metrics",
    8: "group",
}
