"""Zigzag varints, as records write every length, count and delta."""

from penstock.model.ports import Buffer

_MAX_VARINT_BYTES = 10


def append_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def varint_size(value: int) -> int:
    value = (value << 1) ^ (value >> 63)
    return max(1, (value.bit_length() + 6) // 7)


def read_varint(buf: Buffer, pos: int) -> tuple[int, int]:
    """`(value, next position)`; IndexError at the end of the buffer, ValueError when it never ends."""
    byte = buf[pos]
    value = byte & 0x7F
    shift = 7
    pos += 1
    while byte > 0x7F:
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise ValueError("varint is longer than 10 bytes")
        byte = buf[pos]
        value |= (byte & 0x7F) << shift
        shift += 7
        pos += 1
    return (value >> 1) ^ -(value & 1), pos
