"""Batches into consumer records, fast: one pass, varints read in line where they are short.

Equal to `records.reader` (a property test says so) without its intermediate objects. Batches are checked (CRC,
lengths) before anything is believed; what is malformed raises `CorruptBatch`.
"""

from penstock.client.types import NO_HEADERS, ConsumerRecord, Headers
from penstock.records.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, CorruptBatch, crc_is_valid
from penstock.records.compression import decompress
from penstock.records.varint import read_varint


def decode_batch(
    topic: str, partition: int, data: memoryview, pos: int, header: BatchHeader, *, check_crc: bool = True
) -> list[ConsumerRecord]:
    """The records of the whole batch at `pos`."""
    if check_crc and not crc_is_valid(data, pos, header):
        raise CorruptBatch(f"CRC mismatch in the batch at offset {header.base_offset}")
    payload = decompress(header.codec, data[pos + HEADER_BYTES : pos + header.size_bytes])
    if not 0 <= header.record_count <= len(payload):
        raise CorruptBatch(f"{header.record_count} records cannot fit into {len(payload)} bytes")
    try:
        return _decode_records(topic, partition, bytes(payload), header)
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptBatch):
            raise
        raise CorruptBatch(f"malformed record in the batch at offset {header.base_offset}: {error}") from None


def _decode_records(topic: str, partition: int, buf: bytes, header: BatchHeader) -> list[ConsumerRecord]:
    """Varints of one and two bytes, which nearly all are, are read in line: calls cost more than all the rest."""
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    timestamp_type, epoch = header.timestamp_type, header.partition_leader_epoch
    append_time = header.max_timestamp if timestamp_type == LOG_APPEND_TIME else None
    records: list[ConsumerRecord] = []
    append = records.append
    size = len(buf)
    pos = 0
    for _ in range(header.record_count):
        raw, pos = buf[pos], pos + 1
        if raw > 127:
            raw, pos = raw & 127 | buf[pos] << 7, pos + 1
            if raw > 16383:
                raw, pos = _long_varint(buf, pos - 2)
        end = pos + (raw >> 1)
        raw, pos = buf[pos + 1], pos + 2  # behind one byte of unused attributes
        if raw > 127:
            raw, pos = raw & 127 | buf[pos] << 7, pos + 1
            if raw > 16383:
                raw, pos = _long_varint(buf, pos - 2)
        timestamp = base_timestamp + (raw >> 1 ^ -(raw & 1))
        raw, pos = buf[pos], pos + 1
        if raw > 127:
            raw, pos = raw & 127 | buf[pos] << 7, pos + 1
            if raw > 16383:
                raw, pos = _long_varint(buf, pos - 2)
        offset = base_offset + (raw >> 1)
        key = value = None
        raw, pos = buf[pos], pos + 1
        if raw != 1:
            if raw > 127:
                raw, pos = _long_varint(buf, pos - 1)
            key = buf[pos : pos + (raw >> 1)]
            pos += raw >> 1
        raw, pos = buf[pos], pos + 1
        if raw != 1:
            if raw > 127:
                raw, pos = raw & 127 | buf[pos] << 7, pos + 1
                if raw > 16383:
                    raw, pos = _long_varint(buf, pos - 2)
            value = buf[pos : pos + (raw >> 1)]
            pos += raw >> 1
        headers = NO_HEADERS
        if buf[pos] == 0:
            pos += 1
        else:
            headers, pos = _decode_headers(buf, pos, end)
        # Lengths that lie (also negative ones) cannot add up to the record's own: one check stands for all.
        if pos != end:
            raise CorruptBatch("record length does not match its content")
        stamp = timestamp if append_time is None else append_time
        append(ConsumerRecord(topic, partition, offset, stamp, key, value, headers, timestamp_type, epoch))
    if pos != size:
        raise CorruptBatch(f"{size - pos} bytes behind the last record")
    return records


def _long_varint(buf: bytes, pos: int) -> tuple[int, int]:
    """Any varint, as it is on the wire (zigzag not undone)."""
    raw = shift = 0
    while shift < 70:
        byte = buf[pos]
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return raw, pos
        shift += 7
    raise CorruptBatch("varint of more than ten bytes")


def _short_varint(buf: bytes, pos: int) -> tuple[int, int]:
    """One and two byte varints, which nearly all are; the rest by the general way."""
    byte = buf[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    second = buf[pos + 1]
    if second < 0x80:
        raw = byte & 0x7F | second << 7
        return (raw >> 1) ^ -(raw & 1), pos + 2
    return read_varint(buf, pos)


def _decode_headers(buf: bytes, pos: int, end: int) -> tuple[Headers, int]:
    count, pos = read_varint(buf, pos)
    if count < 0 or count > end - pos:
        raise CorruptBatch(f"{count} record headers cannot fit")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, pos = _short_varint(buf, pos)
        if length < 0 or length > end - pos:
            raise CorruptBatch("record header without a name")
        name = buf[pos : pos + length].decode()
        pos += length
        length, pos = _short_varint(buf, pos)
        if length == -1:
            headers.append((name, None))
            continue
        if length < 0 or length > end - pos:
            raise CorruptBatch("record header is longer than its record")
        headers.append((name, buf[pos : pos + length]))
        pos += length
    return tuple(headers), pos
