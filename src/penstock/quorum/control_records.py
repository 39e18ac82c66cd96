"""Control records of the metadata log and its snapshots, as whole batches in Kafka's form.

A control record's key is its type behind an int16 version; its value is the message itself.
"""

from struct import Struct as Packer

from penstock.model.ports import Buffer
from penstock.quorum.bundle import LeaderChange
from penstock.records.builder import build_batch
from penstock.records.reader import read_records
from penstock.wire.generated.records_control import LeaderChangeMessage, SnapshotFooterRecord, SnapshotHeaderRecord
from penstock.wire.struct import Message

LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4

_KEY = Packer(">hh")
_KEY_VERSION = 0
_VERSION = 0


def build_leader_change(change: LeaderChange, timestamp_ms: int) -> bytearray:
    """The batch that opens an epoch."""
    voter = LeaderChangeMessage.Voter
    message = LeaderChangeMessage(
        leader_id=change.leader.id,
        voters=[voter(key.id) for key in sorted(change.voters.keys)],
        granting_voters=[voter(key.id) for key in sorted(change.granting_voters)],
    )
    return _build(LEADER_CHANGE, message, timestamp_ms, 0, change.epoch)


def build_snapshot_header(last_contained_timestamp_ms: int, epoch: int, now_ms: int) -> bytearray:
    message = SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_timestamp_ms)
    return _build(SNAPSHOT_HEADER, message, now_ms, 0, epoch)


def build_snapshot_footer(base_offset: int, epoch: int, now_ms: int) -> bytearray:
    return _build(SNAPSHOT_FOOTER, SnapshotFooterRecord(), now_ms, base_offset, epoch)


def control_type(batch: Buffer, pos: int = 0) -> int:
    """The type of the control record in this control batch."""
    (record,) = read_records(batch, pos)
    _, kind = _KEY.unpack_from(record.key or b"\0\0\0\0")
    return int(kind)


def snapshot_timestamp(batch: Buffer, pos: int = 0) -> int:
    """The last contained log timestamp that a snapshot's header names."""
    (record,) = read_records(batch, pos)
    header, _ = SnapshotHeaderRecord.decode(record.value or b"", 0, _VERSION)
    return header.last_contained_log_timestamp


def _build(kind: int, message: Message, timestamp_ms: int, base_offset: int, epoch: int) -> bytearray:
    value = bytearray()
    message.encode(_VERSION, value)
    records = [(_KEY.pack(_KEY_VERSION, kind), bytes(value))]
    return build_batch(records, timestamp_ms=timestamp_ms, base_offset=base_offset, leader_epoch=epoch, control=True)
