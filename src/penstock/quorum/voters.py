"""Quorum arithmetic: who may vote, what a majority is, how far a majority has come."""

from collections.abc import Iterable, Mapping

from penstock.quorum.election_state import ReplicaKey


class VoterSet:
    """The voters of the metadata log. Immutable."""

    __slots__ = ("keys",)

    def __init__(self, keys: Iterable[ReplicaKey]) -> None:
        self.keys = frozenset(keys)
        if len({key.id for key in self.keys}) != len(self.keys) or not self.keys:
            raise ValueError("a voter set needs at least one voter, each id once")

    @property
    def majority(self) -> int:
        return len(self.keys) // 2 + 1

    def __contains__(self, key: ReplicaKey) -> bool:
        return key in self.keys

    def is_majority(self, keys: Iterable[ReplicaKey]) -> bool:
        """Whether these voters, each counted once and strangers not at all, decide an election."""
        return len(self.keys.intersection(keys)) >= self.majority

    def majority_end_offset(self, end_offsets: Mapping[ReplicaKey, int]) -> int:
        """The largest offset below which a majority holds everything on stable storage."""
        reached = sorted((end_offsets.get(key, 0) for key in self.keys), reverse=True)
        return reached[self.majority - 1]
