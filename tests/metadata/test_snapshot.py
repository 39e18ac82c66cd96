"""Snapshots: replaying one gives the image it was made of; a damaged one is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.delta import replay
from penstock.metadata.features import record_version
from penstock.metadata.image import MetadataImage
from penstock.metadata.snapshot import (
    CorruptSnapshot,
    SnapshotId,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
)
from penstock.records.batch import iter_headers
from penstock.sim.image_law import by_value
from penstock.wire.records import decode_metadata_record, encode_metadata_record
from penstock.wire.struct import RecordMessage
from tests.metadata.histories import histories
from tests.metadata.test_replay import topic_with


def snapshot_of(image: MetadataImage) -> tuple[bytes, SnapshotId]:
    return b"".join(encode_snapshot(image, 1234)), SnapshotId(image.end_offset, image.epoch)


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_snapshot_and_tail_equal_the_whole_log(records: list[RecordMessage], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    early = replay(MetadataImage(), records[:cut], epoch=3)._replace(timestamp_ms=99)
    content, snapshot = snapshot_of(early)
    loaded = decode_snapshot(content, snapshot)
    assert by_value(loaded) == by_value(early)
    whole = replay(MetadataImage(), records, epoch=3)
    assert by_value(replay(loaded, records[cut:], epoch=3)) == {**by_value(whole), "timestamp_ms": 99}, "R13"


@settings(max_examples=60, deadline=None)
@given(histories())
def test_records_survive_their_bytes(records: list[RecordMessage]) -> None:
    for record in records:
        assert decode_metadata_record(encode_metadata_record(record, record_version(record))) == record


def test_it_is_framed_by_control_batches() -> None:
    content, _ = snapshot_of(replay(MetadataImage(), topic_with(10_000), epoch=5))
    headers = [header for _, header in iter_headers(content)]
    assert headers[0].is_control
    assert headers[-1].is_control
    assert len(headers) > 3, "a large image is several batches"
    assert not any(header.is_control for header in headers[1:-1])
    offset = 0
    for header in headers:
        assert (header.base_offset, header.partition_leader_epoch) == (offset, 5)
        offset = header.next_offset


def test_names() -> None:
    snapshot = SnapshotId(1234, 7)
    assert snapshot.file_name == "00000000000000001234-0000000007.checkpoint"
    assert parse_snapshot_name(snapshot.file_name) == snapshot
    for name in ("00000000000000001234-0000000007.checkpoint.part", "quorum-state", "00000000000000001234.log"):
        assert parse_snapshot_name(name) is None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_noticed(data: st.DataObject) -> None:
    content, snapshot = snapshot_of(replay(MetadataImage(), topic_with(3)))
    damaged = bytearray(content)
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        at = data.draw(st.integers(21, 60))  # under a checksum: the attributes of the first batch onwards
        damaged[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptSnapshot):
        decode_snapshot(bytes(damaged), snapshot)
