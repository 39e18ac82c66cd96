"""Reads the records out of a batch: for coordinators, compacted topics, tools and clients; never on the hot path.

Every malformation raises `CorruptBatch`; expansion by decompression is bounded.
"""

from typing import NamedTuple

from penstock.model.ports import Buffer
from penstock.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    CorruptBatch,
    crc_is_valid,
    iter_headers,
    parse_header,
)
from penstock.records.compression import MAX_DECOMPRESSED_BYTES, decompress
from penstock.records.varint import read_varint


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def read_records(
    batch: Buffer, pos: int = 0, *, max_bytes: int = MAX_DECOMPRESSED_BYTES, check_crc: bool = False
) -> list[Record]:
    """All records of the one batch at `pos`."""
    header = parse_header(batch, pos)
    if pos + header.size_bytes > len(batch):
        raise CorruptBatch(f"batch of {header.size_bytes} bytes is cut off after {len(batch) - pos}")
    if check_crc and not crc_is_valid(batch, pos, header):
        raise CorruptBatch(f"CRC mismatch in the batch at offset {header.base_offset}")
    payload = decompress(header.codec, memoryview(batch)[pos + HEADER_BYTES : pos + header.size_bytes], max_bytes)
    try:
        return _read_payload(payload, header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"malformed record in the batch at offset {header.base_offset}: {error}") from None


def read_all_records(batches: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> list[Record]:
    """The records of all whole batches, control batches left out."""
    records: list[Record] = []
    for pos, header in iter_headers(batches):
        if not header.is_control:
            records += read_records(batches, pos, max_bytes=max_bytes)
    return records


def _read_payload(buf: bytes, header: BatchHeader) -> list[Record]:
    if not 0 <= header.record_count <= len(buf):
        raise CorruptBatch(f"{header.record_count} records cannot fit into {len(buf)} bytes")
    fixed_timestamp = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    base_offset = header.base_offset
    base_timestamp = header.base_timestamp
    records = []
    pos = 0
    for _ in range(header.record_count):
        length, pos = read_varint(buf, pos)
        end = pos + length
        if length < 0 or end > len(buf):
            raise CorruptBatch("record is longer than its batch")
        timestamp_delta, pos = read_varint(buf, pos + 1)  # one byte of unused attributes
        offset_delta, pos = read_varint(buf, pos)
        key, pos = _read_bytes(buf, pos, end)
        value, pos = _read_bytes(buf, pos, end)
        header_count = buf[pos]
        if header_count == 0:
            headers: list[tuple[str, bytes | None]] = []
            pos += 1
        else:
            headers, pos = _read_headers(buf, pos, end)
        if pos != end:
            raise CorruptBatch("record length does not match its content")
        timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
        records.append(Record(base_offset + offset_delta, timestamp, key, value, headers))
    if pos != len(buf):
        raise CorruptBatch(f"{len(buf) - pos} bytes behind the last record")
    return records


def _read_bytes(buf: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    byte = buf[pos]
    if byte < 0x80:
        size = (byte >> 1) ^ -(byte & 1)
        pos += 1
    else:
        size, pos = read_varint(buf, pos)
    if size == -1:
        return None, pos
    if size < 0 or size > end - pos:
        raise CorruptBatch("field is longer than its record")
    return buf[pos : pos + size], pos + size


def _read_headers(buf: bytes, pos: int, end: int) -> tuple[list[tuple[str, bytes | None]], int]:
    count, pos = read_varint(buf, pos)
    if count < 0 or count > end - pos:
        raise CorruptBatch(f"{count} record headers cannot fit")
    headers = []
    for _ in range(count):
        name, pos = _read_bytes(buf, pos, end)
        if name is None:
            raise CorruptBatch("record header without a name")
        value, pos = _read_bytes(buf, pos, end)
        headers.append((name.decode(), value))
    return headers, pos
