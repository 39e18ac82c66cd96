"""The checksum is CRC-32C, and comes without what a broker does not need."""

import subprocess
import sys

import crc32c as package
from hypothesis import given
from hypothesis import strategies as st

from penstock.records.checksum import crc32c


def test_the_published_check_value():
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_equals_the_package_and_goes_on_where_it_stopped(first: bytes, second: bytes):
    assert crc32c(memoryview(first)) == package.crc32c(first)
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


def test_a_broker_starts_without_reading_metadata_of_packages():
    code = "import sys, penstock.node.run; print('importlib.metadata' in sys.modules, 'crc32c' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
