"""Records into bytes, the way a producer needs it: one record at a time and fast.

Equal to `records.builder` (a property test says so) at about half its cost: lengths and deltas are nearly always
small, so their varints are looked up instead of computed.
"""

from penstock.client.types import Headers
from penstock.records.varint import append_varint


def _varint(number: int) -> bytes:
    out = bytearray()
    append_varint(out, number)
    return bytes(out)


SMALL = 4096
VARINTS = tuple(_varint(number) for number in range(SMALL))


def encode_record(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp_delta: int, offset_delta: int
) -> bytes:
    """The record with its length in front."""
    if (
        key is None
        and value is not None
        and not headers
        and 0 <= timestamp_delta < SMALL
        and offset_delta < SMALL
        and len(value) < SMALL - 16
    ):
        table = VARINTS
        body = b"".join((b"\0", table[timestamp_delta], table[offset_delta], b"\1", table[len(value)], value, b"\0"))
        return table[len(body)] + body
    return _encode_any(key, value, headers, timestamp_delta, offset_delta)


def _encode_any(
    key: bytes | None, value: bytes | None, headers: Headers, timestamp_delta: int, offset_delta: int
) -> bytes:
    parts = [b"\0", _encode_varint(timestamp_delta), _encode_varint(offset_delta)]
    for field in (key, value):
        if field is None:
            parts.append(b"\1")
        else:
            parts.append(_encode_varint(len(field)))
            parts.append(field)
    if headers:
        parts.append(_encode_headers(headers))
    else:
        parts.append(b"\0")
    body = b"".join(parts)
    return _encode_varint(len(body)) + body


def _encode_varint(number: int) -> bytes:
    return VARINTS[number] if 0 <= number < SMALL else _varint(number)


def _encode_headers(headers: Headers) -> bytes:
    out = bytearray()
    append_varint(out, len(headers))
    for name, value in headers:
        raw = name.encode()
        append_varint(out, len(raw))
        out += raw
        if value is None:
            out.append(1)
        else:
            append_varint(out, len(value))
            out += value
    return bytes(out)
