"""Request and response headers, tuned by hand: they stand before every message.

Request header v1 (key, version, correlation id, nullable client id), v2 adds tagged fields and is used by flexible
versions; the client id stays a plain nullable string in both. Response header v0 is the correlation id, v1 adds
tagged fields; ApiVersions is always answered with v0.
"""

from struct import Struct as Packer
from struct import error as StructError
from typing import NamedTuple

from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.errors import UnsupportedVersionError, WireError
from penstock.wire.generated.api_table import ROWS
from penstock.wire.primitives import DECODE_FAULTS, Buffer, pack_int32, skip_tagged_fields, write_nullable_string

_PREFIX = Packer(">hhih")  # api key, api version, correlation id, length of the client id
_START = Packer(">hhi")
_API_VERSIONS = ApiKey.API_VERSIONS
_FLEXIBLE_FROM: dict[int, int] = {row[0]: row[6] for row in ROWS}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_pos: int


def decode_request_header(buf: Buffer, pos: int = 0) -> RequestHeader:
    """The header of a frame (without the frame's length). An unknown key is read as far as v1 goes."""
    try:
        api_key, api_version, correlation_id, length = _PREFIX.unpack_from(buf, pos)
    except StructError as fault:
        raise WireError(f"request header is malformed: {fault}") from fault
    pos += 10
    client_id = None
    if length > 0:
        end = pos + length
        try:
            client_id = str(buf[pos:end], "utf-8")
        except UnicodeDecodeError as fault:
            raise WireError(f"client id is malformed: {fault}") from fault
        pos = end
    elif length == 0:
        client_id = ""
    elif length != -1:
        raise WireError(f"negative length {length} of a client id")
    if api_version >= _FLEXIBLE_FROM.get(api_key, 32767):
        pos = _skip_tags(buf, pos)
    if pos > len(buf):
        raise WireError("request header is truncated")
    return RequestHeader(api_key, api_version, correlation_id, client_id, pos)


def _skip_tags(buf: Buffer, pos: int) -> int:
    try:
        if buf[pos] == 0:
            return pos + 1
        return skip_tagged_fields(memoryview(buf), pos)
    except DECODE_FAULTS as fault:
        raise WireError(f"header is malformed: {fault}") from fault


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, out: bytearray
) -> None:
    flexible_from = _FLEXIBLE_FROM.get(api_key)
    if flexible_from is None:
        raise UnsupportedVersionError(f"there is no API with key {api_key}")
    out += _START.pack(api_key, api_version, correlation_id)
    write_nullable_string(out, client_id)
    if api_version >= flexible_from:
        out.append(0)


def response_header_size(api_key: int, api_version: int) -> int:
    return 5 if api_version >= _FLEXIBLE_FROM[api_key] and api_key != _API_VERSIONS else 4


def encode_response_header(api_key: int, api_version: int, correlation_id: int, out: bytearray) -> None:
    out += pack_int32(correlation_id)
    if api_version >= _FLEXIBLE_FROM[api_key] and api_key != _API_VERSIONS:
        out.append(0)


def decode_response_header(buf: Buffer, api_key: int, version: int, pos: int = 0) -> tuple[int, int]:
    """Correlation id and the position of the body."""
    if pos + 4 > len(buf):
        raise WireError("response header is truncated")
    correlation_id = int.from_bytes(buf[pos : pos + 4], "big", signed=True)
    pos += 4
    if API_TABLE[api_key].response_header_version(version):
        pos = _skip_tags(buf, pos)
    if pos > len(buf):
        raise WireError("response header is truncated")
    return correlation_id, pos
