"""Fetch, tuned by hand: a request as tuples, and a response frame written around the records.

Equal to the generated codec by property test. The records of a response are never here: the broker sends them from
files, so the encoder is told only how many bytes each partition has and returns the pieces that go between.
"""

from struct import Struct as Packer
from typing import Any, NamedTuple

from penstock.wire.errors import UnsupportedVersionError
from penstock.wire.primitives import (
    DECODE_FAULTS,
    Buffer,
    malformed,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_numbers,
    read_string,
    read_uvarint,
    skip_tagged_fields,
    truncated,
    wrong_tag_size,
)

_FIRST_VERSION, _LAST_VERSION = 4, 18
_FLEXIBLE_FROM = 12
_IDS_FROM = 13

# A topic's name up to version 12, its id (16 bytes) from version 13 on.
TopicKey = str | bytes

MAX_INT64 = 0x7FFF_FFFF_FFFF_FFFF
_ZERO_UUID = bytes(16)
_LACKS_ROOM_TAG = 10_000
_NOTHING_TAGGED = (_ZERO_UUID, MAX_INT64, False)  # the partition's fields that travel as tags


class FetchPartition(NamedTuple):
    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    replica_directory_id: bytes = _ZERO_UUID
    high_watermark: int = MAX_INT64
    lacks_room: bool = False
    """Our own: a follower whose disk cannot take what there is for it."""


class DecodedFetch(NamedTuple):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    replica_id: int  # −1 for a consumer
    replica_epoch: int
    cluster_id: str | None
    rack_id: str
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]


_make: Any = tuple.__new__  # a named tuple without its Python-level constructor: half the price

_unpack_head_4 = Packer(">iiiib").unpack_from  # replica, max wait, min bytes, max bytes, isolation
_unpack_head_7 = Packer(">iiiibii").unpack_from  # … session id, session epoch
_unpack_head_15 = Packer(">iiibii").unpack_from  # without the replica
_unpack_partition_4 = Packer(">iqi").unpack_from
_unpack_partition_5 = Packer(">iqqi").unpack_from
_unpack_partition_9 = Packer(">iiqqi").unpack_from
_unpack_partition_12 = Packer(">iiqiqi").unpack_from
# A consumer's whole request for one partition by topic id: head, topic count, id, partition count, partition, tags of
# partition and topic, no forgotten topics, empty rack, tags of the request.
_only_15 = Packer(">iiibiiB16sBiiqiqiBBBBB")
_unpack_only_15 = _only_15.unpack_from
_ONLY_15_BYTES = _only_15.size
_USUAL_TAIL = [0, 0, 1, 1, 0]
# A follower's, which says in a tag of the request who it is.
_follower_15 = Packer(_only_15.format + "BBiqB")
_unpack_follower_15 = _follower_15.unpack_from
_FOLLOWER_15_BYTES = _follower_15.size
_FOLLOWER_TAIL = [0, 0, 1, 1, 1, 1, 13]
_ONLY_LENGTHS = (_ONLY_15_BYTES, _FOLLOWER_15_BYTES)
_unpack_replica_state = Packer(">iq").unpack_from
_unpack_int64 = Packer(">q").unpack_from


def decode_fetch(buf: Buffer, pos: int, version: int) -> DecodedFetch:
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise UnsupportedVersionError(f"Fetch has versions {_FIRST_VERSION}–{_LAST_VERSION}, not {version}")
    view = buf if type(buf) is memoryview else memoryview(buf)
    try:
        if version >= _FLEXIBLE_FROM:
            if version >= 15 and len(view) - pos in _ONLY_LENGTHS:
                only = _decode_only(view, pos)
                if only is not None:
                    return only
            return _decode_flexible(view, pos, version)
        return _decode_plain(view, pos, version)
    except DECODE_FAULTS as fault:
        raise malformed("FetchRequest", version, fault) from fault


def _decode_only(buf: memoryview, pos: int) -> DecodedFetch | None:
    """The request if it has one of the usual shapes, as its length suggests; None sends it down the long way."""
    unpack = _unpack_only_15 if len(buf) - pos == _ONLY_15_BYTES else _unpack_follower_15
    # fmt: off
    (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, topic, partitions,
        index, leader_epoch, offset, fetched_epoch, start_offset, partition_max_bytes, *tail,
    ) = unpack(buf, pos)
    if topics != 2 or partitions != 2:
        return None
    replica_id = replica_epoch = -1
    if tail != _USUAL_TAIL:
        if tail[:7] != _FOLLOWER_TAIL or tail[9]:
            return None
        replica_id, replica_epoch = tail[7], tail[8]
    partition = _make(FetchPartition, (
        index, leader_epoch, offset, fetched_epoch, start_offset, partition_max_bytes, _ZERO_UUID, MAX_INT64,
        False,
    ))
    request: DecodedFetch = _make(DecodedFetch, (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch,
        replica_id, replica_epoch, None, "", [(topic, [partition])], [],
    ))
    # fmt: on
    return request


def _decode_flexible(buf: memoryview, pos: int, version: int) -> DecodedFetch:
    replica_id = replica_epoch = -1
    if version >= 15:
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _unpack_head_15(buf, pos)
        pos += 21
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _unpack_head_7(buf, pos)
        pos += 25
    topics, pos = _read_flexible_topics(buf, pos, version)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if buf[pos] == 1:
        pos += 1
    else:
        forgotten, pos = _read_flexible_forgotten(buf, pos, version)
    rack_id, pos = read_compact_string(buf, pos)
    cluster_id = None
    if buf[pos]:
        cluster_id, replica_state, pos = _read_tags(buf, pos, version)
        if replica_state is not None:
            replica_id, replica_epoch = replica_state
    else:
        pos += 1
    if pos > len(buf):
        raise truncated("FetchRequest", version)
    # fmt: off
    request: DecodedFetch = _make(DecodedFetch, (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch,
        replica_id, replica_epoch, cluster_id, rack_id, topics, forgotten,
    ))
    # fmt: on
    return request


