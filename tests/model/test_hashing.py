"""Hashes against vectors published with Kafka's Java client and the Java language itself."""

import pytest
from bench.hot_path import Counter
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.hashing import coordinator_partition, java_string_hash, murmur2

# From Kafka's UtilsTest (signed there).
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "signed"), MURMUR2.items())
def test_murmur2_agrees_with_java(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -2147483648), ("😀", 1772899)],
)
def test_string_hash_agrees_with_java(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def defined_string_hash(text: str) -> int:
    """`s[0]*31^(n-1) + s[1]*31^(n-2) + ... + s[n-1]` in Java's `int`, unit by unit."""
    raw = text.encode("utf-16-be", "surrogatepass")
    h = 0
    for position in range(0, len(raw), 2):
        h = h * 31 + int.from_bytes(raw[position : position + 2], "big") & 0xFFFFFFFF
    return h - (1 << 32) if h >= 1 << 31 else h


# Lone surrogates too: Java's strings may hold them.
@given(st.text(st.characters(exclude_categories=())))
def test_string_hash_is_what_java_defines(text: str) -> None:
    assert java_string_hash(text) == defined_string_hash(text)


@given(st.text(st.sampled_from("\0a\uffffß😀\ud800"), min_size=1, max_size=40), st.integers(4080, 12_300))
@settings(max_examples=30)
def test_the_hash_of_a_long_string_is_what_java_defines(text: str, size: int) -> None:
    long = (text * size)[:size]
    assert java_string_hash(long) == defined_string_hash(long)


def test_a_long_name_takes_few_steps_of_the_interpreter() -> None:
    """Clients choose names of up to 32 KB, and as many as fit into a request."""
    with Counter() as counter:
        java_string_hash("x" * 32_000)
    assert counter.counts["bytecodes"] < 10_000


@given(st.text(max_size=600), st.integers(1, 100))
def test_the_partition_is_the_hash_without_its_sign(key: str, partitions: int) -> None:
    assert coordinator_partition(key, partitions) == abs(java_string_hash(key)) % partitions


def test_the_hash_that_has_no_opposite_belongs_to_the_first_partition() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0
