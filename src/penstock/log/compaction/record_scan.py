"""Keys, bounds and times of the records in a payload, without building the records.

A record is length, attributes (one byte), timestamp delta, offset delta, key, value and headers, all numbers being
zigzag varints. These loops run once for every record of a log, so they are written out by hand: about six times
faster than reading whole records.
"""

from typing import NamedTuple

from penstock.records.batch import CorruptBatch
from penstock.records.varint import append_varint, read_varint

_ONE_BYTE = 0x7F


class ScannedKeys(NamedTuple):
    keys: list[bytes]
    """By record; empty where a record has no key."""
    tombstones: list[int]
    """Numbers of the records (within the batch) that have no value."""
    keyless: list[int]
    """Numbers of the records that have no key."""


def scan_keys(payload: bytes, count: int) -> ScannedKeys:
    """Raises `CorruptBatch` when these are not `count` records."""
    keys: list[bytes] = []
    append = keys.append
    tombstones: list[int] = []
    keyless: list[int] = []
    pos = 0
    try:
        for number in range(count):
            byte = payload[pos]
            if byte <= _ONE_BYTE:
                pos += 1
                end = pos + (byte >> 1)
            elif payload[pos + 1] <= _ONE_BYTE and not byte & 1:  # 64 to 8191 bytes: many records
                end = pos + 2 + ((byte & _ONE_BYTE | payload[pos + 1] << 7) >> 1)
                pos += 2
            else:
                length, pos = read_varint(payload, pos)
                end = pos + length
            pos += 1
            while payload[pos] > _ONE_BYTE:
                pos += 1
            pos += 1
            while payload[pos] > _ONE_BYTE:
                pos += 1
            pos += 1
            byte = payload[pos]
            if byte > _ONE_BYTE:
                length, pos = read_varint(payload, pos)
                append(payload[pos : pos + length])
                pos += length
            elif byte == 1:
                append(b"")
                keyless.append(number)
                pos += 1
            else:
                start = pos + 1
                pos = start + (byte >> 1)
                append(payload[start:pos])
            if payload[pos] == 1:
                tombstones.append(number)
            if pos >= end:
                raise CorruptBatch("a record is shorter than its fields")
            pos = end
    except (IndexError, ValueError) as error:
        raise CorruptBatch(f"malformed record: {error}") from None
    if pos != len(payload):
        raise CorruptBatch(f"{count} records end at byte {pos} of {len(payload)}")
    return ScannedKeys(keys, tombstones, keyless)


class RecordBounds(NamedTuple):
    starts: list[int]
    """Where each record begins, and behind the last one the end of the payload."""
    timestamp_deltas: list[int]


def scan_bounds(payload: bytes, count: int) -> RecordBounds:
    starts = [0]
    deltas = []
    pos = 0
    for _ in range(count):
        byte = payload[pos]
        if byte <= _ONE_BYTE:
            pos += 1
            end = pos + (byte >> 1)
        elif payload[pos + 1] <= _ONE_BYTE and not byte & 1:
            end = pos + 2 + ((byte & _ONE_BYTE | payload[pos + 1] << 7) >> 1)
            pos += 2
        else:
            length, pos = read_varint(payload, pos)
            end = pos + length
        byte = payload[pos + 1]
        deltas.append((byte >> 1) ^ -(byte & 1) if byte <= _ONE_BYTE else read_varint(payload, pos + 1)[0])
        pos = end
        starts.append(pos)
    return RecordBounds(starts, deltas)


def append_rebased(out: bytearray, payload: bytes, start: int, timestamp_delta: int) -> None:
    """The record at `start` with another timestamp delta; everything else as it was."""
    length, pos = read_varint(payload, start)
    end = pos + length
    _, after_timestamp = read_varint(payload, pos + 1)
    head = bytearray(payload[pos : pos + 1])
    append_varint(head, timestamp_delta)
    append_varint(out, len(head) + end - after_timestamp)
    out += head
    out += payload[after_timestamp:end]
