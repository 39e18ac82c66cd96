"""Persisted records: frames, registries, and what a newer release may have written."""

import pytest
from hypothesis import given

from penstock.wire import records
from penstock.wire.errors import UnknownRecordError, WireError
from penstock.wire.generated.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.generated.records_group import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from penstock.wire.generated.records_metadata import NoOpRecord, PartitionChangeRecord, TopicRecord
from penstock.wire.struct import RecordMessage
from tests.wire.messages import ALL_CASES, CASES_BY_NAME, Case, messages
from tests.wire.test_round_trip import quick

METADATA_CASES = [case for case in ALL_CASES if case.module == "records_metadata"]
REMOTE_CASES = [case for case in ALL_CASES if case.module == "records_tiering"]
KEY_CASES = [case for case in ALL_CASES if case.spec.kind == "coordinator-key"]
DECODERS = {"records_transaction": records.decode_transaction_record, "records_share": records.decode_share_record}


@pytest.mark.parametrize("case", METADATA_CASES + REMOTE_CASES, ids=lambda case: case.spec.name)
def test_metadata_records_round_trip(case: Case) -> None:
    decode = records.decode_metadata_record if case in METADATA_CASES else records.decode_remote_log_record
    for version in case.versions:

        @quick
        @given(record=messages(case.spec.name, version))
        def check(record: RecordMessage) -> None:
            raw = records.encode_metadata_record(record, version)  # noqa: B023 - called before the next round
            assert raw[0] == 1
            assert decode(raw) == record

        check()


@pytest.mark.parametrize("case", KEY_CASES, ids=lambda case: case.spec.name)
def test_coordinator_records_round_trip(case: Case) -> None:
    decode = DECODERS.get(case.module, records.decode_group_record)
    value_case = CASES_BY_NAME[case.spec.name.removesuffix("Key") + "Value"]
    for version in value_case.versions:

        @quick
        @given(messages(case.spec.name, 0), messages(value_case.spec.name, version))
        def check(key: RecordMessage, value: RecordMessage) -> None:
            raw_key = records.encode_coordinator_key(key)
            assert int.from_bytes(raw_key[:2], "big") == case.spec.key
            raw_value = records.encode_coordinator_value(value, version)  # noqa: B023 - as above
            assert decode(raw_key, raw_value) == (key, value)
            assert decode(raw_key, None) == (key, None)

        check()


def test_every_persisted_type_has_its_own_key() -> None:
    for kind in ("metadata", "coordinator-key", "coordinator-value"):
        for modules in (
            {"records_metadata"},
            {"records_tiering"},
            {"records_transaction"},
            {"records_share"},
            {"records_group", "records_consumer_group", "records_share_group", "records_streams_group"},
        ):
            keys = [case.spec.key for case in ALL_CASES if case.module in modules and case.spec.kind == kind]
            assert len(keys) == len(set(keys))


def test_known_bytes() -> None:
    # Frame 1, type 2, version 0, compact name, topic id, no tags: as kafka-dump-log decodes it.
    raw = records.encode_metadata_record(TopicRecord("foo", bytes(range(16))), 0)
    assert raw == b"\x01\x02\x00\x04foo" + bytes(range(16)) + b"\x00"
    assert records.encode_metadata_record(NoOpRecord(), 0) == b"\x01\x14\x00\x00"
    change = PartitionChangeRecord(1, bytes(16), isr=[1, 2], leader=-1)
    assert records.encode_metadata_record(change, 0) == (
        b"\x01\x05\x00\x00\x00\x00\x01"
        + bytes(16)
        + b"\x02\x00\x09\x03\x00\x00\x00\x01\x00\x00\x00\x02\x01\x04\xff\xff\xff\xff"
    )
    key = records.encode_coordinator_key(OffsetCommitKey("g", "t", 3))
    assert key == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    value = records.encode_coordinator_value(OffsetCommitValue(7, -1, "", 5), 3)
    assert value == b"\x00\x03" + (7).to_bytes(8, "big") + b"\xff\xff\xff\xff\x00\x00" + (5).to_bytes(8, "big")


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x02\x02\x00", id="frame"),
        pytest.param(b"\x01\xff\x01\x00", id="type"),
        pytest.param(b"\x01\x02\x07\x04foo" + bytes(17), id="version"),
    ],
)
def test_newer_metadata_is_never_skipped(raw: bytes) -> None:
    with pytest.raises(UnknownRecordError, match="newer release"):
        records.decode_metadata_record(raw)


def test_newer_group_records_are_never_skipped() -> None:
    with pytest.raises(UnknownRecordError):
        records.decode_group_record(b"\x00\x63\x00\x01g", None)
    key = records.encode_coordinator_key(GroupMetadataKey("g"))
    with pytest.raises(UnknownRecordError):
        records.decode_group_record(key, b"\x00\x05" + bytes(40))


def test_damaged_records_are_wire_errors() -> None:
    raw = records.encode_metadata_record(TopicRecord("foo", bytes(16)), 0)
    for cut in range(len(raw)):
        with pytest.raises(WireError):
            records.decode_metadata_record(raw[:cut])
    with pytest.raises(WireError, match="bytes after"):
        records.decode_metadata_record(raw + b"\0")
    with pytest.raises(WireError):
        records.decode_group_record(b"\0", None)
    key = records.encode_coordinator_key(GroupMetadataKey("g"))
    value = records.encode_coordinator_value(GroupMetadataValue("consumer"), 3)
    for cut in range(len(value)):
        with pytest.raises(WireError):
            records.decode_group_record(key, value[:cut])


def test_versioned_messages_outside_logs() -> None:
    subscription = ConsumerProtocolSubscription(["a", "b"], None, generation_id=4)
    raw = records.encode_versioned(subscription, 2)
    assert raw[:2] == b"\x00\x02"
    assert records.decode_versioned(ConsumerProtocolSubscription, raw) == subscription
