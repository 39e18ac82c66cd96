"""The Fetch response frame, written around records that stay in their files.

`encode_fetch_frame` returns pieces in the order of the wire: `bytes` to send as they are, and an `int` where the
records of that partition go (its number in the flat order of the answer). A partition without records
has no piece of its own, so an empty answer is a single `bytes`.
"""

from collections.abc import Sequence
from struct import Struct as Packer
from typing import NamedTuple

from penstock.wire.errors import UnsupportedVersionError
from penstock.wire.primitives import (
    encode_uvarint,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_string,
    write_tagged_field,
    write_uvarint,
)

_FIRST_VERSION, _LAST_VERSION = 4, 18
_FLEXIBLE_FROM = 12
_IDS_FROM = 13
_NULL_ARRAY = b"\xff\xff\xff\xff"

Piece = bytes | int


class FetchedPartition(NamedTuple):
    """What is told of one partition. Hints come with KIP-595 (epochs, snapshots) and KIP-951 (leader)."""

    partition_index: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records_bytes: int
    aborted_transactions: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None: not asked for
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None  # epoch, end offset
    current_leader: tuple[int, int] | None = None  # leader id, leader epoch
    snapshot_id: tuple[int, int] | None = None  # end offset, epoch


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


Topics = Sequence[tuple[str | bytes, Sequence[FetchedPartition]]]

# index, error code, high watermark, last stable offset, log start offset
_PARTITION = "ihqqq"
# frame size, correlation id, header tags, throttle time, error code, session id, topic count
_flexible_start = Packer(">iiBihiB")
_ids_only = Packer(">iiBihiB16sB" + _PARTITION + "Bi")  # … no aborted transactions, preferred replica
_flexible_only = Packer(">B" + _PARTITION + "Bi")
_pack_flexible_start = _flexible_start.pack
_pack_ids_only = _ids_only.pack
_pack_flexible_only = _flexible_only.pack
_IDS_ONLY_BYTES = _ids_only.size - 4
_FLEXIBLE_ONLY_BYTES = _flexible_start.size + _flexible_only.size - 4
_plain_start = Packer(
    ">iiihiih"
)  # frame size, correlation id, throttle time, error code, session id, count, name length
_plain_only = Packer(">i" + _PARTITION + "iii")  # … no aborted transactions, preferred replica, records length
_pack_plain_start = _plain_start.pack
_pack_plain_only = _plain_only.pack
_PLAIN_ONLY_BYTES = _plain_start.size + _plain_only.size - 4
_NO_TAGS = bytes(3)  # of the partition, the topic and the response

_pack_correlation = Packer(">xxxxi").pack
_pack_session = Packer(">hi").pack
_pack_int32 = Packer(">i").pack
_pack_partition = Packer(">" + _PARTITION).pack
_pack_partition_4 = Packer(">ihqq").pack
_pack_aborted = Packer(">qq").pack
_pack_epoch_offset = Packer(">iqB").pack
_pack_leader = Packer(">iiB").pack
_pack_snapshot = Packer(">qiB").pack
_pack_node_id = Packer(">i").pack


def encode_fetch_frame(
    correlation_id: int,
    version: int,
    topics: Topics,
    *,
    throttle_time_ms: int = 0,
    error_code: int = 0,
    session_id: int = 0,
    node_endpoints: Sequence[NodeEndpoint] = (),
) -> list[Piece]:
    """The whole frame, size and header included, as pieces."""
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise UnsupportedVersionError(f"Fetch has versions {_FIRST_VERSION}–{_LAST_VERSION}, not {version}")
    if len(topics) == 1 and version >= 11 and len(topics[0][1]) == 1 and not node_endpoints:
        topic, (only,) = topics[0]
        if not (only[6] or only[8] or only[9] or only[10]):
            session = (throttle_time_ms, error_code, session_id)
            if version >= _FLEXIBLE_FROM:
                return _encode_only_flexible(correlation_id, version, topic, only, session)
            return _encode_only_plain(correlation_id, topic, only, session)
    frame = _Frame(correlation_id, version)
    frame.write(topics, throttle_time_ms, error_code, session_id, node_endpoints)
    return frame.finish()


def _encode_only_flexible(
    correlation_id: int, version: int, topic: str | bytes, only: FetchedPartition, session: tuple[int, int, int]
) -> list[Piece]:
    """One partition without aborted transactions and hints, version 12 and up."""
    index, error, high_watermark, stable, start, size, aborted, replica, _, _, _ = only
    length = encode_uvarint(size + 1)
    tail_bytes = len(length) + size + 3
    no_aborted = 0 if aborted is None else 1
    # fmt: off
    if version >= _IDS_FROM:
        head = _pack_ids_only(
            _IDS_ONLY_BYTES + tail_bytes, correlation_id, 0, *session, 2, topic, 2,
            index, error, high_watermark, stable, start, no_aborted, replica,
        ) + length
    else:
        name = topic.encode()  # type: ignore[union-attr]
        name = encode_uvarint(len(name) + 1) + name
        head = b"".join((
            _pack_flexible_start(_FLEXIBLE_ONLY_BYTES + len(name) + tail_bytes, correlation_id, 0, *session, 2), name,
            _pack_flexible_only(2, index, error, high_watermark, stable, start, no_aborted, replica), length,
        ))
    # fmt: on
    return [head, 0, _NO_TAGS] if size else [head + _NO_TAGS]


