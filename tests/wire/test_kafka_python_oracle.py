"""kafka-python carries codecs of its own, made from Kafka's JSON schemas: they must agree with ours byte by byte.

Our bytes are decoded by kafka-python, compared field by field, and encoded again by kafka-python.
"""

import importlib
import warnings
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from penstock.wire.generated.api_versions import ApiVersionsResponse
from penstock.wire.generated.describe_cluster import DescribeClusterResponse
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.struct import Message, Struct
from tests.wire.messages import CASES_BY_NAME, messages
from tests.wire.test_round_trip import quick

_PACKAGES = ("admin", "consumer", "metadata", "producer", "sasl")


def _oracles() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reads its schemas in a deprecated way
        for package in _PACKAGES:
            module = importlib.import_module(f"kafka.protocol.{package}")
            classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
            found |= {name: value for name, value in classes.items() if name.endswith(("Request", "Response"))}
    return {name: oracle for name, oracle in sorted(found.items()) if name in CASES_BY_NAME}


ORACLES = _oracles()


def test_the_oracle_knows_most_of_what_clients_send() -> None:
    assert len(ORACLES) >= 90


@pytest.mark.parametrize("name", ORACLES)
def test_bytes_are_those_of_kafka_python(name: str) -> None:
    last = min(CASES_BY_NAME[name].spec.versions.last, ORACLES[name].max_version)
    for version in range(CASES_BY_NAME[name].spec.versions.first, last + 1):
        _check_against_oracle(name, version)


def _check_against_oracle(name: str, version: int) -> None:
    oracle = ORACLES[name]

    @quick
    @given(message=messages(name, version))
    def check(message: Message) -> None:
        if isinstance(message, ApiVersionsResponse):
            message.error_code = 0  # with an error, kafka-python falls back to version 0, as a client must
        if isinstance(message, FetchRequest):
            for partition in (each for topic in message.topics for each in topic.partitions):
                partition.lacks_room = False  # a tag of our own: kafka-python skips it, and cannot write it again
        if isinstance(message, DescribeClusterResponse):
            message.unclean_elections = 0  # likewise
        out = bytearray()
        message.encode(version, out)
        theirs = oracle.decode(bytes(out), version=version)
        _assert_same(message, theirs, name)
        theirs._header = None  # decoding leaves it unset, encoding reads it
        assert theirs.encode(version=version) == bytes(out)

    check()


def _assert_same(ours: object, theirs: Any, where: str) -> None:
    if where.endswith("authorized_operations"):
        return  # authorized operations: a bit field here, a set of names there; their bytes are compared
    if isinstance(theirs, UUID):
        assert ours == theirs.bytes, where
    elif isinstance(ours, Struct):
        if theirs is None:  # a tagged struct that was not sent
            assert ours == type(ours)(), where
            return
        for name in ours.__slots__:
            if name in theirs._struct.fields:
                _assert_same(getattr(ours, name), getattr(theirs, name), f"{where}.{name}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            _assert_same(our, their, f"{where}[{number}]")
    elif not (theirs is None and where.endswith("_id")):  # an absent id is the zero UUID here, None there
        assert ours == theirs, where
