"""The frame that serializers of schema registries put before keys and values: a zero byte and the schema's id.

Protobuf has message indexes behind the id: which message of the schema's file it is. Whole columns at once.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.pipeline.formats.codec import BadRecord

_MAGIC = 0
FRAME_BYTES = 5


class Unframed(NamedTuple):
    """Ids and what is behind the frames; both null where `bad` is true, or where there was nothing."""

    ids: pa.Array
    payloads: pa.Array
    bad: list[int]


def split_frames(column: pa.Array) -> Unframed:
    from penstock.pipeline.decode import binary_of_spans  # with compiled loops, which planners need not load

    count = len(column)
    if count == 0:
        return Unframed(pa.array([], pa.int32()), column, [])
    _, ends, data = column.buffers()
    bounds = np.frombuffer(ends, dtype=np.int32)[column.offset : column.offset + count + 1].astype(np.int64)
    present = np.asarray(column.is_valid())
    starts = bounds[:-1]
    long_enough = present & (bounds[1:] - starts >= FRAME_BYTES)
    ids = np.zeros(count, dtype=np.int64)
    framed = long_enough.copy()
    raw = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    if long_enough.any():
        at = starts[long_enough]
        framed[long_enough] = raw[at] == _MAGIC
        ids[long_enough] = sum(raw[at + 1 + i].astype(np.int64) << (8 * (3 - i)) for i in range(4))
    lengths = np.where(framed, bounds[1:] - starts - FRAME_BYTES, -1)
    payloads = binary_of_spans(raw, starts + FRAME_BYTES, lengths, pa.binary())
    found = pa.array(ids.astype(np.uint32).view(np.int32), mask=~framed)
    return Unframed(found, payloads, np.flatnonzero(present & ~framed).tolist())


def add_frames(column: pa.Array, ids: pa.Array) -> pa.Array:
    """Frames every value that is not null; a null stays one."""
    import pyarrow.compute as pc

    if column.null_count < len(column) and pc.and_(column.is_valid(), ids.is_null()).true_count:
        raise BadRecord("a record to be framed has no schema id")
    numbers = np.asarray(ids.fill_null(0)).astype(">i4")
    prefixes = np.zeros((len(column), FRAME_BYTES), dtype=np.uint8)
    prefixes[:, 1:] = numbers.view(np.uint8).reshape(-1, 4)
    prefix = pa.Array.from_buffers(pa.binary(FRAME_BYTES), len(column), [None, pa.py_buffer(prefixes.tobytes())])
    return pc.binary_join_element_wise(prefix.cast(pa.binary()), column, pa.scalar(b"", pa.binary()))


def decode_message_indexes(raw: bytes) -> tuple[tuple[int, ...], int]:
    """The path and where the message begins. A single zero stands for the first message."""
    count, at = _varint(raw, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= len(raw):
        raise BadRecord(f"{count} message indexes")
    path = []
    for _ in range(count):
        index, at = _varint(raw, at)
        path.append(index)
    return tuple(path), at


def encode_message_indexes(path: tuple[int, ...]) -> bytes:
    if path == (0,):
        return b"\0"
    out = bytearray()
    for number in (len(path), *path):
        raw = number << 1
        while raw > 0x7F:
            out.append(raw & 0x7F | 0x80)
            raw >>= 7
        out.append(raw)
    return bytes(out)


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 35:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise BadRecord("message indexes are cut off")
