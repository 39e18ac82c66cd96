"""The quorum-state file: Kafka's JSON, and no guessing when it is damaged."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import format_uuid
from penstock.quorum.election_state import (
    CorruptElectionState,
    ElectionState,
    ReplicaKey,
    decode_election_state,
    encode_election_state,
)

KEYS = st.builds(ReplicaKey, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16))
STATES = st.builds(ElectionState, st.integers(0, 2**31 - 1), st.integers(-1, 2**31 - 1), st.none() | KEYS)


@given(STATES)
def test_round_trip(state: ElectionState) -> None:
    assert decode_election_state(encode_election_state(state)) == state


def test_it_is_kafkas_file() -> None:
    content = encode_election_state(ElectionState(epoch=7, voted=ReplicaKey(1, b"d" * 16)))
    assert json.loads(content) == {
        "leaderId": -1,
        "leaderEpoch": 7,
        "votedId": 1,
        "votedDirectoryId": format_uuid(b"d" * 16),
        "data_version": 1,
    }


def test_version_0_of_kafka_is_read() -> None:
    old = {"clusterId": "", "leaderId": 1, "leaderEpoch": 3, "votedId": -1, "appliedOffset": 0, "currentVoters": []}
    state = decode_election_state(json.dumps({**old, "data_version": 0}).encode())
    assert state == ElectionState(epoch=3, leader_id=1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"leaderId":"x","leaderEpoch":1,"votedId":1,"data_version":1}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"?","data_version":1}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":2}',
    ],
)
def test_what_cannot_be_read_stops_the_node(content: bytes) -> None:
    with pytest.raises(CorruptElectionState, match="quorum-state"):
        decode_election_state(content)
