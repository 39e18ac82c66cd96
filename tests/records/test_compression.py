"""Codecs: round trips, frames in a row, bounds on expansion, and what other clients' codecs produce."""

import contextlib
import gzip

import lz4.frame
import pytest
import zstandard

from penstock.records.batch import CorruptBatch
from penstock.records.compression import Codec, codec_by_name, compress, decompress

_DATA = b"".join(b"line %d of something compressible\n" % i for i in range(5000))
_COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", _DATA])
def test_round_trip(codec: Codec, data: bytes) -> None:
    packed = compress(codec, memoryview(data))
    assert decompress(codec, packed) == data
    if len(data) > 1000 and codec is not Codec.NONE:
        assert len(packed) < len(data) / 2


@pytest.mark.parametrize("codec", _COMPRESSED)
def test_frames_in_a_row_are_all_read(codec: Codec) -> None:
    assert decompress(codec, compress(codec, b"one") + compress(codec, b"two")) == b"onetwo"


@pytest.mark.parametrize("codec", _COMPRESSED)
def test_expansion_is_bounded(codec: Codec) -> None:
    packed = compress(codec, bytes(10_000_000))
    with pytest.raises(CorruptBatch, match="more than 1000000 bytes"):
        decompress(codec, packed, 1_000_000)
    assert len(decompress(codec, packed, 10_000_000)) == 10_000_000


@pytest.mark.parametrize("codec", _COMPRESSED)
def test_cut_off_or_garbage_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, _DATA)
    for data in (packed[: len(packed) // 2], b"garbage" * 10):
        with contextlib.suppress(CorruptBatch):
            assert decompress(codec, data) != _DATA


def test_raw_snappy_without_framing_is_read() -> None:
    import cramjam

    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(_DATA))) == _DATA


def test_output_is_read_by_the_reference_decoders() -> None:
    assert gzip.decompress(compress(Codec.GZIP, _DATA)) == _DATA
    assert lz4.frame.decompress(compress(Codec.LZ4, _DATA)) == _DATA
    assert zstandard.ZstdDecompressor().decompress(compress(Codec.ZSTD, _DATA)) == _DATA
    assert not lz4.frame.get_frame_info(compress(Codec.LZ4, _DATA))["block_linked"]


def test_names() -> None:
    assert codec_by_name("zstd") is Codec.ZSTD
    assert codec_by_name("uncompressed") is codec_by_name("none") is Codec.NONE
    with pytest.raises(ValueError, match="brotli"):
        codec_by_name("brotli")
