"""Producer snapshots (`<offset>.snapshot`): the producer state before an offset, in Kafka's format, version 1.

The format keeps only the last batch of each producer; the window of the last few is refilled from the log on load.
"""

import struct

from penstock.log.producers import NO_OFFSET, ProducerBatch, ProducerEntry, ProducerStates
from penstock.records.checksum import crc32c

_VERSION = 1
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class CorruptSnapshot(ValueError):
    """The file is not a whole version 1 producer snapshot."""


def encode_snapshot(producers: ProducerStates) -> bytes:
    items = producers.items()
    out = bytearray(_HEAD.size + _COUNT.size + _ENTRY.size * len(items))
    _COUNT.pack_into(out, _HEAD.size, len(items))
    pos = _HEAD.size + _COUNT.size
    for producer_id, entry in items:
        last = entry.batches[-1] if entry.batches else None
        _ENTRY.pack_into(
            out,
            pos,
            producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            last.last_offset - last.base_offset if last else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        pos += _ENTRY.size
    _HEAD.pack_into(out, 0, _VERSION, crc32c(memoryview(out)[_HEAD.size :]))
    return bytes(out)


def decode_snapshot(content: bytes) -> ProducerStates:
    if len(content) < _HEAD.size + _COUNT.size:
        raise CorruptSnapshot(f"{len(content)} bytes are too few for a producer snapshot")
    version, crc = _HEAD.unpack_from(content)
    if version != _VERSION:
        raise CorruptSnapshot(f"version {version} is not known")
    if crc32c(memoryview(content)[_HEAD.size :]) != crc:
        raise CorruptSnapshot("CRC mismatch")
    count = _COUNT.unpack_from(content, _HEAD.size)[0]
    pos = _HEAD.size + _COUNT.size
    if len(content) != pos + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} entries do not fit {len(content)} bytes")
    producers = ProducerStates()
    for fields in _ENTRY.iter_unpack(memoryview(content)[pos:]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, txn_first = fields
        entry = ProducerEntry(epoch)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        entry.current_txn_first_offset = txn_first
        if last_offset != NO_OFFSET:
            base_sequence = (last_sequence - offset_delta) & 0x7FFFFFFF
            base_offset = last_offset - offset_delta
            entry.batches.append(ProducerBatch(base_sequence, last_sequence, base_offset, last_offset, timestamp))
        producers.put(producer_id, entry)
    return producers
