"""Answers as frames: length, response header, body."""

import struct
from typing import Any

from penstock.broker.context import RequestContext
from penstock.wire.header import encode_response_header

_SIZE = struct.Struct(">i")


def begin_frame(context: RequestContext) -> bytearray:
    """A frame whose length is still to be written, with its header."""
    out = bytearray(4)
    encode_response_header(context.api_key, context.api_version, context.correlation_id, out)
    return out


def finish_frame(out: bytearray, extra_bytes: int = 0) -> bytearray:
    """Writes the length; `extra_bytes` follow the frame from elsewhere (file ranges)."""
    _SIZE.pack_into(out, 0, len(out) - 4 + extra_bytes)
    return out


def encode_response_frame(context: RequestContext, response: Any) -> bytearray:
    out = begin_frame(context)
    response.encode(context.api_version, out)
    return finish_frame(out)
