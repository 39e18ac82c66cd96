"""Random but valid histories of a cluster: the records that replay tests run on."""

from hypothesis import strategies as st

from penstock.metadata.features import METADATA_LEVEL, METADATA_VERSION
from penstock.wire.generated.records_metadata import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from penstock.wire.struct import RecordMessage

DIRECTORIES = [bytes([n]) * 16 for n in (101, 102, 103)]
NAMES = ["orders", "a.b", "a_c", "x-1", "__consumer_offsets"]


class _Cluster:
    """Just enough state to keep the history valid."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.records: list[RecordMessage] = [FeatureLevelRecord(METADATA_VERSION, METADATA_LEVEL)]
        self.topics: dict[bytes, tuple[str, int]] = {}
        self.brokers: dict[int, int] = {}
        self.made = 0

    def pick(self, options: list[object] | range) -> object:
        return self.draw(st.sampled_from(options))

    def create_topic(self) -> None:
        used = {name for name, _ in self.topics.values()}
        free = [name for name in NAMES if name not in used]
        if free:
            self.made += 1
            topic_id = self.made.to_bytes(16, "big")
            name = str(self.pick(list(free)))
            self.records.append(TopicRecord(name, topic_id))
            self.topics[topic_id] = (name, 0)
            for _ in range(self.draw(st.integers(1, 3))):
                self._add_partition(topic_id)

    def grow_topic(self) -> None:
        if self.topics:
            self._add_partition(self.pick(list(self.topics)))  # type: ignore[arg-type]

    def _add_partition(self, topic_id: bytes) -> None:
        name, count = self.topics[topic_id]
        directory = self.pick(list(DIRECTORIES))
        self.records.append(
            PartitionRecord(
                count, topic_id, [1], [1], leader=1, leader_epoch=0, partition_epoch=0, directories=[directory]
            )  # type: ignore[list-item]
        )
        self.topics[topic_id] = (name, count + 1)

    def change_partition(self) -> None:
        if self.topics:
            topic_id = self.pick(list(self.topics))
            number = self.pick(range(self.topics[topic_id][1]))  # type: ignore[index]
            change = PartitionChangeRecord(number, topic_id)  # type: ignore[arg-type]
            kind = self.draw(st.integers(0, 3))
            if kind == 0:
                change.leader = self.draw(st.sampled_from([-1, 1, 2]))
            elif kind == 1:
                change.isr = [2, 1]
            elif kind == 2:
                change.replicas, change.directories = [1, 2], DIRECTORIES[:2]
            else:
                change.leader_recovery_state = 1
            self.records.append(change)

    def remove_topic(self) -> None:
        if self.topics:
            topic_id = self.pick(list(self.topics))
            del self.topics[topic_id]  # type: ignore[arg-type]
            self.records.append(RemoveTopicRecord(topic_id))  # type: ignore[arg-type]

    def configure(self) -> None:
        name = self.pick(["retention.ms", "segment.bytes"])
        value = self.draw(st.none() | st.sampled_from(["1", "2000"]))
        topics = [name for name, _ in self.topics.values()]
        resource = (2, self.pick(list(topics))) if topics and self.draw(st.booleans()) else (4, self.pick(["", "1"]))
        self.records.append(ConfigRecord(resource[0], resource[1], name, value))  # type: ignore[arg-type]

    def register(self) -> None:
        broker = self.draw(st.integers(1, 3))
        epoch = len(self.records)
        self.brokers[broker] = epoch
        record = RegisterBrokerRecord(
            broker_id=broker,
            incarnation_id=epoch.to_bytes(16, "big"),
            broker_epoch=epoch,
            end_points=[RegisterBrokerRecord.BrokerEndpoint("PLAINTEXT", "host", 9092, 0)],
            features=[RegisterBrokerRecord.BrokerFeature(METADATA_VERSION, METADATA_LEVEL, METADATA_LEVEL)],
            rack=self.draw(st.none() | st.just("r1")),
            fenced=self.draw(st.booleans()),
            log_dirs=DIRECTORIES[:1],
        )
        self.records.append(record)

    def fence(self) -> None:
        if self.brokers:
            broker = self.pick(list(self.brokers))
            fenced, stopping = self.draw(st.sampled_from([(1, 0), (-1, 0), (0, 1), (0, -1)]))
            record = BrokerRegistrationChangeRecord(broker, self.brokers[broker], fenced, stopping)  # type: ignore[index, arg-type]
            self.records.append(record)

    def unregister(self) -> None:
        if self.brokers:
            broker = self.pick(list(self.brokers))
            self.records.append(UnregisterBrokerRecord(broker, self.brokers.pop(broker)))  # type: ignore[arg-type]

    def allocate(self) -> None:
        self.records.append(ProducerIdsRecord(1, 0, self.draw(st.integers(1, 10)) * 1000))

    def nothing(self) -> None:
        self.records.append(NoOpRecord())


_STEPS = [
    _Cluster.create_topic,
    _Cluster.create_topic,
    _Cluster.grow_topic,
    _Cluster.change_partition,
    _Cluster.remove_topic,
    _Cluster.configure,
    _Cluster.configure,
    _Cluster.register,
    _Cluster.fence,
    _Cluster.unregister,
    _Cluster.allocate,
    _Cluster.nothing,
]


@st.composite
def histories(draw: st.DrawFn) -> list[RecordMessage]:
    cluster = _Cluster(draw)
    for step in draw(st.lists(st.sampled_from(_STEPS), max_size=40)):
        step(cluster)
    return cluster.records
