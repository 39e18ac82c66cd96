"""Produce, tuned by hand: what the broker needs of a request, and a whole response frame.

Equal to the generated codec by property test. Each decoder first tries the shape that most clients send (no
transactional id, one topic, one partition) with one or two struct calls, and reads everything else with the loop
below it. Records stay slices of the request's buffer.
"""

from collections.abc import Sequence
from struct import Struct as Packer

from penstock.wire.errors import UnsupportedVersionError
from penstock.wire.primitives import (
    DECODE_FAULTS,
    Buffer,
    malformed,
    read_compact_count,
    read_compact_nullable_records,
    read_compact_nullable_string,
    read_compact_string,
    read_count,
    read_nullable_records,
    read_nullable_string,
    read_string,
    read_uvarint,
    skip_tagged_fields,
    truncated,
    write_compact_count,
    write_compact_nullable_string,
    write_compact_string,
    write_count,
    write_nullable_string,
    write_string,
)

# A topic's name up to version 12, its id (16 bytes) from version 13 on.
TopicKey = str | bytes
PartitionRecords = tuple[int, memoryview | None]
# transactional id, acks, timeout in ms, topics
DecodedProduce = tuple[str | None, int, int, list[tuple[TopicKey, list[PartitionRecords]]]]
# acks, timeout in ms, topic, partition, records
OneBatch = tuple[int, int, TopicKey, int, memoryview]
# index, error code, base offset, log append time, log start offset, error message
PartitionResult = tuple[int, int, int, int, int, str | None]

_FIRST_VERSION, _LAST_VERSION = 3, 13
_FLEXIBLE_FROM = 9
_IDS_FROM = 13

_unpack_ids_head = Packer(">BhiB16sBi").unpack_from  # …, partition count, first index
_unpack_flexible_head = Packer(">BhiBB").unpack_from  # transactional id, acks, timeout, topic count, name length
_unpack_flexible_partitions = Packer(">Bi").unpack_from
_unpack_plain_head = Packer(">hhiih").unpack_from
_unpack_plain_partitions = Packer(">iii").unpack_from  # partition count, first index, length of its records
_unpack_acks = Packer(">hi").unpack_from
_unpack_index = Packer(">i").unpack_from


def decode_one_batch(view: memoryview, pos: int, version: int) -> OneBatch | None:
    """A request of the usual shape, without the lists that others need; None for those, and for what is malformed."""
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise _unsupported(version)
    try:
        return _decode_flexible(view, pos, version) if version >= _FLEXIBLE_FROM else _decode_plain(view, pos)
    except DECODE_FAULTS:
        return None  # an unusual shape may end before the usual one does


def decode_produce(buf: Buffer, pos: int, version: int) -> DecodedProduce:
    view = buf if type(buf) is memoryview else memoryview(buf)
    usual = decode_one_batch(view, pos, version)
    if usual is not None:
        acks, timeout_ms, topic, index, records = usual
        return None, acks, timeout_ms, [(topic, [(index, records)])]
    try:
        if version >= _FLEXIBLE_FROM:
            return _decode_flexible_topics(view, pos, version)
        return _decode_plain_topics(view, pos, version)
    except DECODE_FAULTS as fault:
        raise malformed("ProduceRequest", version, fault) from fault


def _decode_flexible(buf: memoryview, pos: int, version: int) -> OneBatch | None:
    topic: TopicKey
    if version == _IDS_FROM:
        id_length, acks, timeout_ms, topics, topic, partitions, index = _unpack_ids_head(buf, pos)
        at = pos + 29
    else:
        id_length, acks, timeout_ms, topics, length = _unpack_flexible_head(buf, pos)
        if not 0 < length < 0x80:
            return None
        at = pos + 8 + length
        topic = str(buf[pos + 9 : at], "utf-8")
        partitions, index = _unpack_flexible_partitions(buf, at)
        at += 5
    # Counts and lengths are stored plus one: 2 is one, 0 is null.
    if id_length == 0 and topics == 2 and partitions == 2:
        length = buf[at]
        if length < 0x80:
            at += 1
        elif (more := buf[at + 1]) < 0x80:  # up to 16 KB, without a call
            length += (more - 1) << 7
            at += 2
        else:
            length, at = read_uvarint(buf, at)
        end = at + length - 1
        if length and not (buf[end] or buf[end + 1] or buf[end + 2]):
            return acks, timeout_ms, topic, index, buf[at:end]
    return None


