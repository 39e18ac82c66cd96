"""Snapshots: an image as records, in a file of Kafka's form, so that the log before it can go.

File `<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`: a control batch with the header, batches of records, a
control batch with the footer. Hard rule (R13): replaying a snapshot and the log behind it gives the image that
replaying the whole log gives. A file without its footer is not a snapshot.
"""

import gc
import re
from collections.abc import Iterable, Iterator

from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import record_version
from penstock.metadata.image import BrokerImage, ControllerImage, MetadataImage, TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.ports import Buffer
from penstock.quorum.control_records import (
    SNAPSHOT_FOOTER,
    SNAPSHOT_HEADER,
    build_snapshot_footer,
    build_snapshot_header,
    build_voters,
    control_type,
    snapshot_timestamp,
)
from penstock.quorum.messages import SnapshotId as SnapshotId  # known here by this name
from penstock.quorum.voters import VoterSet
from penstock.records.batch import CorruptBatch, crc_is_valid, iter_headers
from penstock.records.builder import BatchBuilder
from penstock.records.reader import read_records
from penstock.wire.generated.records_metadata import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import RecordMessage

_NAME = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_BATCH_BYTES = 256 * 1024


class CorruptSnapshot(Exception):
    """A snapshot file that cannot be used. The message is for the operator."""


def parse_snapshot_name(name: str) -> SnapshotId | None:
    match = _NAME.fullmatch(name)
    return SnapshotId(int(match[1]), int(match[2])) if match else None


def encode_snapshot(image: MetadataImage, now_ms: int, voters: VoterSet | None = None) -> Iterator[bytearray]:
    """The file, batch by batch, with the voters at its end. In the pool: the image does not change under it."""
    epoch = image.epoch
    yield build_snapshot_header(image.timestamp_ms, epoch, now_ms)
    offset = 1
    if voters is not None:
        yield build_voters(voters, epoch, now_ms, base_offset=offset, with_version=True)
        offset += 2
    builder = BatchBuilder()
    for record in image_records(image):
        builder.append(None, encode_metadata_record(record, record_version(record)), (), now_ms)
        if builder.size_estimate >= _BATCH_BYTES:
            count = builder.record_count
            yield builder.build(base_offset=offset, leader_epoch=epoch)
            offset += count
            builder = BatchBuilder()
    if builder.record_count:
        count = builder.record_count
        yield builder.build(base_offset=offset, leader_epoch=epoch)
        offset += count
    yield build_snapshot_footer(offset, epoch, now_ms)


def decode_snapshot(content: Buffer, snapshot: SnapshotId) -> MetadataImage:
    """The image that a snapshot file holds. Raises `CorruptSnapshot`."""
    delta = MetadataDelta(MetadataImage())
    timestamp_ms = replay_snapshot(content, snapshot, delta)
    return delta.close(snapshot.end_offset, snapshot.epoch, timestamp_ms)


def replay_snapshot(content: Buffer, snapshot: SnapshotId, delta: MetadataDelta) -> int:
    """Replays a snapshot file; answers its last contained log timestamp. Raises `CorruptSnapshot`."""
    timestamp_ms = -1
    last_control = 0
    end = 0
    collecting = gc.isenabled()
    gc.disable()  # all that is made here stays; looking at it again and again would take a third of the time
    try:
        for pos, header in iter_headers(content):
            if not crc_is_valid(content, pos, header):
                raise CorruptSnapshot(f"{snapshot.file_name} has a wrong checksum at byte {pos}")
            end = pos + header.size_bytes
            if header.is_control:
                last_control = control_type(content, pos)
                if last_control == SNAPSHOT_HEADER:
                    timestamp_ms = snapshot_timestamp(content, pos)
                continue
            for record in read_records(content, pos):
                delta.replay_encoded(record.value or b"", record.offset)
    except CorruptBatch as error:
        raise CorruptSnapshot(f"{snapshot.file_name} cannot be read: {error}") from error
    finally:
        if collecting:
            gc.enable()
    if last_control != SNAPSHOT_FOOTER or end != len(content):
        raise CorruptSnapshot(f"{snapshot.file_name} is not complete")
    return timestamp_ms


def image_records(image: MetadataImage) -> Iterator[RecordMessage]:
    """Records whose replay gives this image; features first, because they say how to read the rest."""
    for name, level in sorted(image.features.items()):
        yield FeatureLevelRecord(name, level)
    for broker in sorted(image.brokers.values()):
        yield broker_record(broker)
    for controller in sorted(image.controllers.values()):
        yield controller_record(controller)
    for name in sorted(image.topics):
        yield from topic_records(image.topics[name])
    for resource_type, resource_name in sorted(image.configs):
        for name, value in sorted(image.config(resource_type, resource_name).items()):
            yield ConfigRecord(resource_type, resource_name, name, value)
    if image.next_producer_id:
        yield ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id)


def topic_records(topic: TopicImage) -> Iterable[RecordMessage]:
    yield TopicRecord(topic.name, topic.id)
    for number, partition in enumerate(topic.partitions):
        yield partition_record(topic.id, number, partition)


def partition_record(topic_id: bytes, number: int, partition: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )


def broker_record(broker: BrokerImage) -> RegisterBrokerRecord:
    record = RegisterBrokerRecord
    return record(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            record.BrokerEndpoint(at.name, at.host, at.port, at.security_protocol_code) for at in broker.listeners
        ],
        features=[record.BrokerFeature(name, low, high) for name, low, high in broker.features],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.directories),
        host=broker.host,
    )


def controller_record(controller: ControllerImage) -> RegisterControllerRecord:
    record = RegisterControllerRecord
    return record(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        end_points=[
            record.ControllerEndpoint(at.name, at.host, at.port, at.security_protocol_code)
            for at in controller.listeners
        ],
        features=[record.ControllerFeature(name, low, high) for name, low, high in controller.features],
    )
