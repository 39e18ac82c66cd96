"""Hashes that must agree with other implementations, because they decide which partition a key belongs to.

`murmur2` is what Kafka's Java clients hash keys with; `java_string_hash` is what `hashCode` gives a string,
which places groups and transactional ids on the partitions of their internal topics.
"""

from functools import lru_cache
from struct import unpack_from

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# A string is hashed by arithmetic on numbers that hold many of its code units side by side: a client chooses how long
# it is, and a loop over 32 KB would take milliseconds. A piece is as large as a mask.
_PIECE_BYTES = 1 << 13
_LOW_OF_PAIRS = int.from_bytes(b"\0\0\xff\xff" * (_PIECE_BYTES >> 2), "big")
_LOW_OF_FOURS = int.from_bytes(b"\0\0\0\0\xff\xff\xff\xff" * (_PIECE_BYTES >> 3), "big")


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
    for start in range(0, len(raw), _PIECE_BYTES):
        piece = raw[start : start + _PIECE_BYTES]
        h = h * _power_of_31(len(piece) >> 1) + _hash_units(piece) & _MASK
    return h - (1 << 32) if h & 0x80000000 else h


def _hash_units(raw: bytes) -> int:
    """The hash of big-endian code units, from 0 to 2**32. Zeros in front of the first one would not change it."""
    lanes = int.from_bytes(raw, "big")
    # Units to pairs to fours: what was in front counts 31 times as much per unit behind it. 31 bits at most then.
    lanes = (lanes >> 16 & _LOW_OF_PAIRS) * 31 + (lanes & _LOW_OF_PAIRS)
    lanes = (lanes >> 32 & _LOW_OF_FOURS) * 31**2 + (lanes & _LOW_OF_FOURS)
    # Now each lane of 64 bits holds less than 32, so a product fits: the front half is laid over the back half.
    count = len(raw) + 7 >> 3
    while count > 1:
        count = count + 1 >> 1
        front = lanes >> 64 * count
        back = lanes ^ front << 64 * count
        lanes = front * _power_of_31(4 * count) + back & _LOW_OF_FOURS
    return lanes


def _power_of_31(exponent: int) -> int:
    return pow(31, exponent, 1 << 32)


def coordinator_partition(key: str, partitions: int) -> int:
    """The partition of an internal topic that a group or a transactional id belongs to."""
    # Heartbeats and transactions ask for the same keys all the time. Long ones are rare, and whoever makes them up
    # could fill gigabytes.
    find = _remembered_partition if len(key) <= _LONGEST_REMEMBERED else _partition
    return find(key, partitions)


def _partition(key: str, partitions: int) -> int:
    h = java_string_hash(key)
    return 0 if h == -(1 << 31) else abs(h) % partitions


_LONGEST_REMEMBERED = 256  # characters
_remembered_partition = lru_cache(maxsize=1 << 16)(_partition)
