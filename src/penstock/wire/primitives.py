"""Kafka's primitive types, as small functions that the generated codecs call.

Readers take a memoryview and a position and return the value and the next position. The rules that keep them
cheap: a position only ever grows, so a slice that came out short is found once, by the final check of the
top-level decoder (`pos > len(buf)`); a fixed-width read past the end raises by itself; only lengths that could
move the position backwards, and counts, are checked on the spot.
"""

from collections.abc import Sequence
from struct import Struct as Packer
from struct import error as StructError
from struct import pack as pack_format
from struct import unpack_from as unpack_format
from typing import Any

from penstock.wire.errors import UnsupportedVersionError, WireError

Buffer = bytes | bytearray | memoryview

# What malformed bytes can raise inside a decoder, and a wrong value inside an encoder.
DECODE_FAULTS = (StructError, IndexError, UnicodeDecodeError, OverflowError)
ENCODE_FAULTS = (StructError, AttributeError, TypeError, UnicodeEncodeError, OverflowError)

unpack_int16 = Packer(">h").unpack_from
unpack_int32 = Packer(">i").unpack_from
pack_int16 = Packer(">h").pack
pack_int32 = Packer(">i").pack

_MAX_STRING_BYTES = 32767
_MAX_VARINT_SHIFT = 28
_NULL_INT16 = b"\xff\xff"
_NULL_INT32 = b"\xff\xff\xff\xff"


# --- faults -------------------------------------------------------------------------------------------------


def malformed(name: str, version: int, fault: BaseException) -> WireError:
    return WireError(f"{name} v{version} is malformed: {fault}")


def truncated(name: str, version: int) -> WireError:
    return WireError(f"{name} v{version} is truncated")


def unencodable(name: str, version: int, fault: BaseException) -> WireError:
    return WireError(f"{name} v{version} cannot be encoded: {fault}")


