"""What a voter must never forget: the epoch it has seen and whom it voted for in it.

Kept as Kafka's `quorum-state` file, one JSON object. Hard rules: the epoch never goes back (R2), and a vote is on
stable storage before it counts or leaves the node (R3).
"""

from typing import Any, NamedTuple

import msgspec

from penstock.model.ids import ZERO_UUID, format_uuid, parse_uuid

FILE_NAME = "quorum-state"
NOBODY = -1
_DATA_VERSION = 1


class ReplicaKey(NamedTuple):
    """A voter is a node *and* its directory: a wiped disk is another voter. (KIP-853)"""

    id: int
    directory_id: bytes


class ElectionState(NamedTuple):
    epoch: int = 0
    leader_id: int = NOBODY
    voted: ReplicaKey | None = None


class CorruptElectionState(Exception):
    """The quorum-state file cannot be read. Without it this voter could vote twice, so the node must not start."""


def encode_election_state(state: ElectionState) -> bytes:
    voted = state.voted or ReplicaKey(NOBODY, ZERO_UUID)
    return msgspec.json.encode(
        {
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "votedDirectoryId": format_uuid(voted.directory_id),
            "data_version": _DATA_VERSION,
        }
    )


def decode_election_state(content: bytes) -> ElectionState:
    try:
        fields: dict[str, Any] = msgspec.json.decode(content)
        version = int(fields["data_version"])
        leader_id, epoch, voted_id = (int(fields[name]) for name in ("leaderId", "leaderEpoch", "votedId"))
        directory_id = parse_uuid(str(fields.get("votedDirectoryId", format_uuid(ZERO_UUID))))
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptElectionState(f"{FILE_NAME} is damaged ({error}); restore it from a backup") from None
    if not 0 <= version <= _DATA_VERSION:
        raise CorruptElectionState(
            f"{FILE_NAME} has data_version {version}; this release reads up to {_DATA_VERSION}"
        )
    voted = None if voted_id == NOBODY else ReplicaKey(voted_id, directory_id)
    return ElectionState(epoch, leader_id, voted)