def _decode_plain(buf: memoryview, pos: int) -> OneBatch | None:
    id_length, acks, timeout_ms, topics, length = _unpack_plain_head(buf, pos)
    if id_length == -1 and topics == 1 and length >= 0:
        at = pos + 14 + length
        partitions, index, size = _unpack_plain_partitions(buf, at)
        end = at + 12 + size
        if partitions == 1 and size >= 0 and end <= len(buf):
            return acks, timeout_ms, str(buf[pos + 14 : at], "utf-8"), index, buf[at + 12 : end]
    return None


def _decode_flexible_topics(buf: memoryview, pos: int, version: int) -> DecodedProduce:
    transactional_id, pos = read_compact_nullable_string(buf, pos)
    acks, timeout_ms = _unpack_acks(buf, pos)
    count, pos = read_compact_count(buf, pos + 6)
    topics: list[tuple[TopicKey, list[PartitionRecords]]] = []
    for _ in range(count):
        topic: TopicKey
        if version >= _IDS_FROM:
            topic = buf[pos : pos + 16].tobytes()
            pos += 16
        else:
            topic, pos = read_compact_string(buf, pos)
        partitions: list[PartitionRecords] = []
        partition_count, pos = read_compact_count(buf, pos)
        for _ in range(partition_count):
            (index,) = _unpack_index(buf, pos)
            records, pos = read_compact_nullable_records(buf, pos + 4)
            pos = skip_tagged_fields(buf, pos) if buf[pos] else pos + 1
            partitions.append((index, records))
        pos = skip_tagged_fields(buf, pos) if buf[pos] else pos + 1
        topics.append((topic, partitions))
    pos = skip_tagged_fields(buf, pos)
    if pos > len(buf):
        raise truncated("ProduceRequest", version)
    return transactional_id, acks, timeout_ms, topics


def _decode_plain_topics(buf: memoryview, pos: int, version: int) -> DecodedProduce:
    transactional_id, pos = read_nullable_string(buf, pos)
    acks, timeout_ms = _unpack_acks(buf, pos)
    count, pos = read_count(buf, pos + 6)
    topics: list[tuple[TopicKey, list[PartitionRecords]]] = []
    for _ in range(count):
        topic, pos = read_string(buf, pos)
        partitions: list[PartitionRecords] = []
        partition_count, pos = read_count(buf, pos)
        for _ in range(partition_count):
            (index,) = _unpack_index(buf, pos)
            records, pos = read_nullable_records(buf, pos + 4)
            partitions.append((index, records))
        topics.append((topic, partitions))
    if pos > len(buf):
        raise truncated("ProduceRequest", version)
    return transactional_id, acks, timeout_ms, topics


def _unsupported(version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"Produce has versions {_FIRST_VERSION}–{_LAST_VERSION}, not {version}")


# --- response -----------------------------------------------------------------------------------------------

# What follows the name or id of the only topic: partition count, index, error code, base offset, append time, log
# start offset, no record errors, no message, tags of partition and topic, throttle time, tags of the response.
_ONLY = "BihqqqBBBBiB"
_ids_only = Packer(">iiBB16s" + _ONLY)  # frame size, correlation id, header tags, topic count, topic id, …
_flexible_only = Packer(">" + _ONLY)
_flexible_start = Packer(">iiBBB")  # frame size, correlation id, header tags, topic count, name length
_IDS_ONLY_BYTES = _ids_only.size - 4
_FLEXIBLE_ONLY_BYTES = _flexible_only.size + _flexible_start.size - 4
_pack_ids_only = _ids_only.pack
_pack_flexible_only = _flexible_only.pack
_pack_flexible_start = _flexible_start.pack

_plain_start = Packer(">iiih")  # frame size, correlation id, topic count, name length
_plain_only = Packer(">iihqqqi")  # partition count, index, error code, offsets, throttle time
_PLAIN_ONLY_BYTES = _plain_start.size + _plain_only.size - 4
_pack_plain_start = _plain_start.pack
_pack_plain_only = _plain_only.pack

_pack_correlation = Packer(">xxxxi").pack  # the frame's size is filled in at the end
_pack_partition = Packer(">ihqq").pack
_pack_partition_with_start = Packer(">ihqqq").pack
_pack_int32 = Packer(">i").pack
_pack_size = Packer(">i").pack_into
_NO_RECORD_ERRORS = bytes(4)

