"""Replay: deterministic, independent of how records are grouped, and honest about what it does not know."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.delta import MetadataDelta, UnsupportedRecord, replay
from penstock.metadata.features import METADATA_LEVEL, METADATA_VERSION, UnsupportedLevel, record_version
from penstock.metadata.image import MetadataImage
from penstock.metadata.partition import PartitionImage
from penstock.sim.image_law import by_value
from penstock.wire.errors import WireError
from penstock.wire.generated.records_metadata import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import RecordMessage
from tests.metadata.histories import histories

ID = b"t" * 16
DIRECTORY = b"d" * 16


def topic_with(count: int, name: str = "orders") -> list[RecordMessage]:
    return [
        TopicRecord(name, ID),
        *(
            PartitionRecord(
                number, ID, [1], [1], leader=1, leader_epoch=0, partition_epoch=0, directories=[DIRECTORY]
            )
            for number in range(count)
        ),
    ]


@settings(max_examples=80, deadline=None)
@given(histories(), st.integers(1, 7))
def test_grouping_does_not_matter(records: list[RecordMessage], group: int) -> None:
    at_once = replay(MetadataImage(), records)
    in_groups = MetadataImage()
    for start in range(0, len(records), group):
        in_groups = replay(in_groups, records[start : start + group])
    assert by_value(in_groups) == by_value(at_once)


@settings(max_examples=80, deadline=None)
@given(histories())
def test_indexes_agree(records: list[RecordMessage]) -> None:
    image = replay(MetadataImage(), records)
    by_id = {topic.id: topic for topic in image.topics.values()}
    assert by_id == dict(image.topics_by_id.items())
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics.values())
    replicas = Counter(d for t in image.topics.values() for p in t.partitions for d in p.directories)
    assert dict(image.directory_replicas) == dict(replicas)
    with_marks = {name.replace(".", "_"): name for name in image.topics if "." in name or "_" in name}
    assert dict(image.collision_names.items()) == with_marks


@settings(max_examples=80, deadline=None)
@given(histories())
def test_replay_from_bytes_is_the_same(records: list[RecordMessage]) -> None:
    delta = MetadataDelta(MetadataImage())
    for offset, record in enumerate(records):
        delta.replay_encoded(encode_metadata_record(record, record_version(record)), offset)
    assert by_value(delta.close(len(records), 0)) == by_value(replay(MetadataImage(), records))


@settings(max_examples=50, deadline=None)
@given(histories(), st.data())
def test_an_old_image_stays_as_it_was(records: list[RecordMessage], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    early = replay(MetadataImage(), records[:cut])
    before = by_value(early)
    replay(early, records[cut:])
    assert by_value(early) == before


def test_a_topic_and_its_partitions() -> None:
    image = replay(MetadataImage(), topic_with(2))
    topic = image.topic("orders")
    assert topic is not None
    assert topic is image.topic_by_id(ID)
    assert len(topic.partitions) == 2
    assert topic.partition(2) is None
    assert topic.partition(-1) is None
    assert image.partition("orders", 1) == PartitionImage((1,), (1,), 1, directories=(DIRECTORY,))
    assert image.partition("nothing", 0) is None
    assert topic.partitions[0].directory_of(1) == DIRECTORY
    assert topic.partitions[0].directory_of(2) == bytes(16)


def test_equal_partitions_are_one_object() -> None:
    image = replay(MetadataImage(), topic_with(100))
    topic = image.topic("orders")
    assert topic is not None
    assert len({id(partition) for partition in topic.partitions}) == 1


def test_epochs_of_a_partition_grow() -> None:
    image = replay(MetadataImage(), topic_with(1))
    for record, leader_epoch, partition_epoch in (
        (PartitionChangeRecord(0, ID, isr=[1]), 0, 1),
        (PartitionChangeRecord(0, ID, leader=-1), 1, 2),
        (PartitionChangeRecord(0, ID, leader=1), 2, 3),
        (PartitionChangeRecord(0, ID, leader=1), 3, 4),
    ):
        image = replay(image, [record])
        partition = image.partition("orders", 0)
        assert partition is not None
        assert (partition.leader_epoch, partition.partition_epoch) == (leader_epoch, partition_epoch), "C2"


def test_a_deleted_topic_takes_its_settings_along() -> None:
    image = replay(MetadataImage(), [*topic_with(1), ConfigRecord(2, "orders", "retention.ms", "1")])
    assert image.topic_config("orders") == {"retention.ms": "1"}
    image = replay(image, [RemoveTopicRecord(ID)])
    assert image.topic("orders") is None
    assert image.topic_config("orders") == {}
    assert len(image.configs) == 0


def test_a_name_can_be_used_again_in_one_change() -> None:
    image = replay(MetadataImage(), topic_with(3))
    delta = MetadataDelta(image)
    delta.replay(RemoveTopicRecord(ID))
    delta.replay(TopicRecord("orders", b"n" * 16))
    after = delta.close(10, 1)
    topic = after.topic("orders")
    assert topic is not None
    assert (topic.id, after.topic_by_id(ID)) == (b"n" * 16, None)
    assert [topic.id for topic in delta.deleted_topics.values()] == [ID]
    assert after.partition_count == 0


def test_a_delta_tells_what_changed() -> None:
    image = replay(MetadataImage(), topic_with(3))
    delta = MetadataDelta(image)
    assert delta.is_empty
    delta.replay(PartitionChangeRecord(1, ID, isr=[1, 2]))
    delta.replay(ConfigRecord(2, "orders", "retention.ms", "1"))
    assert not delta.is_empty
    assert [(change.name, number, state.isr) for change, number, state in delta.changed_partitions()] == [
        ("orders", 1, (1, 2))
    ]
    assert delta.changed_configs == {(2, "orders"): {"retention.ms": "1"}}
    assert not delta.topic_changes[ID].created


def test_unknown_things_stop_the_node() -> None:
    for record, complaint in (
        (AccessControlEntryRecord(), "AccessControlEntryRecord"),
        (RemoveTopicRecord(b"x" * 16), "does not exist"),
        (PartitionChangeRecord(0, b"x" * 16), "does not exist"),
        (BrokerRegistrationChangeRecord(9, 1), "unknown epoch"),
    ):
        with pytest.raises(UnsupportedRecord, match=complaint):
            replay(MetadataImage(), [record])
    with pytest.raises(UnsupportedRecord, match="predecessors"):
        replay(MetadataImage(), [TopicRecord("t", ID), PartitionRecord(1, ID)])


def test_a_newer_level_stops_the_node() -> None:
    for name, level in ((METADATA_VERSION, METADATA_LEVEL + 1), (METADATA_VERSION, 0), ("later.feature", 1)):
        with pytest.raises(UnsupportedLevel, match=name):
            replay(MetadataImage(), [FeatureLevelRecord(name, level)])
    image = replay(MetadataImage(), [FeatureLevelRecord("group.version", 0)])
    assert image.features == {"group.version": 0}


def test_malformed_bytes_are_refused() -> None:
    whole = encode_metadata_record(topic_with(1)[1], 1)
    delta = MetadataDelta(replay(MetadataImage(), topic_with(0)))
    for value in (b"", b"\x01", whole[:20], whole[:-1], whole + b"x", b"\x01\x03\x63" + whole[3:]):
        with pytest.raises(WireError):
            delta.replay_encoded(value, 0)
    delta.replay_encoded(whole, 0)