def _read_flexible_topics(
    buf: memoryview, pos: int, version: int
) -> tuple[list[tuple[TopicKey, list[FetchPartition]]], int]:
    count, pos = read_compact_count(buf, pos)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(count):
        topic: TopicKey
        if version >= _IDS_FROM:
            topic = buf[pos : pos + 16].tobytes()
            pos += 16
        else:
            topic, pos = read_compact_string(buf, pos)
        partition_count, pos = read_compact_count(buf, pos)
        partitions = []
        for _ in range(partition_count):
            numbers = _unpack_partition_12(buf, pos)
            pos += 32
            tagged: tuple[bytes, int, bool] = _NOTHING_TAGGED
            if buf[pos]:
                tagged, pos = _read_partition_tags(buf, pos, version)
            else:
                pos += 1
            partitions.append(_make(FetchPartition, (*numbers, *tagged)))
        pos = skip_tagged_fields(buf, pos) if buf[pos] else pos + 1
        topics.append((topic, partitions))
    return topics, pos


def _read_partition_tags(buf: memoryview, pos: int, version: int) -> tuple[tuple[bytes, int, bool], int]:
    directory_id, high_watermark, lacks_room = _NOTHING_TAGGED
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        if tag == 0 and version >= 17:
            if size != 16:
                raise wrong_tag_size(tag)
            directory_id = buf[pos : pos + 16].tobytes()
        elif tag == 1 and version >= 18:
            if size != 8:
                raise wrong_tag_size(tag)
            (high_watermark,) = _unpack_int64(buf, pos)
        elif tag == _LACKS_ROOM_TAG and version >= _IDS_FROM:
            if size != 1:
                raise wrong_tag_size(tag)
            lacks_room = buf[pos] != 0
        pos += size
    return (directory_id, high_watermark, lacks_room), pos


def _read_tags(buf: memoryview, pos: int, version: int) -> tuple[str | None, tuple[int, int] | None, int]:
    cluster_id: str | None = None
    replica_state: tuple[int, int] | None = None
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        end = pos + size
        if tag == 0:
            cluster_id, pos = read_compact_nullable_string(buf, pos)
        elif tag == 1 and version >= 15:
            replica_id, replica_epoch = _unpack_replica_state(buf, pos)
            replica_state = (replica_id, replica_epoch)
            pos = skip_tagged_fields(buf, pos + 12)
        else:
            pos = end
        if pos != end:
            raise wrong_tag_size(tag)
    return cluster_id, replica_state, pos


def _read_flexible_forgotten(buf: memoryview, pos: int, version: int) -> tuple[list[tuple[TopicKey, list[int]]], int]:
    count, pos = read_compact_count(buf, pos)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(count):
        topic: TopicKey
        if version >= _IDS_FROM:
            topic = buf[pos : pos + 16].tobytes()
            pos += 16
        else:
            topic, pos = read_compact_string(buf, pos)
        partition_count, pos = read_compact_count(buf, pos)
        partitions, pos = read_numbers(buf, pos, partition_count, "i", 4)
        pos = skip_tagged_fields(buf, pos)
        forgotten.append((topic, partitions))
    return forgotten, pos


def _decode_plain(buf: memoryview, pos: int, version: int) -> DecodedFetch:
    session_id, session_epoch = 0, -1
    if version >= 7:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _unpack_head_7(buf, pos)
        pos += 25
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _unpack_head_4(buf, pos)
        pos += 17
    count, pos = read_count(buf, pos)
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(count):
        topic, pos = read_string(buf, pos)
        partitions, pos = _read_plain_partitions(buf, pos, version)
        topics.append((topic, partitions))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    if version >= 7:
        forgotten_count, pos = read_count(buf, pos)
        for _ in range(forgotten_count):
            topic, pos = read_string(buf, pos)
            partition_count, pos = read_count(buf, pos)
            indexes, pos = read_numbers(buf, pos, partition_count, "i", 4)
            forgotten.append((topic, indexes))
    rack_id = ""
    if version >= 11:
        rack_id, pos = read_string(buf, pos)
    if pos > len(buf):
        raise truncated("FetchRequest", version)
    # fmt: off
    request: DecodedFetch = _make(DecodedFetch, (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch,
        replica_id, -1, None, rack_id, topics, forgotten,
    ))
    # fmt: on
    return request


def _read_plain_partitions(buf: memoryview, pos: int, version: int) -> tuple[list[FetchPartition], int]:
    count, pos = read_count(buf, pos)
    partitions: list[FetchPartition] = []
    for _ in range(count):
        leader_epoch = start_offset = -1
        if version >= 9:
            index, leader_epoch, offset, start_offset, max_bytes = _unpack_partition_9(buf, pos)
            pos += 28
        elif version >= 5:
            index, offset, start_offset, max_bytes = _unpack_partition_5(buf, pos)
            pos += 24
        else:
            index, offset, max_bytes = _unpack_partition_4(buf, pos)
            pos += 16
        values = (index, leader_epoch, offset, -1, start_offset, max_bytes, *_NOTHING_TAGGED)
        partitions.append(_make(FetchPartition, values))
    return partitions, pos
