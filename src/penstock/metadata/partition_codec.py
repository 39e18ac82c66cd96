"""Partition records read quickly: nearly all of a large log, and nearly all alike but for their epochs.

What a record says besides its epochs (replicas, in-sync set, directories …) is decoded once and looked up from then
on; so is a whole state that was met before. A million partitions thus share a few thousand tuples.
"""

import struct
from typing import Any

from penstock.metadata.partition import PartitionImage, partition_from_record
from penstock.wire.records import decode_metadata_record

# A framed PartitionRecord: frame version 1, type 3, version, then number, topic id and the partition's state.
PARTITION_FRAME = b"\x01\x03"
VERSION_POSITION, NUMBER_POSITION, ID_POSITION, STATE_POSITION = 2, 3, 7, 23
_ARRAYS = 4  # replicas, in-sync set, removing, adding: compact arrays of int32
_EPOCHS = struct.Struct(">iii")  # leader, leader epoch, partition epoch
_KNOWN_MAX = 16_384

_states: dict[tuple[int, bytes], PartitionImage] = {}
_shapes: dict[tuple[int, bytes, bytes], PartitionImage] = {}


def decode_partition(value: bytes) -> PartitionImage:
    """The state that a framed PartitionRecord holds. Raises `WireError`."""
    version, encoded = value[VERSION_POSITION], value[STATE_POSITION:]
    state = _states.get((version, encoded))
    if state is None:
        state = _decode(value, version, encoded)
        if len(_states) >= _KNOWN_MAX:
            _states.clear()  # only sharing is lost, and only until the next states come by
        _states[version, encoded] = state
    return state


def _decode(value: bytes, version: int, encoded: bytes) -> PartitionImage:
    position = 0
    try:
        for _ in range(_ARRAYS):
            count = encoded[position]
            if not 0 < count < 0x80:
                return _decode_whole(value)
            position += 4 * count - 3  # one byte of count + 1, four for each member
        leader, leader_epoch, partition_epoch = _EPOCHS.unpack_from(encoded, position)
    except (IndexError, struct.error):
        return _decode_whole(value)  # which says what is wrong with it
    key = (version, encoded[:position], encoded[position + _EPOCHS.size :])
    shape = _shapes.get(key)
    if shape is None:
        if len(_shapes) >= _KNOWN_MAX:
            _shapes.clear()
        shape = _shapes[key] = _decode_whole(value)
    return PartitionImage(shape[0], shape[1], leader, leader_epoch, partition_epoch, *shape[5:])


def _decode_whole(value: bytes) -> PartitionImage:
    record: Any = decode_metadata_record(value)
    return partition_from_record(record)
