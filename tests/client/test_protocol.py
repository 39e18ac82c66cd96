"""The embedded consumer protocol, against bytes as Java and kafka-python write and read them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consumer.protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from penstock.model.ids import TopicPartition
from penstock.wire.errors import WireError

topics = st.frozensets(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=6), max_size=4
)
partitions = st.frozensets(
    st.builds(TopicPartition, st.sampled_from(["a", "b", "cc"]), st.integers(0, 99)), max_size=9
)


@settings(max_examples=60, deadline=None)
@given(topics=topics, owned=partitions, generation=st.integers(-1, 2**31 - 1), rack=st.none() | st.just("r1"))
def test_subscriptions_survive(
    topics: frozenset[str], owned: frozenset[TopicPartition], generation: int, rack: str | None
) -> None:
    data = encode_subscription(topics, owned, generation, rack=rack, user_data=b"x")
    member = decode_subscription("m", data, "i1")
    assert member.topics == topics
    assert set(member.owned) == owned
    assert (member.generation, member.rack, member.instance_id) == (generation, rack, "i1")


@settings(max_examples=60, deadline=None)
@given(assigned=partitions)
def test_assignments_survive(assigned: frozenset[TopicPartition]) -> None:
    assert set(decode_assignment(encode_assignment(assigned))) == assigned


def test_the_bytes_are_javas() -> None:
    """Version 3: topics, user data, owned partitions, generation, rack."""
    data = encode_subscription(["t"], [TopicPartition("t", 1)], 5)
    assert data.hex() == (
        "0003"  # version
        "00000001000174"  # one topic: "t"
        "ffffffff"  # no user data
        "000000010001740000000100000001"  # owned: t [1]
        "00000005"  # generation
        "ffff"  # no rack
    )  # fmt: skip
    assert encode_assignment([TopicPartition("t", 0), TopicPartition("t", 2)]).hex() == (
        "000000000001000174000000020000000000000002ffffffff"
    )  # fmt: skip


def test_old_and_future_versions_are_read() -> None:
    version_0 = bytes.fromhex("000000000001000174ffffffff")  # fmt: skip
    assert decode_subscription("m", version_0).topics == {"t"}
    assert decode_subscription("m", version_0).generation == -1
    future = bytes.fromhex("0009") + encode_subscription(["t"], (), 7)[2:] + b"more to come"
    assert decode_subscription("m", future).generation == 7


def test_no_assignment_is_an_empty_one() -> None:
    assert decode_assignment(b"") == []


def test_rubbish_is_refused() -> None:
    for data in (b"\0", b"\xff\xff\0\0\0\0", b"\0\0\0\0\0\5abc"):
        with pytest.raises(WireError):
            decode_subscription("m", data)
