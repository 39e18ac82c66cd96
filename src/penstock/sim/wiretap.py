"""What travels between simulated hosts, in words: for whoever reads a trace."""

import struct

from penstock.wire.apis import API_TABLE

_HEAD = struct.Struct(">ihhi")


def describe_requests(data: bytes) -> list[str]:
    """The requests that begin in these bytes, as far as they can be told; data in the middle of one tells nothing."""
    found = []
    position = 0
    while position + _HEAD.size <= len(data):
        size, api_key, version, correlation_id = _HEAD.unpack_from(data, position)
        api = API_TABLE.get(api_key)
        if api is None or not 8 <= size < 1 << 27 or not 0 <= version <= api.max_version:
            break
        found.append(f"{api.name} v{version} #{correlation_id} ({size} B)")
        position += 4 + size
    return found
