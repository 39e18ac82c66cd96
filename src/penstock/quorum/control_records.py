"""Control records of the metadata log and its snapshots, as whole batches in Kafka's form.

A control record's key is its type behind an int16 version; its value is the message itself.
"""

from struct import Struct as Packer

from penstock.model.ports import Buffer
from penstock.quorum.bundle import LeaderChange
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Endpoint, Voter, VoterSet
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.reader import read_records
from penstock.wire.generated.records_control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from penstock.wire.struct import Message

LEADER_CHANGE = 2
SNAPSHOT_HEADER = 3
SNAPSHOT_FOOTER = 4
KRAFT_VERSION = 5
VOTERS = 6

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


def build_voters(
    voters: VoterSet, epoch: int, timestamp_ms: int, *, base_offset: int = 0, with_version: bool
) -> bytearray:
    """The batch of a change of voters. The first one also says that voters are kept in the log (kraft.version 1)."""
    record = VotersRecord
    written = record(
        voters=[
            record.Voter(
                voter.key.id,
                voter.key.directory_id,
                [record.Endpoint(at.name, at.host, at.port) for at in voter.endpoints],
                record.KRaftVersionFeature(0, 1),
            )
            for voter in voters.by_id.values()
        ]
    )
    records = [_encode(KRAFT_VERSION, KRaftVersionRecord(k_raft_version=1))] if with_version else []
    records.append(_encode(VOTERS, written))
    return build_batch(records, timestamp_ms=timestamp_ms, base_offset=base_offset, leader_epoch=epoch, control=True)


def voters_in(content: Buffer) -> list[tuple[int, VoterSet]]:
    """The voter sets in these batches, each with the base offset of its batch."""
    found = []
    for pos, header in iter_headers(content):
        for record in read_records(content, pos) if header.is_control else ():
            if _kind(record.key) == VOTERS:
                found.append((header.base_offset, _decode_voters(record.value or b"")))
    return found


def _decode_voters(value: Buffer) -> VoterSet:
    record, _ = VotersRecord.decode(value, 0, _VERSION)
    return VoterSet(
        Voter(
            ReplicaKey(voter.voter_id, voter.voter_directory_id),
            tuple(Endpoint(at.name, at.host, at.port) for at in voter.endpoints),
        )
        for voter in record.voters
    )


def build_snapshot_header(last_contained_timestamp_ms: int, epoch: int, now_ms: int) -> bytearray:
    message = SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_timestamp_ms)
    return _build(SNAPSHOT_HEADER, message, now_ms, 0, epoch)


def build_snapshot_footer(base_offset: int, epoch: int, now_ms: int) -> bytearray:
    return _build(SNAPSHOT_FOOTER, SnapshotFooterRecord(), now_ms, base_offset, epoch)


def control_type(batch: Buffer, pos: int = 0) -> int:
    """The type of the last control record in this control batch."""
    return _kind(read_records(batch, pos)[-1].key)


def _kind(key: Buffer | None) -> int:
    return int(_KEY.unpack_from(key or b"\0\0\0\0")[1])


def snapshot_timestamp(batch: Buffer, pos: int = 0) -> int:
    """The last contained log timestamp that a snapshot's header names."""
    (record,) = read_records(batch, pos)
    header, _ = SnapshotHeaderRecord.decode(record.value or b"", 0, _VERSION)
    return header.last_contained_log_timestamp


def _build(kind: int, message: Message, timestamp_ms: int, base_offset: int, epoch: int) -> bytearray:
    records = [_encode(kind, message)]
    return build_batch(records, timestamp_ms=timestamp_ms, base_offset=base_offset, leader_epoch=epoch, control=True)


def _encode(kind: int, message: Message) -> tuple[bytes, bytes]:
    value = bytearray()
    message.encode(_VERSION, value)
    return _KEY.pack(_KEY_VERSION, kind), bytes(value)
