"""Hashes against vectors published with Kafka's Java client and the Java language itself."""

import pytest

from penstock.model.hashing import java_string_hash, murmur2

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
