"""The five codecs of a record batch, each bounded in what it may expand to.

A few kilobytes can claim gigabytes, so every decompressor stops at `max_bytes`. Codec libraries are imported on
first use: most brokers never decompress anything. Details that other clients depend on: snappy is framed as
xerial does (Java reads nothing else), lz4 blocks are independent (Java rejects linked ones), and gzip, lz4 and
zstd payloads may consist of several frames.
"""

import struct
import zlib
from enum import IntEnum

from penstock.model.ports import Buffer
from penstock.records.batch import CorruptBatch

MAX_DECOMPRESSED_BYTES = 128 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = struct.Struct(">i")


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_NAMES = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}


def codec_by_name(name: str) -> Codec:
    """The codec of a `compression.type`; `uncompressed` and `none` mean the same."""
    try:
        return _NAMES[name]
    except KeyError:
        raise ValueError(f"{name!r} is not a compression type (one of {', '.join(sorted(_NAMES))})") from None


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        gzip = zlib.compressobj(-1 if level is None else level, wbits=31)
        return gzip.compress(data) + gzip.flush()
    if codec == Codec.SNAPPY:
        return _compress_snappy(data)
    if codec == Codec.LZ4:
        import lz4.frame

        return bytes(lz4.frame.compress(data, compression_level=level or 0, block_linked=False))
    if codec == Codec.ZSTD:
        import zstandard

        return zstandard.ZstdCompressor(level=3 if level is None else level).compress(data)
    raise ValueError(f"codec {codec} is not known")


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """The payload in plain; raises `CorruptBatch` when it is malformed or larger than `max_bytes`."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        return _decompress_gzip(data, max_bytes)
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    if codec == Codec.LZ4:
        return _decompress_lz4(data, max_bytes)
    if codec == Codec.ZSTD:
        return _decompress_zstd(data, max_bytes)
    raise CorruptBatch(f"codec {codec} is not known")


def _refuse_size(codec: str, max_bytes: int) -> CorruptBatch:
    return CorruptBatch(f"{codec} payload expands to more than {max_bytes} bytes")


def _decompress_gzip(data: Buffer, max_bytes: int) -> bytes:
    out = bytearray()
    rest = bytes(data)
    while rest:
        member = zlib.decompressobj(wbits=47)
        try:
            out += member.decompress(rest, max_bytes + 1 - len(out))
        except zlib.error as error:
            raise CorruptBatch(f"gzip payload: {error}") from None
        if len(out) > max_bytes:
            raise _refuse_size("gzip", max_bytes)
        if not member.eof:
            raise CorruptBatch("gzip payload ends early")
        rest = member.unused_data
    return bytes(out)


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam

    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        out += _INT32.pack(len(block))
        out += block
    return bytes(out)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, max_bytes, 0)
    out = bytearray()
    pos = len(_XERIAL_HEADER)
    while pos < len(view):
        if bytes(view[pos : pos + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:  # streams may be concatenated
            pos += len(_XERIAL_HEADER)
            continue
        if pos + 4 > len(view):
            raise CorruptBatch("snappy payload ends early")
        size = _INT32.unpack_from(view, pos)[0]
        pos += 4
        if size < 0 or size > len(view) - pos:
            raise CorruptBatch("snappy block is longer than its payload")
        out += _decompress_snappy_block(view[pos : pos + size], max_bytes, len(out))
        pos += size
    return bytes(out)


def _decompress_snappy_block(block: memoryview, max_bytes: int, size_so_far: int) -> bytes:
    import cramjam

    try:
        if size_so_far + cramjam.snappy.decompress_raw_len(block) > max_bytes:
            raise _refuse_size("snappy", max_bytes)
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"snappy payload: {error}") from None


def _decompress_lz4(data: Buffer, max_bytes: int) -> bytes:
    import lz4.frame

    out = bytearray()
    rest = bytes(data)
    while rest:
        frame = lz4.frame.LZ4FrameDecompressor()
        try:
            out += frame.decompress(rest, max_length=max_bytes + 1 - len(out))
        except RuntimeError as error:
            raise CorruptBatch(f"lz4 payload: {error}") from None
        if len(out) > max_bytes:
            raise _refuse_size("lz4", max_bytes)
        if not frame.eof:
            raise CorruptBatch("lz4 payload ends early")
        rest = frame.unused_data or b""
    return bytes(out)


def _decompress_zstd(data: Buffer, max_bytes: int) -> bytes:
    import zstandard

    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    chunks = []
    size = 0
    try:
        while chunk := reader.read(min(1 << 20, max_bytes + 1 - size)):
            chunks.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise _refuse_size("zstd", max_bytes)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"zstd payload: {error}") from None
    return b"".join(chunks)
