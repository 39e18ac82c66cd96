"""What an assignor is given and what it returns."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

# Topic id → partitions. No empty sets in it; shared between members and specs, so never changed in place.
Assignment = Mapping[bytes, frozenset[int]]
NOTHING: Assignment = MappingProxyType({})


class MemberSpec(NamedTuple):
    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]  # those it subscribes to and that exist
    target: Assignment  # what it had in the last target


class GroupSpec(NamedTuple):
    members: list[MemberSpec]
    partition_counts: Mapping[bytes, int]  # of every topic that any member subscribes to

    @property
    def has_one_subscription(self) -> bool:
        """Whether all members subscribe to the same topics, as they do in most groups."""
        first = self.members[0].topics
        return all(member.topics is first or member.topics == first for member in self.members)


# A target for every member of the spec. A target that stays the same is the same object.
Assignor = Callable[[GroupSpec], dict[str, Assignment]]
