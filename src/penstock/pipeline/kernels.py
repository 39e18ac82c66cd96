"""Loops over the bytes of whole record batches, compiled where numba is there.

Everything else in this room works on whole columns; these few loops see every record. They are plain Python that
numba understands, so the same lines run (slowly) without it. Measured with numba on one core, 100-byte values: 20 M
records/s scanned, 9 M copied.
Hard rule: nothing is believed. A length that lies makes `scan_batches` return a negative number; nothing outside is
read.
"""

from typing import Any

try:
    from numba import njit
except ImportError:  # the same loops, interpreted

    def njit(*_args: Any, **_options: Any) -> Any:
        return lambda function: function


_jit = njit(cache=True, nogil=True)

Array = Any  # a numpy array


@_jit
def _varint(buf: Array, pos: int, end: int) -> tuple[int, int]:
    """`(value, next position)`; a position of -1 when the varint does not end in time."""
    raw = 0
    shift = 0
    while pos < end and shift < 64:
        byte = int(buf[pos])
        pos += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
    return 0, -1


@_jit
def scan_batches(buf: Array, counts: Array, ends: Array, fields: Array) -> int:
    """Fills one row of `fields` per record of the payloads in `buf`; batch i has `counts[i]` records up to `ends[i]`.

    Columns: timestamp delta, offset delta, key start, key length, value start, value length, headers start, headers.
    A length of -1 stands for null. Returns the number of all headers, or -1 - i when batch i is malformed.
    """
    pos = 0
    row = 0
    headers = 0
    for batch in range(counts.shape[0]):
        for _ in range(counts[batch]):
            pos = _scan_record(buf, pos, ends[batch], fields, row)
            if pos < 0:
                return -1 - batch
            headers += fields[row, 7]
            row += 1
        if pos != ends[batch]:
            return -1 - batch
    return headers


@_jit
def _scan_record(buf: Array, pos: int, size: int, fields: Array, row: int) -> int:
    length, pos = _varint(buf, pos, size)
    if pos < 0 or length < 1 or length > size - pos:
        return -1
    end = pos + length
    value, pos = _varint(buf, pos + 1, end)  # behind one byte of unused attributes
    if pos < 0:
        return -1
    fields[row, 0] = value
    value, pos = _varint(buf, pos, end)
    if pos < 0:
        return -1
    fields[row, 1] = value
    for column in (2, 4):
        value, pos = _varint(buf, pos, end)
        if pos < 0 or value < -1 or value > end - pos:
            return -1
        fields[row, column] = pos
        fields[row, column + 1] = value
        pos += max(value, 0)
    value, pos = _varint(buf, pos, end)
    if pos < 0 or value < 0 or value > end - pos:
        return -1
    fields[row, 6] = pos
    fields[row, 7] = value
    pos = _skip_headers(buf, pos, end, value)
    return pos if pos == end else -1


@_jit
def _skip_headers(buf: Array, pos: int, end: int, count: int) -> int:
    for _ in range(count):
        length, pos = _varint(buf, pos, end)
        if pos < 0 or length < 0 or length > end - pos:
            return -1
        pos += length
        length, pos = _varint(buf, pos, end)
        if pos < 0 or length < -1 or length > end - pos:
            return -1
        pos += max(length, 0)
    return pos


@_jit
def scan_headers(buf: Array, fields: Array, spans: Array) -> None:
    """Name start, name length, value start, value length of every header of every row, in order. After a scan."""
    at = 0
    size = buf.shape[0]
    for row in range(fields.shape[0]):
        pos = fields[row, 6]
        for _ in range(fields[row, 7]):
            length, pos = _varint(buf, pos, size)
            spans[at, 0] = pos
            spans[at, 1] = length
            pos += length
            length, pos = _varint(buf, pos, size)
            spans[at, 2] = pos
            spans[at, 3] = length
            pos += max(length, 0)
            at += 1


@_jit
def gather(buf: Array, starts: Array, lengths: Array, out: Array, ends: Array) -> None:
    """Copies the spans of `buf` one behind the other into `out`; `ends[i + 1]` is where span i ends there."""
    at = 0
    ends[0] = 0
    for row in range(starts.shape[0]):
        start = starts[row]
        length = max(lengths[row], 0)
        out[at : at + length] = buf[start : start + length]
        at += length
        ends[row + 1] = at


