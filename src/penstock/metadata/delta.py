"""Replay: committed records become a new image, and what changed is told apart from what did not.

A delta is opened on an image, takes records in log order, and closes into the next image. Deterministic: the same
records give the same image on every node. Hard rule: a record that is not understood stops the node
(`UnsupportedRecord`), because skipping it would let this node's view drift from the others'.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from penstock.metadata.features import check_level
from penstock.metadata.image import (
    TOPIC_RESOURCE,
    BrokerImage,
    ControllerImage,
    MetadataImage,
    TopicImage,
    collision_key,
)
from penstock.metadata.listeners import SECURITY_PROTOCOLS, Listener
from penstock.metadata.partition import (
    PartitionImage,
    apply_change,
    is_unclean_election,
    partition_from_record,
    without_elr,
)
from penstock.metadata.partition_codec import (
    ID_POSITION,
    NUMBER_POSITION,
    PARTITION_FRAME,
    STATE_POSITION,
    decode_partition,
)
from penstock.wire.records import decode_metadata_record
from penstock.wire.struct import RecordMessage

_PROTOCOL_NAMES = {code: name for name, code in SECURITY_PROTOCOLS.items()}


class UnsupportedRecord(Exception):
    """A metadata record this release cannot replay. The message is for the operator."""


class TopicChange:
    """A topic within a delta: `partitions` is its new state, `changed` the numbers that are new or different.

    `unclean_elections`: how many there were on the way, which the new state alone may not tell.
    """

    __slots__ = ("changed", "created", "id", "name", "partitions", "unclean_elections")

    def __init__(self, name: str, topic_id: bytes, partitions: list[PartitionImage], created: bool) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions
        self.created = created
        self.changed: dict[int, None] = {}
        self.unclean_elections = 0


class MetadataDelta:
    """Changes on top of `image`. The public attributes say what changed; `close` gives the new image."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.topic_changes: dict[bytes, TopicChange] = {}
        self.deleted_topics: dict[bytes, TopicImage] = {}
        self.changed_brokers: dict[int, BrokerImage | None] = {}
        self.changed_controllers: dict[int, ControllerImage | None] = {}
        self.changed_configs: dict[tuple[int, str], dict[str, str]] = {}
        self.changed_features: dict[str, int] = {}
        self._next_producer_id = image.next_producer_id
        self._directory_changes: dict[bytes, int] = {}
        self._partition_change = 0

    def replay(self, record: RecordMessage, offset: int = -1) -> None:
        replay = _REPLAYS.get(type(record).__name__)
        if replay is None:
            raise UnsupportedRecord(
                f"the metadata log holds a {type(record).__name__} at offset {offset}, which this release does not "
                "act upon; start the release that wrote it"
            )
        replay(self, record)

    def replay_encoded(self, value: bytes, offset: int) -> None:
        """Replays a record from its bytes. Raises `WireError`, or `UnsupportedRecord`."""
        if value[:2] != PARTITION_FRAME or len(value) < STATE_POSITION:
            self.replay(decode_metadata_record(value), offset)
            return
        number = int.from_bytes(value[NUMBER_POSITION:ID_POSITION], "big", signed=True)
        self._put_partition(value[ID_POSITION:STATE_POSITION], number, decode_partition(value))

    def changed_partitions(self) -> Iterator[tuple[TopicChange, int, PartitionImage]]:
        """Every partition that is new or different, with its new state."""
        for change in self.topic_changes.values():
            for number in change.changed:
                yield change, number, change.partitions[number]

    @property
    def is_empty(self) -> bool:
        return not (
            self.topic_changes
            or self.deleted_topics
            or self.changed_brokers
            or self.changed_controllers
            or self.changed_configs
            or self.changed_features
            or self._next_producer_id != self.image.next_producer_id
        )

    def close(self, end_offset: int, epoch: int, timestamp_ms: int = -1) -> MetadataImage:
        """The image after everything replayed so far."""
        old = self.image
        by_name: dict[str, TopicImage | None] = {topic.name: None for topic in self.deleted_topics.values()}
        by_id: dict[bytes, TopicImage | None] = dict.fromkeys(self.deleted_topics)
        for change in self.topic_changes.values():
            topic = TopicImage(change.name, change.id, tuple(change.partitions))
            by_name[topic.name] = topic
            by_id[topic.id] = topic
        configs: dict[tuple[int, str], Mapping[str, str] | None] = {
            resource: MappingProxyType(values) if values else None
            for resource, values in self.changed_configs.items()
        }
        return MetadataImage(
            end_offset=end_offset,
            epoch=epoch,
            timestamp_ms=timestamp_ms if timestamp_ms >= 0 else old.timestamp_ms,
            features=_merged(old.features, self.changed_features),
            brokers=_merged(old.brokers, self.changed_brokers),
            topics=old.topics.changed(by_name),
            topics_by_id=old.topics_by_id.changed(by_id),
            configs=old.configs.changed(configs),
            collision_names=old.collision_names.changed(
                {key: name if topic else None for name, topic in by_name.items() if (key := collision_key(name))}
            ),
            next_producer_id=self._next_producer_id,
            partition_count=old.partition_count + self._partition_change,
            directory_replicas=self._counted_directories(),
            controllers=_merged(old.controllers, self.changed_controllers),
        )

    def _counted_directories(self) -> Mapping[bytes, int]:
        if not self._directory_changes:
            return self.image.directory_replicas
        counts = dict(self.image.directory_replicas)
        for directory, change in self._directory_changes.items():
            counts[directory] = counts.get(directory, 0) + change
        return MappingProxyType({directory: count for directory, count in counts.items() if count})

    # --- topics ---------------------------------------------------------------------------------------------

    def _replay_topic(self, record: Any) -> None:
        self.topic_changes[record.topic_id] = TopicChange(record.name, record.topic_id, [], created=True)

    def _replay_partition(self, record: Any) -> None:
        self._put_partition(record.topic_id, record.partition_id, partition_from_record(record))

    def _put_partition(self, topic_id: bytes, number: int, partition: PartitionImage) -> None:
        change = self._change_of(topic_id)
        if number == len(change.partitions):
            change.partitions.append(partition)
            self._partition_change += 1
        elif 0 <= number < len(change.partitions):
            self._count_directories(change.partitions[number], -1)
            change.unclean_elections += is_unclean_election(change.partitions[number], partition)
            change.partitions[number] = partition
        else:
            raise UnsupportedRecord(f"partition {number} of {change.name} comes before its predecessors")
        self._count_directories(partition, 1)
        change.changed[number] = None

    def _replay_partition_change(self, record: Any) -> None:
        change = self._change_of(record.topic_id)
        old = change.partitions[record.partition_id]
        new = apply_change(old, record)
        if new.directories is not old.directories:
            self._count_directories(old, -1)
            self._count_directories(new, 1)
        change.unclean_elections += is_unclean_election(old, new)
        change.partitions[record.partition_id] = new
        change.changed[record.partition_id] = None

    def _replay_clear_elr(self, record: Any) -> None:
        """Forgets the eligible leader replicas of a topic, or of all topics where none is named."""
        if record.topic_name:
            ids = [change.id for change in self.topic_changes.values() if change.name == record.topic_name]
            known = self.image.topics.get(record.topic_name)
            if known is not None and known.id not in self.deleted_topics:
                ids.append(known.id)
        else:
            ids = [*self.topic_changes, *(t for t in self.image.topics_by_id if t not in self.deleted_topics)]
        for topic_id in dict.fromkeys(ids):
            change = self._change_of(topic_id)
            for number, partition in enumerate(change.partitions):
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    change.partitions[number] = without_elr(partition)
                    change.changed[number] = None

    def _replay_remove_topic(self, record: Any) -> None:
        """Removes the topic and, with it, its own settings."""
        topic_id = record.topic_id
        change = self._change_of(topic_id)
        del self.topic_changes[topic_id]
        for partition in change.partitions:
            self._count_directories(partition, -1)
        self._partition_change -= len(change.partitions)
        known = self.image.topics_by_id.get(topic_id)
        if known is not None:
            self.deleted_topics[topic_id] = known
        if self._config_of(TOPIC_RESOURCE, change.name):
            self.changed_configs[TOPIC_RESOURCE, change.name] = {}

    def _change_of(self, topic_id: bytes) -> TopicChange:
        change = self.topic_changes.get(topic_id)
        if change is None:
            known = None if topic_id in self.deleted_topics else self.image.topics_by_id.get(topic_id)
            if known is None:
                raise UnsupportedRecord(f"a record speaks of the topic id {topic_id.hex()}, which does not exist")
            change = TopicChange(known.name, known.id, list(known.partitions), created=False)
            self.topic_changes[topic_id] = change
        return change

    def _count_directories(self, partition: PartitionImage, change: int) -> None:
        counts = self._directory_changes
        for directory in partition.directories:
            counts[directory] = counts.get(directory, 0) + change

    # --- brokers --------------------------------------------------------------------------------------------

    def _replay_register_broker(self, record: Any) -> None:
        self.changed_brokers[record.broker_id] = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=_listeners(record),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            directories=tuple(record.log_dirs),
            features=_features(record),
            host=record.host,
        )

    def _replay_unregister_broker(self, record: Any) -> None:
        self.changed_brokers[record.broker_id] = None

    def _replay_registration_change(self, record: Any) -> None:
        """`fenced` and `in_controlled_shutdown`: 1 sets, -1 clears, 0 leaves as it is."""
        broker = self.changed_brokers.get(record.broker_id) or self.image.brokers.get(record.broker_id)
        if broker is None or broker.epoch != record.broker_epoch:
            raise UnsupportedRecord(f"a registration change names broker {record.broker_id} at an unknown epoch")
        if record.fenced:
            broker = broker._replace(fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = broker._replace(in_controlled_shutdown=record.in_controlled_shutdown > 0)
        if record.log_dirs:
            broker = broker._replace(directories=tuple(record.log_dirs))
        self.changed_brokers[record.broker_id] = broker

    def _replay_register_controller(self, record: Any) -> None:
        self.changed_controllers[record.controller_id] = ControllerImage(
            record.controller_id, record.incarnation_id, _listeners(record), _features(record)
        )

    def _replay_unregister_controller(self, record: Any) -> None:
        self.changed_controllers[record.controller_id] = None

    # --- the rest -------------------------------------------------------------------------------------------

    def _replay_config(self, record: Any) -> None:
        resource = (record.resource_type, record.resource_name)
        values = self.changed_configs.get(resource)
        if values is None:
            values = self.changed_configs[resource] = dict(self.image.config(*resource))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def _config_of(self, resource_type: int, name: str) -> Mapping[str, str]:
        changed = self.changed_configs.get((resource_type, name))
        return self.image.config(resource_type, name) if changed is None else changed

    def _replay_feature_level(self, record: Any) -> None:
        check_level(record.name, record.feature_level)
        self.changed_features[record.name] = record.feature_level

    def _replay_producer_ids(self, record: Any) -> None:
        self._next_producer_id = record.next_producer_id

    def _replay_nothing(self, record: Any) -> None:
        """NoOpRecord: it only moves the offset."""


_REPLAYS: dict[str, Callable[[MetadataDelta, Any], None]] = {
    "TopicRecord": MetadataDelta._replay_topic,
    "PartitionRecord": MetadataDelta._replay_partition,
    "PartitionChangeRecord": MetadataDelta._replay_partition_change,
    "RemoveTopicRecord": MetadataDelta._replay_remove_topic,
    "RegisterBrokerRecord": MetadataDelta._replay_register_broker,
    "UnregisterBrokerRecord": MetadataDelta._replay_unregister_broker,
    "BrokerRegistrationChangeRecord": MetadataDelta._replay_registration_change,
    "RegisterControllerRecord": MetadataDelta._replay_register_controller,
    "UnregisterControllerRecord": MetadataDelta._replay_unregister_controller,
    "ClearElrRecord": MetadataDelta._replay_clear_elr,
    "ConfigRecord": MetadataDelta._replay_config,
    "FeatureLevelRecord": MetadataDelta._replay_feature_level,
    "ProducerIdsRecord": MetadataDelta._replay_producer_ids,
    "NoOpRecord": MetadataDelta._replay_nothing,
}


def replay(image: MetadataImage, records: Iterable[RecordMessage], epoch: int = 0) -> MetadataImage:
    """The image after these records, which follow it in the log."""
    delta = MetadataDelta(image)
    end_offset = image.end_offset
    for record in records:
        delta.replay(record, end_offset)
        end_offset += 1
    return delta.close(end_offset, epoch)


def _listeners(record: Any) -> tuple[Listener, ...]:
    return tuple(
        Listener(at.name, at.host, at.port, _PROTOCOL_NAMES[at.security_protocol]) for at in record.end_points
    )


def _features(record: Any) -> tuple[tuple[str, int, int], ...]:
    return tuple((f.name, f.min_supported_version, f.max_supported_version) for f in record.features)


def _merged(old: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Mapping[Any, Any]:
    if not changes:
        return old
    merged = {**old, **changes}
    return MappingProxyType({key: value for key, value in merged.items() if value is not None})
