"""Hashes that must agree with other implementations, because they decide which partition a key belongs to.

`murmur2` is what Kafka's Java clients hash keys with; `java_string_hash` is what `hashCode` gives a string,
which places groups and transactional ids on the partitions of their internal topics.
"""

from struct import unpack_from

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash with Kafka's seed, as an unsigned number."""
    size = len(data)
    whole = size & ~3
    h = _SEED ^ size
    for k in unpack_from(f"<{whole >> 2}I", data):
        k = k * _M & _MASK
        h = (h * _M ^ (k ^ k >> 24) * _M) & _MASK
    if tail := data[whole:]:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def java_string_hash(text: str) -> int:
    """`String.hashCode()`: over UTF-16 code units, as a signed 32-bit number."""
    raw = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for unit in unpack_from(f">{len(raw) >> 1}H", raw):
        h = h * 31 + unit & _MASK
    return h - (1 << 32) if h & 0x80000000 else h


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group or a transactional id belongs to."""
    h = java_string_hash(key)
    return 0 if h == -(1 << 31) else abs(h) % partitions