def _encode_only_plain(
    correlation_id: int, topic: str | bytes, only: FetchedPartition, session: tuple[int, int, int]
) -> list[Piece]:
    """One partition without aborted transactions, version 11."""
    index, error, high_watermark, stable, start, size, aborted, replica, _, _, _ = only
    name = topic.encode()  # type: ignore[union-attr]
    no_aborted = -1 if aborted is None else 0
    # fmt: off
    head = b"".join((
        _pack_plain_start(_PLAIN_ONLY_BYTES + len(name) + size, correlation_id, *session, 1, len(name)), name,
        _pack_plain_only(1, index, error, high_watermark, stable, start, no_aborted, replica, size),
    ))
    # fmt: on
    return [head, 0] if size else [head]


class _Frame:
    """Writes pieces; `out` is the one being written."""

    def __init__(self, correlation_id: int, version: int) -> None:
        self.version = version
        self.out = bytearray(_pack_correlation(correlation_id))
        self.pieces: list[bytearray | int] = [self.out]
        self.records_bytes = 0

    def finish(self) -> list[Piece]:
        size = self.records_bytes - 4
        for piece in self.pieces:
            if isinstance(piece, bytearray):
                size += len(piece)
        first = self.pieces[0]
        assert isinstance(first, bytearray)
        first[0:4] = _pack_int32(size)
        return [bytes(piece) if isinstance(piece, bytearray) else piece for piece in self.pieces]

    def write(
        self,
        topics: Topics,
        throttle_time_ms: int,
        error_code: int,
        session_id: int,
        node_endpoints: Sequence[NodeEndpoint],
    ) -> None:
        flexible = self.version >= _FLEXIBLE_FROM
        if flexible:
            self.out.append(0)
        self.out += _pack_int32(throttle_time_ms)
        if self.version >= 7:
            self.out += _pack_session(error_code, session_id)
        if flexible:
            self._write_flexible(topics)
            self._write_endpoints(node_endpoints)
        else:
            self._write_plain(topics)

    def _place_records(self, number: int, size: int) -> None:
        if size > 0:
            self.out = bytearray()
            self.pieces += (number, self.out)
            self.records_bytes += size

    def _write_flexible(self, topics: Topics) -> None:
        write_compact_count(self.out, topics)
        number = 0
        for topic, partitions in topics:
            if isinstance(topic, bytes):
                self.out += topic
            else:
                write_compact_string(self.out, topic)
            write_compact_count(self.out, partitions)
            for partition in partitions:
                self.out += _pack_partition(*partition[:5])
                self._write_flexible_aborted(partition.aborted_transactions)
                self.out += _pack_int32(partition.preferred_read_replica)
                write_uvarint(self.out, partition.records_bytes + 1)
                self._place_records(number, partition.records_bytes)
                self._write_hints(partition)
                number += 1
            self.out.append(0)

    def _write_flexible_aborted(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        if aborted is None:
            self.out.append(0)
            return
        write_compact_count(self.out, aborted)
        for producer_id, first_offset in aborted:
            self.out += _pack_aborted(producer_id, first_offset)
            self.out.append(0)

    def _write_hints(self, partition: FetchedPartition) -> None:
        hints: list[tuple[int, bytes]] = []
        if partition.diverging_epoch is not None:
            hints.append((0, _pack_epoch_offset(*partition.diverging_epoch, 0)))
        if partition.current_leader is not None:
            hints.append((1, _pack_leader(*partition.current_leader, 0)))
        if partition.snapshot_id is not None:
            hints.append((2, _pack_snapshot(*partition.snapshot_id, 0)))
        write_uvarint(self.out, len(hints))
        for tag, value in hints:
            write_tagged_field(self.out, tag, value)

    def _write_endpoints(self, node_endpoints: Sequence[NodeEndpoint]) -> None:
        if not node_endpoints or self.version < 16:
            self.out.append(0)
            return
        value = bytearray()
        write_compact_count(value, node_endpoints)
        for node in node_endpoints:
            value += _pack_node_id(node.node_id)
            write_compact_string(value, node.host)
            value += _pack_node_id(node.port)
            write_compact_nullable_string(value, node.rack)
            value.append(0)
        self.out.append(1)
        write_tagged_field(self.out, 0, value)

    def _write_plain(self, topics: Topics) -> None:
        write_count(self.out, topics)
        number = 0
        for topic, partitions in topics:
            write_string(self.out, topic)  # type: ignore[arg-type]
            write_count(self.out, partitions)
            for partition in partitions:
                if self.version >= 5:
                    self.out += _pack_partition(*partition[:5])
                else:
                    self.out += _pack_partition_4(*partition[:4])
                self._write_plain_aborted(partition.aborted_transactions)
                if self.version >= 11:
                    self.out += _pack_int32(partition.preferred_read_replica)
                self.out += _pack_int32(partition.records_bytes)
                self._place_records(number, partition.records_bytes)
                number += 1

    def _write_plain_aborted(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        if aborted is None:
            self.out += _NULL_ARRAY
            return
        write_count(self.out, aborted)
        for producer_id, first_offset in aborted:
            self.out += _pack_aborted(producer_id, first_offset)
