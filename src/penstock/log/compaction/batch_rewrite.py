"""One batch without its superseded records. Offsets, timestamps, producer, codec and leader epoch stay.

A batch that loses nothing is passed on byte for byte. What is left of another keeps its base offset and last offset
delta, so that every record keeps its offset. A batch with tombstones gets its delete horizon the first time it is
compacted: attribute bit 6 is set and the base timestamp becomes the time from which they may go. (KIP-534)
"""

from itertools import compress

from penstock.log.compaction.dirty_scan import payload_of
from penstock.log.compaction.latest import SUPERSEDED, TOMBSTONE, VALUE
from penstock.log.compaction.record_scan import RecordBounds, append_rebased, scan_bounds
from penstock.log.scan import ScannedBatch
from penstock.model.ports import Buffer
from penstock.records.batch import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    BatchHeader,
    patch_crc,
)
from penstock.records.compression import compress as compress_payload

_KEEP_TOMBSTONES = bytes.maketrans(bytes([TOMBSTONE]), bytes([VALUE]))
_DROP_TOMBSTONES = bytes.maketrans(bytes([TOMBSTONE]), bytes([SUPERSEDED]))


def rewrite_data(batch: ScannedBatch, fates: bytes, now_ms: int, delete_retention_ms: int) -> Buffer | None:
    """The batch with the records that stay, or None when there are none."""
    header = batch.header
    horizon_ms = None
    if TOMBSTONE in fates:
        if not header.has_delete_horizon:
            horizon_ms = now_ms + delete_retention_ms
        may_go = header.has_delete_horizon and now_ms >= header.base_timestamp
        fates = fates.translate(_DROP_TOMBSTONES if may_go else _KEEP_TOMBSTONES)
    kept = fates.count(VALUE)
    if kept == 0:
        return None
    if kept == len(fates) and horizon_ms is None:
        return original(batch)
    return _rebuild(batch, fates, horizon_ms)


def rewrite_marker(batch: ScannedBatch, horizon_ms: int) -> Buffer:
    """A transaction marker that may go from `horizon_ms` on."""
    return _rebuild(batch, bytes([VALUE]) * batch.header.record_count, horizon_ms)


def original(batch: ScannedBatch) -> memoryview:
    return memoryview(batch.data)[batch.pos : batch.pos + batch.header.size_bytes]


def empty_batch(header: BatchHeader) -> bytearray:
    """Keeps nothing but what the header tells: the offsets, and the producer's epoch and sequence."""
    return _assemble(header, b"", header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), NO_TIMESTAMP,
                     header.max_timestamp, 0)  # fmt: skip


def _rebuild(batch: ScannedBatch, fates: bytes, horizon_ms: int | None) -> bytearray:
    header = batch.header
    payload = payload_of(batch)
    bounds = scan_bounds(payload, header.record_count)
    if horizon_ms is None:
        base_timestamp, attributes = header.base_timestamp, header.attributes
        body = _kept_runs(payload, fates, bounds)
    else:
        base_timestamp, attributes = horizon_ms, header.attributes | DELETE_HORIZON_BIT
        body = _rebased(header, payload, fates, bounds, horizon_ms)
    max_timestamp = _max_timestamp(header, fates, bounds)
    body = compress_payload(header.codec, body) if header.codec else body
    return _assemble(header, body, attributes, base_timestamp, max_timestamp, fates.count(VALUE))


def _kept_runs(payload: bytes, fates: bytes, bounds: RecordBounds) -> bytes:
    """Records refer to the base offset and base timestamp, which stay: their bytes need no change."""
    pieces: list[bytes] = []
    end = 0
    while True:
        start = fates.find(VALUE, end)
        if start < 0:
            return b"".join(pieces)
        end = fates.find(SUPERSEDED, start)
        end = len(fates) if end < 0 else end
        pieces.append(payload[bounds.starts[start] : bounds.starts[end]])


def _rebased(header: BatchHeader, payload: bytes, fates: bytes, bounds: RecordBounds, base_timestamp: int) -> bytes:
    """Records whose timestamps count from another base."""
    by_append_time = header.timestamp_type == LOG_APPEND_TIME
    out = bytearray()
    for number, delta in enumerate(bounds.timestamp_deltas):
        if fates[number] == VALUE:
            timestamp = header.max_timestamp if by_append_time else header.base_timestamp + delta
            append_rebased(out, payload, bounds.starts[number], timestamp - base_timestamp)
    return bytes(out)


def _max_timestamp(header: BatchHeader, fates: bytes, bounds: RecordBounds) -> int:
    if header.timestamp_type == LOG_APPEND_TIME:
        return header.max_timestamp
    return header.base_timestamp + max(compress(bounds.timestamp_deltas, fates))


def _assemble(
    header: BatchHeader, body: Buffer, attributes: int, base_timestamp: int, max_timestamp: int, record_count: int
) -> bytearray:
    out = bytearray(HEADER_BYTES)
    out += body
    HEADER.pack_into(
        out,
        0,
        header.base_offset,
        len(out) - LENGTH_BYTES,
        header.partition_leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        record_count,
    )
    patch_crc(out, 0, len(out))
    return out