Results = Sequence[tuple[TopicKey, Sequence[PartitionResult]]]


def encode_produced(
    correlation_id: int,
    version: int,
    topic: TopicKey,
    index: int,
    base_offset: int,
    append_time_ms: int,
    start_offset: int,
) -> bytes:
    """The answer to one batch that was appended, and to nothing else: no lists to look through."""
    # fmt: off
    if version == _IDS_FROM:
        return _pack_ids_only(
            _IDS_ONLY_BYTES, correlation_id, 0, 2, topic,
            2, index, 0, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, 0, 0,
        )
    if version >= _FLEXIBLE_FROM and (length := len(topic)) < 0x7F and topic.isascii():
        start = _pack_flexible_start(length + _FLEXIBLE_ONLY_BYTES, correlation_id, 0, 2, length + 1)
        return start + topic.encode() + _pack_flexible_only(  # type: ignore[union-attr]
            2, index, 0, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, 0, 0,
        )
    # fmt: on
    return encode_produce_frame(
        correlation_id, version, [(topic, [(index, 0, base_offset, append_time_ms, start_offset, None)])]
    )


def encode_produce_frame(correlation_id: int, version: int, topics: Results, throttle_time_ms: int = 0) -> bytes:
    """A whole response: frame size, header, body. Leader hints (KIP-951) need the generated codec."""
    if not _FIRST_VERSION <= version <= _LAST_VERSION:
        raise _unsupported(version)
    if len(topics) == 1 and len(topics[0][1]) == 1:
        topic, ((index, error_code, base_offset, append_time_ms, start_offset, message),) = topics[0]
        # fmt: off
        if version == _IDS_FROM:
            if message is None:
                return _pack_ids_only(
                    _IDS_ONLY_BYTES, correlation_id, 0, 2, topic,
                    2, index, error_code, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, throttle_time_ms, 0,
                )
        elif version >= _FLEXIBLE_FROM:
            name = topic.encode()  # type: ignore[union-attr]
            length = len(name)
            if message is None and length < 0x7F:
                start = _pack_flexible_start(length + _FLEXIBLE_ONLY_BYTES, correlation_id, 0, 2, length + 1)
                return start + name + _pack_flexible_only(
                    2, index, error_code, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, throttle_time_ms, 0,
                )
        elif 5 <= version <= 7:
            name = topic.encode()  # type: ignore[union-attr]
            length = len(name)
            start = _pack_plain_start(length + _PLAIN_ONLY_BYTES, correlation_id, 1, length)
            return start + name + _pack_plain_only(
                1, index, error_code, base_offset, append_time_ms, start_offset, throttle_time_ms,
            )
        # fmt: on
    return _encode_frame(correlation_id, version, topics, throttle_time_ms)


def _encode_frame(correlation_id: int, version: int, topics: Results, throttle_time_ms: int) -> bytes:
    out = bytearray(_pack_correlation(correlation_id))
    if version >= _FLEXIBLE_FROM:
        out.append(0)
        _write_flexible(out, version, topics)
        out += _pack_int32(throttle_time_ms)
        out.append(0)
    else:
        _write_plain(out, version, topics)
        out += _pack_int32(throttle_time_ms)
    _pack_size(out, 0, len(out) - 4)
    return bytes(out)


def _write_flexible(out: bytearray, version: int, topics: Results) -> None:
    write_compact_count(out, topics)
    for topic, partitions in topics:
        if isinstance(topic, bytes):
            out += topic
        else:
            write_compact_string(out, topic)
        write_compact_count(out, partitions)
        for *numbers, message in partitions:
            out += _pack_partition_with_start(*numbers)
            out.append(1)
            write_compact_nullable_string(out, message)
            out.append(0)
        out.append(0)


def _write_plain(out: bytearray, version: int, topics: Results) -> None:
    write_count(out, topics)
    for topic, partitions in topics:
        write_string(out, topic)  # type: ignore[arg-type]
        write_count(out, partitions)
        for index, error_code, base_offset, append_time_ms, start_offset, message in partitions:
            if version >= 5:
                out += _pack_partition_with_start(index, error_code, base_offset, append_time_ms, start_offset)
            else:
                out += _pack_partition(index, error_code, base_offset, append_time_ms)
            if version >= 8:
                out += _NO_RECORD_ERRORS
                write_nullable_string(out, message)
