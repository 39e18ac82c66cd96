"""The quick way of reading partition records says what the plain one says."""

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.features import record_version
from penstock.metadata.partition import partition_from_record
from penstock.metadata.partition_codec import decode_partition
from penstock.wire.errors import WireError
from penstock.wire.generated.records_metadata import PartitionRecord
from penstock.wire.records import decode_metadata_record, encode_metadata_record

IDS = st.lists(st.integers(-2, 5) | st.integers(-(1 << 31), (1 << 31) - 1), max_size=5)
MANY = st.lists(st.integers(0, 300), min_size=120, max_size=140)
NUMBERS = st.integers(-1, (1 << 31) - 1)


@st.composite
def partition_records(draw: st.DrawFn) -> PartitionRecord:
    return PartitionRecord(
        partition_id=draw(NUMBERS),
        topic_id=draw(st.binary(min_size=16, max_size=16)),
        replicas=draw(IDS | MANY),
        isr=draw(IDS | MANY),
        removing_replicas=draw(IDS),
        adding_replicas=draw(IDS),
        leader=draw(NUMBERS),
        leader_recovery_state=draw(st.sampled_from([0, 0, 1])),
        leader_epoch=draw(NUMBERS),
        partition_epoch=draw(NUMBERS),
        directories=draw(st.lists(st.binary(min_size=16, max_size=16), max_size=3)),
        eligible_leader_replicas=draw(st.none() | IDS),
        last_known_elr=draw(st.none() | IDS),
    )


@settings(max_examples=200, deadline=None)
@given(partition_records())
def test_same_state(record: PartitionRecord) -> None:
    value = encode_metadata_record(record, record_version(record))
    for _ in range(2):  # the second time it is looked up
        assert decode_partition(value) == partition_from_record(decode_metadata_record(value))


@settings(max_examples=100, deadline=None)
@given(partition_records(), st.data())
def test_epochs_alone_may_differ(record: PartitionRecord, data: st.DataObject) -> None:
    decode_partition(encode_metadata_record(record, record_version(record)))
    record.leader, record.leader_epoch, record.partition_epoch = [data.draw(NUMBERS) for _ in range(3)]
    value = encode_metadata_record(record, record_version(record))
    assert decode_partition(value) == partition_from_record(decode_metadata_record(value))


@settings(max_examples=200, deadline=None)
@given(partition_records(), st.data())
def test_damage_is_noticed_by_both_or_neither(record: PartitionRecord, data: st.DataObject) -> None:
    value = bytearray(encode_metadata_record(record, record_version(record)))
    value[data.draw(st.integers(23, len(value) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del value[data.draw(st.integers(24, len(value))) :]
    damaged = bytes(value)

    def read(quickly: bool) -> object:
        try:
            if quickly:
                return decode_partition(damaged)
            return partition_from_record(decode_metadata_record(damaged))  # type: ignore[arg-type]
        except WireError:
            return WireError

    assert read(quickly=True) == read(quickly=False)