# -- writing ------------------------------------------------------------------------------------------------------


@_jit
def choose_partitions(data: Array, ends: Array, present: Array, count: int, spare: int, out: Array) -> None:
    """For each key the partition that Java's clients choose (murmur2); rows without a key go to `spare`."""
    for row in range(out.shape[0]):
        if not present[row]:
            out[row] = spare
            continue
        out[row] = (_murmur2(data, ends[row], ends[row + 1]) & 0x7FFFFFFF) % count


@_jit
def _murmur2(data: Array, start: int, end: int) -> int:
    mask = 0xFFFFFFFF
    m = 0x5BD1E995
    h = (0x9747B28C ^ (end - start)) & mask
    at = start
    while end - at >= 4:
        k = int(data[at]) | int(data[at + 1]) << 8 | int(data[at + 2]) << 16 | int(data[at + 3]) << 24
        k = k * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
        at += 4
    if at < end:
        tail = 0
        shift = 0
        while at < end:
            tail |= int(data[at]) << shift
            shift += 8
            at += 1
        h = (h ^ tail) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@_jit
def _put_varint(out: Array, pos: int, value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out[pos] = raw & 0x7F | 0x80
        raw >>= 7
        pos += 1
    out[pos] = raw
    return pos + 1


@_jit
def _varint_size(value: int) -> int:
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@_jit
def _put_bytes(out: Array, pos: int, data: Array, start: int, end: int) -> int:
    pos = _put_varint(out, pos, end - start)
    out[pos : pos + end - start] = data[start:end]
    return pos + end - start


@_jit
def _field_size(ends: Array, present: Array, row: int) -> int:
    length: int = ends[row + 1] - ends[row]
    return _varint_size(length) + length if present[row] else 1


@_jit
def _put_field(out: Array, pos: int, data: Array, ends: Array, present: Array, row: int) -> int:
    if present[row]:
        pos = _put_bytes(out, pos, data, ends[row], ends[row + 1])
    else:
        pos = _put_varint(out, pos, -1)
    return pos


@_jit
def encode_records(
    rows: Array,
    first: int,
    timestamps: Array,
    base_timestamp: int,
    key_data: Array,
    key_ends: Array,
    key_present: Array,
    value_data: Array,
    value_ends: Array,
    value_present: Array,
    header_ends: Array,
    name_data: Array,
    name_ends: Array,
    content_data: Array,
    content_ends: Array,
    content_present: Array,
    out: Array,
) -> tuple[int, int]:
    """Writes the records of `rows[first:]` into `out` while they fit: (row behind the last written, bytes).

    `header_ends` is empty where no record has headers.
    """
    pos = 0
    at = first
    while at < rows.shape[0]:
        row = rows[at]
        delta = timestamps[row] - base_timestamp
        headers = header_ends[row + 1] - header_ends[row] if header_ends.shape[0] else 0
        size = 1 + _varint_size(delta) + _varint_size(at - first) + _varint_size(headers)
        size += _field_size(key_ends, key_present, row) + _field_size(value_ends, value_present, row)
        if headers:
            for h in range(header_ends[row], header_ends[row + 1]):
                length = name_ends[h + 1] - name_ends[h]
                size += _varint_size(length) + length + _field_size(content_ends, content_present, h)
        if pos + size + _varint_size(size) > out.shape[0]:
            break
        pos = _put_varint(out, pos, size)
        out[pos] = 0
        pos = _put_varint(out, pos + 1, delta)
        pos = _put_varint(out, pos, at - first)
        pos = _put_field(out, pos, key_data, key_ends, key_present, row)
        pos = _put_field(out, pos, value_data, value_ends, value_present, row)
        pos = _put_varint(out, pos, headers)
        if headers:
            for h in range(header_ends[row], header_ends[row + 1]):
                pos = _put_bytes(out, pos, name_data, name_ends[h], name_ends[h + 1])
                pos = _put_field(out, pos, content_data, content_ends, content_present, h)
        at += 1
    return at, pos