def unsupported_version(name: str, version: int, first: int, last: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{name} has versions {first}–{last}, not {version}")


def unsupported_field(name: str, field: str, version: int) -> UnsupportedVersionError:
    return UnsupportedVersionError(f"{name} v{version} has no field for the given {field}")


def wrong_tag_size(tag: int) -> WireError:
    return WireError(f"tagged field {tag} is not as long as it says")


def _negative(what: str, length: int) -> WireError:
    return WireError(
        f"negative length {length} of a {what}" if length < -1 else f"null {what} where null is not allowed"
    )


# --- varints ------------------------------------------------------------------------------------------------


def read_uvarint(buf: memoryview, pos: int) -> tuple[int, int]:
    byte = buf[pos]
    pos += 1
    if byte < 0x80:
        return byte, pos
    value = byte & 0x7F
    shift = 7
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise WireError("a varint has more than 32 bits")
            return value, pos
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise WireError("a varint has more than five bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def encode_uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


# --- strings ------------------------------------------------------------------------------------------------


def read_string(buf: memoryview, pos: int) -> tuple[str, int]:
    (length,) = unpack_int16(buf, pos)
    if length < 0:
        raise _negative("string", length)
    pos += 2
    end = pos + length
    return buf[pos:end].tobytes().decode(), end


def read_nullable_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    (length,) = unpack_int16(buf, pos)
    pos += 2
    if length < 0:
        if length != -1:
            raise _negative("string", length)
        return None, pos
    end = pos + length
    return buf[pos:end].tobytes().decode(), end


def read_compact_string(buf: memoryview, pos: int) -> tuple[str, int]:
    length = buf[pos]
    pos += 1
    if length > 0x7F:
        length, pos = _read_long_length(buf, pos - 1)
    end = pos + length - 1
    if end < pos:
        raise _negative("string", -1)
    return buf[pos:end].tobytes().decode(), end


def read_compact_nullable_string(buf: memoryview, pos: int) -> tuple[str | None, int]:
    length = buf[pos]
    pos += 1
    if length > 0x7F:
        length, pos = _read_long_length(buf, pos - 1)
    if length == 0:
        return None, pos
    end = pos + length - 1
    return buf[pos:end].tobytes().decode(), end


def _read_long_length(buf: memoryview, pos: int) -> tuple[int, int]:
    length, pos = read_uvarint(buf, pos)
    if length > _MAX_STRING_BYTES + 1:
        raise WireError(f"a string of {length - 1} bytes is longer than {_MAX_STRING_BYTES}")
    return length, pos


def write_string(out: bytearray, value: str) -> None:
    raw = value.encode()
    out += pack_int16(len(raw))
    out += raw


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += _NULL_INT16
        return
    raw = value.encode()
    out += pack_int16(len(raw))
    out += raw


def write_compact_string(out: bytearray, value: str) -> None:
    raw = value.encode()
    length = len(raw) + 1
    if length < 0x80:
        out.append(length)
    elif length > _MAX_STRING_BYTES + 1:
        raise WireError(f"a string of {length - 1} bytes is longer than {_MAX_STRING_BYTES}")
    else:
        write_uvarint(out, length)
    out += raw


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


# --- bytes and records --------------------------------------------------------------------------------------


def read_bytes(buf: memoryview, pos: int) -> tuple[bytes, int]:
    (length,) = unpack_int32(buf, pos)
    if length < 0:
        raise _negative("bytes field", length)
    pos += 4
    end: int = pos + length
    return buf[pos:end].tobytes(), end


def read_nullable_bytes(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
    (length,) = unpack_int32(buf, pos)
    pos += 4
    if length < 0:
        if length != -1:
            raise _negative("bytes field", length)
        return None, pos
    end = pos + length
    return buf[pos:end].tobytes(), end


def read_compact_bytes(buf: memoryview, pos: int) -> tuple[bytes, int]:
    length, pos = read_uvarint(buf, pos)
    end = pos + length - 1
    if end < pos:
        raise _negative("bytes field", -1)
    return buf[pos:end].tobytes(), end


def read_compact_nullable_bytes(buf: memoryview, pos: int) -> tuple[bytes | None, int]:
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    end = pos + length - 1
    return buf[pos:end].tobytes(), end


def read_records(buf: memoryview, pos: int) -> tuple[memoryview, int]:
    """Like `read_bytes`, without a copy: record batches stay where they arrived."""
    (length,) = unpack_int32(buf, pos)
    if length < 0:
        raise _negative("records field", length)
    pos += 4
    end: int = pos + length
    return buf[pos:end], end


def read_nullable_records(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    (length,) = unpack_int32(buf, pos)
    pos += 4
    if length < 0:
        if length != -1:
            raise _negative("records field", length)
        return None, pos
    end = pos + length
    return buf[pos:end], end


def read_compact_records(buf: memoryview, pos: int) -> tuple[memoryview, int]:
    length, pos = read_uvarint(buf, pos)
    end = pos + length - 1
    if end < pos:
        raise _negative("records field", -1)
    return buf[pos:end], end


def read_compact_nullable_records(buf: memoryview, pos: int) -> tuple[memoryview | None, int]:
    length, pos = read_uvarint(buf, pos)
    if length == 0:
        return None, pos
    end = pos + length - 1
    return buf[pos:end], end


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += pack_int32(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += _NULL_INT32
    else:
        out += pack_int32(len(value))
        out += value


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_compact_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_uvarint(out, len(value) + 1)
        out += value


# --- arrays -------------------------------------------------------------------------------------------------


def read_count(buf: memoryview, pos: int) -> tuple[int, int]:
    """Number of elements of an array; never more than there are bytes left, so that it may be trusted."""
    (count,) = unpack_int32(buf, pos)
    pos += 4
    if count < 0:
        raise _negative("array", count)
    if count > len(buf) - pos:
        raise WireError(f"an array of {count} elements in {len(buf) - pos} bytes")
    return count, pos


def read_nullable_count(buf: memoryview, pos: int) -> tuple[int, int]:
    """As `read_count`; −1 stands for a null array."""
    (count,) = unpack_int32(buf, pos)
    if count == -1:
        return -1, pos + 4
    return read_count(buf, pos)


def read_compact_count(buf: memoryview, pos: int) -> tuple[int, int]:
    count, pos = read_compact_nullable_count(buf, pos)
    if count < 0:
        raise _negative("array", count)
    return count, pos


def read_compact_nullable_count(buf: memoryview, pos: int) -> tuple[int, int]:
    count = buf[pos]
    pos += 1
    if count > 0x7F:
        count, pos = read_uvarint(buf, pos - 1)
    count -= 1
    if count > len(buf) - pos:
        raise WireError(f"an array of {count} elements in {len(buf) - pos} bytes")
    return count, pos


def read_numbers(buf: memoryview, pos: int, count: int, code: str, width: int) -> tuple[list[Any], int]:
    return list(unpack_format(f">{count}{code}", buf, pos)), pos + count * width


def read_uuids(buf: memoryview, pos: int, count: int) -> tuple[list[bytes], int]:
    end = pos + count * 16
    return [buf[at : at + 16].tobytes() for at in range(pos, end, 16)], end


def write_count(out: bytearray, items: Sequence[Any]) -> None:
    out += pack_int32(len(items))


def write_compact_count(out: bytearray, items: Sequence[Any]) -> None:
    count = len(items) + 1
    if count < 0x80:
        out.append(count)
    else:
        write_uvarint(out, count)


def write_null_count(out: bytearray) -> None:
    out += _NULL_INT32


def write_numbers(out: bytearray, values: Sequence[int], code: str) -> None:
    out += pack_format(f">{len(values)}{code}", *values)


# --- tagged fields (KIP-482) --------------------------------------------------------------------------------


def skip_tagged_fields(buf: memoryview, pos: int) -> int:
    count, pos = read_uvarint(buf, pos)
    for _ in range(count):
        _tag, pos = read_uvarint(buf, pos)
        size, pos = read_uvarint(buf, pos)
        pos += size
    return pos


def write_tagged_field(out: bytearray, tag: int, value: Buffer) -> None:
    write_uvarint(out, tag)
    write_uvarint(out, len(value))
    out += value
