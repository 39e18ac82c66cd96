"""A whole image in place of another: listeners hear what is different, and nothing else."""

from penstock.broker.metadata_changes import delta_between
from penstock.metadata.delta import replay
from penstock.metadata.image import MetadataImage
from penstock.metadata.snapshot import decode_snapshot, encode_snapshot, parse_snapshot_name
from penstock.quorum.control_records import voters_in
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.messages import SnapshotId
from penstock.quorum.voters import Endpoint, Voter, VoterSet
from penstock.wire.generated.records_metadata import (
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

KEPT, GONE, NEW = b"k" * 16, b"g" * 16, b"n" * 16


def before() -> MetadataImage:
    return replay(
        MetadataImage(),
        [
            RegisterBrokerRecord(broker_id=1, broker_epoch=1),
            RegisterBrokerRecord(broker_id=2, broker_epoch=2),
            TopicRecord("kept", KEPT),
            PartitionRecord(partition_id=0, topic_id=KEPT, replicas=[1], isr=[1], leader=1),
            TopicRecord("gone", GONE),
            PartitionRecord(partition_id=0, topic_id=GONE, replicas=[1], isr=[1], leader=1),
            ConfigRecord(2, "kept", "retention.ms", "1"),
            ConfigRecord(4, "", "num.partitions", "3"),
        ],
    )


def test_only_differences_are_told() -> None:
    old = before()
    new = replay(
        old,
        [
            RemoveTopicRecord(GONE),
            UnregisterBrokerRecord(2, 2),
            TopicRecord("new", NEW),
            PartitionRecord(partition_id=0, topic_id=NEW, replicas=[1], isr=[1], leader=1),
            ConfigRecord(2, "kept", "retention.ms", None),
        ],
    )
    delta = delta_between(old, new)
    assert set(delta.deleted_topics) == {GONE}
    assert [(change.name, number) for change, number, _ in delta.changed_partitions()] == [("new", 0)]
    assert delta.changed_brokers[2] is None
    assert delta.changed_configs[2, "kept"] == {}
    assert delta.changed_configs[4, ""] == {"num.partitions": "3"}


def test_a_snapshot_names_its_voters() -> None:
    image = before()
    voters = VoterSet([Voter(ReplicaKey(1, b"d" * 16), (Endpoint("CONTROLLER", "h", 9093),))])
    content = b"".join(encode_snapshot(image, 0, voters))
    snapshot = SnapshotId(image.end_offset, image.epoch)
    assert set(decode_snapshot(content, snapshot).topics) == set(image.topics)
    ((_, found),) = voters_in(content)
    assert found == voters
    assert parse_snapshot_name(snapshot.file_name) == snapshot
    assert voters_in(b"".join(encode_snapshot(image, 0))) == []
