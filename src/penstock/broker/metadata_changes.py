"""From one image to another in one step, as when a follower takes the leader's snapshot: what listeners are told."""

from collections.abc import Iterator

from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.metadata.snapshot import image_records
from penstock.wire.generated.records_metadata import (
    ConfigRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from penstock.wire.struct import RecordMessage


def delta_between(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """A delta on `old` that says what is different in `new`. Unchanged topics are not in it."""
    delta = MetadataDelta(old)
    for record in _removals(old, new):
        delta.replay(record)
    same = {topic_id for topic_id, topic in new.topics_by_id.items() if old.topics_by_id.get(topic_id) == topic}
    for record in image_records(new):
        topic_id = getattr(record, "topic_id", None)
        if topic_id not in same or not isinstance(topic_id, bytes):
            delta.replay(record)
    return delta


def _removals(old: MetadataImage, new: MetadataImage) -> Iterator[RecordMessage]:
    for broker in old.brokers.values():
        if broker.id not in new.brokers:
            yield UnregisterBrokerRecord(broker.id, broker.epoch)
    for controller_id in old.controllers:
        if controller_id not in new.controllers:
            yield UnregisterControllerRecord(controller_id)
    for topic_id in old.topics_by_id:
        if topic_id not in new.topics_by_id:
            yield RemoveTopicRecord(topic_id)
    for resource_type, resource_name in old.configs:
        kept = new.config(resource_type, resource_name)
        for name in old.config(resource_type, resource_name):
            if name not in kept:
                yield ConfigRecord(resource_type, resource_name, name, None)
