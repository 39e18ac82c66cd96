"""Frames that no client would send, from a seed: noise, cut and stretched frames, flipped bits, absurd counts.

A frame here is what follows the length on the wire, unless a function says that it returns raw bytes.
"""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.wire.apis import API_TABLE, Api
from penstock.wire.header import encode_request_header

GOLDEN = Path(__file__).parent.parent / "golden"


def every_api_version() -> list[tuple[Api, int]]:
    return [(api, version) for api in API_TABLE.values() for version in range(api.min_version, api.max_version + 1)]


def golden_frames() -> list[bytes]:
    """Requests that real clients sent, captured by the golden tests."""
    found = [bytes.fromhex(path.read_text()) for path in sorted(GOLDEN.glob("*/*.hex"))]
    assert len(found) > 20
    return found


def header(api: Api, version: int) -> bytearray:
    out = bytearray()
    encode_request_header(api.key, version, 77, "fuzz", out)
    return out


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._golden = golden_frames()
        self._versions = every_api_version()

    def frames(self, count: int) -> Iterator[bytes]:
        kinds = (self.noise, self.garbage_body, self.flipped, self.cut, self.stretched, self.absurd_count)
        for _ in range(count):
            yield self.random.choice(kinds)()

    def noise(self) -> bytes:
        return self.random.randbytes(self.random.randint(0, 200))

    def garbage_body(self) -> bytes:
        """A good header, then anything."""
        api, version = self.random.choice(self._versions)
        return bytes(header(api, version)) + self.random.randbytes(self.random.randint(0, 120))

    def flipped(self) -> bytes:
        frame = bytearray(self.random.choice(self._golden))
        for _ in range(self.random.choice((1, 1, 1, 2, 8))):
            frame[self.random.randrange(len(frame))] ^= 1 << self.random.randrange(8)
        return bytes(frame)

    def cut(self) -> bytes:
        frame = self.random.choice(self._golden)
        return frame[: self.random.randrange(len(frame))]

    def stretched(self) -> bytes:
        frame = self.random.choice(self._golden)
        return frame + self.random.randbytes(self.random.randint(1, 50))

    def absurd_count(self) -> bytes:
        """Lengths and counts far beyond the frame: nothing may be allocated for them."""
        frame = bytearray(self.random.choice(self._golden))
        position = self.random.randrange(8, len(frame))
        absurd = self.random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\x80\x00\x00\x00"))
        frame[position : position + len(absurd)] = absurd
        return bytes(frame)


def framed(frame: bytes, length: int | None = None) -> bytes:
    """Raw bytes; the length may lie."""
    return struct.pack(">i", len(frame) if length is None else length) + frame
