"""Changes of metadata that come from the leader, batches or a whole snapshot, as deltas for this node's listeners."""

import asyncio
from collections.abc import Iterator

from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.metadata.snapshot import image_records
from penstock.model.ports import Buffer
from penstock.records.batch import iter_headers
from penstock.records.reader import read_records
from penstock.wire.generated.records_metadata import (
    ConfigRecord,
    RemoveTopicRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from penstock.wire.struct import RecordMessage

RECORDS_PER_TURN = 1_000


async def replay_in_turns(batches: Buffer, delta: MetadataDelta) -> int:
    """Answers the timestamp of the last batch. In turns, so that a large change does not keep the loop."""
    timestamp_ms, count = -1, 0
    for pos, header in iter_headers(batches):
        timestamp_ms = header.max_timestamp
        for record in read_records(batches, pos) if not header.is_control else ():
            delta.replay_encoded(record.value or b"", record.offset)
            count += 1
            if count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
    return timestamp_ms


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
