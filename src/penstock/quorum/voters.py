"""Who may vote: voter sets, what a majority of one is, and which set holds at which place of the log.

A voter is a node and its directory (KIP-853). The first voters come from the configuration, which knows no directory
ids: such a voter is *unpinned* (`ZERO_UUID`) and any directory of its node speaks for it, until the first leader has
written a VotersRecord with the ids it learned.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.model.ids import ZERO_UUID
from penstock.quorum.election_state import ReplicaKey


class Endpoint(NamedTuple):
    name: str
    host: str
    port: int


class Voter(NamedTuple):
    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()

    def is_spoken_for_by(self, key: ReplicaKey) -> bool:
        return self.key == key or (self.key.id == key.id and self.key.directory_id == ZERO_UUID)


class VoterSet:
    """The voters of the metadata log. Immutable; empty only on an observer that knows none yet."""

    __slots__ = ("by_id",)

    def __init__(self, voters: Iterable[Voter | ReplicaKey]) -> None:
        listed = [voter if isinstance(voter, Voter) else Voter(voter) for voter in voters]
        self.by_id = {voter.key.id: voter for voter in sorted(listed)}
        if len(self.by_id) != len(listed):
            raise ValueError("a voter set has each id once")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and other.by_id == self.by_id

    def __hash__(self) -> int:
        return hash(tuple(self.by_id))

    def __repr__(self) -> str:
        return f"VoterSet({list(self.by_id.values())!r})"

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, key: ReplicaKey) -> bool:
        voter = self.by_id.get(key.id)
        return voter is not None and voter.is_spoken_for_by(key)

    @property
    def ids(self) -> Iterable[int]:
        return self.by_id.keys()

    @property
    def keys(self) -> frozenset[ReplicaKey]:
        return frozenset(voter.key for voter in self.by_id.values())

    @property
    def is_pinned(self) -> bool:
        """Whether every voter's directory is known."""
        return all(key.directory_id != ZERO_UUID for key in self.keys)

    @property
    def majority(self) -> int:
        return len(self.by_id) // 2 + 1

    def is_majority(self, keys: Iterable[ReplicaKey]) -> bool:
        """Whether these replicas, each counted once and strangers not at all, decide an election."""
        return len({key.id for key in keys if key in self}) >= self.majority

    def majority_end_offset(self, end_offsets: Mapping[ReplicaKey, int]) -> int:
        """The largest offset below which a majority holds everything on stable storage."""
        return int(self.majority_value(end_offsets, 0))

    def majority_value(self, values: Mapping[ReplicaKey, float], default: float) -> float:
        """The largest value that a majority has reached; `default` stands for voters that are not in `values`."""
        reached = dict.fromkeys(self.by_id, default)
        for key, value in values.items():
            if key in self:
                reached[key.id] = max(value, reached[key.id])
        return sorted(reached.values(), reverse=True)[self.majority - 1]

    def with_voter(self, voter: Voter) -> "VoterSet":
        """Adds the voter, or replaces the one with its id."""
        return VoterSet({**self.by_id, voter.key.id: voter}.values())

    def without(self, key: ReplicaKey) -> "VoterSet":
        return VoterSet(voter for voter in self.by_id.values() if voter.key != key)

    def differs_by_one(self, other: "VoterSet") -> bool:
        """Whether at most one voter was added, removed or renewed: only then do old and new majorities overlap."""
        return len(set(self.by_id) ^ set(other.by_id)) <= 1


class VoterHistory:
    """Which set holds at which offset of the log: the last VotersRecord, committed or not (R12)."""

    __slots__ = ("_base", "_base_is_written", "_entries")

    def __init__(
        self, base: VoterSet, entries: Iterable[tuple[int, VoterSet]] = (), *, base_is_written: bool = False
    ) -> None:
        self._base = base
        self._base_is_written = base_is_written
        self._entries = list(entries)

    @property
    def current(self) -> VoterSet:
        return self._entries[-1][1] if self._entries else self._base

    @property
    def last_offset(self) -> int:
        """Where the current set was written; −1 when it comes from the configuration or a snapshot."""
        return self._entries[-1][0] if self._entries else -1

    @property
    def is_written(self) -> bool:
        """Whether the voters are those of a record, in the log or a snapshot, and not of the configuration."""
        return self._base_is_written or bool(self._entries)

    @property
    def is_first(self) -> bool:
        """Whether the current set is the first that was ever written."""
        return not self._base_is_written and len(self._entries) == 1

    def at(self, end_offset: int) -> VoterSet:
        """The set that holds for a log that ends at `end_offset`."""
        return next((voters for offset, voters in reversed(self._entries) if offset < end_offset), self._base)

    def append(self, offset: int, voters: VoterSet) -> None:
        if offset <= self.last_offset:
            raise AssertionError(f"voters written at {offset} after {self.last_offset}")
        self._entries.append((offset, voters))

    def truncate_to(self, end_offset: int) -> None:
        """What was written at or behind `end_offset` was never so."""
        self._entries = [entry for entry in self._entries if entry[0] < end_offset]

    def restart(self, voters: VoterSet | None) -> None:
        """The log was replaced by a snapshot that names these voters, or none."""
        self._base, self._base_is_written = (voters, True) if voters is not None else (self._base, False)
        self._entries = []
