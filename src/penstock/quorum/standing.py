"""What a node that is to vote should ask for, by what it knows of the voters: pure.

A voter whose addresses have changed says so. One whose disk was replaced is another voter than the one on record, so
the old one is removed first and the new one added when it has caught up (KIP-853, as KIP-1186 does it): both at once
would let two majorities pass each other.

Hard rule: nothing is asked for before a VotersRecord is known; until then the first leader writes down who votes.
"""

from enum import Enum, auto

from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Endpoint, VoterSet


class Wish(Enum):
    NOTHING = auto()
    UPDATE = auto()  # our addresses
    REMOVE = auto()  # the voter that had our id and another directory
    ADD = auto()  # ourselves


def decide_wish(
    local: ReplicaKey, endpoints: tuple[Endpoint, ...], voters: VoterSet, *, is_written: bool, joins: bool
) -> Wish:
    """`joins`: whether this node may make itself a voter."""
    if not is_written or not voters.is_pinned or not endpoints:
        return Wish.NOTHING
    known = voters.by_id.get(local.id)
    if known is not None and known.key == local:
        return Wish.NOTHING if known.endpoints == endpoints else Wish.UPDATE
    if not joins:
        return Wish.NOTHING
    return Wish.ADD if known is None else Wish.REMOVE
