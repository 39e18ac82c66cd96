"""DeleteGroups: groups without members go with their offsets, a few thousand records at a time.

A group goes in one step unless it has more offsets than a step has room for. Then its own records go first: whoever
joins from then on joins a new group, and what is committed from then on stays.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from penstock.groups.committer import Group
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.decision import GroupRecord, Turn
from penstock.groups.group_records import group_tombstone, offset_tombstone
from penstock.groups.offset_store import CommittedOffset, GroupOffsets, OffsetStore
from penstock.groups.transactional_offsets import OffsetKey, TransactionalOffsets
from penstock.model.errors import ErrorCode
from penstock.wire.generated.delete_groups import DeleteGroupsResponse

_STEP = 2_000  # records

DeletedGroup = DeleteGroupsResponse.DeletableGroupResult


class _Remaining(NamedTuple):
    """An offset as it was when the group's own records went."""

    key: OffsetKey
    committed: CommittedOffset


class GroupDeletion:
    """Groups of one shard that are to be deleted, and how far that has come."""

    __slots__ = ("_group_ids", "_remaining", "_remaining_count")

    def __init__(self, group_ids: Iterable[str]) -> None:
        """The ids are distinct."""
        self._group_ids = deque(group_ids)
        self._remaining: Iterator[_Remaining] = iter(())  # of the first group
        self._remaining_count = 0

    @property
    def is_done(self) -> bool:
        return not self._group_ids

    def step(self, turn: Turn, offsets: OffsetStore, pending: TransactionalOffsets) -> list[DeletedGroup]:
        """One result per group that is done with this step. If it is refused, the deletion is not to go on."""
        results = []
        room = _STEP
        while self._group_ids and room > 0:
            group_id = self._group_ids[0]
            group = turn.groups.get(group_id)
            error = ErrorCode.NONE
            if self._remaining_count:
                records = self._next_of_remaining(offsets, pending, room)
            elif group is None:
                error, records = ErrorCode.GROUP_ID_NOT_FOUND, []
            elif not group.is_empty:
                error, records = ErrorCode.NON_EMPTY_GROUP, []
            elif room < _STEP and _size(offsets, pending, group_id) >= room:
                break  # the next step has more room
            else:
                records = self._first_of(group, offsets, pending, room)
            turn.records += records
            room -= 1 + len(records)
            if self._remaining_count:
                break  # as many were looked at as there was room for
            results.append(DeletedGroup(self._group_ids.popleft(), error))
        return results

    def _first_of(
        self, group: Group, offsets: OffsetStore, pending: TransactionalOffsets, room: int
    ) -> list[GroupRecord]:
        """All of the group, or what there is room for."""
        group_id = group.group_id
        as_it_was = {topic: partitions.copy() for topic, partitions in offsets.of_group(group_id).items()}
        self._remaining = _one_by_one(group_id, as_it_was)
        self._remaining_count = sum(map(len, as_it_was.values()))
        first = dict.fromkeys(each.key for each in self._take(room))
        # Also of those that only an open transaction has committed: they must not come back with its marker.
        in_transactions = dict.fromkeys(
            OffsetKey(group_id, topic, partition)
            for topic, partitions in pending.of_group(group_id).items()
            for partition in partitions
        )
        records = [offset_tombstone(*key) for key in first | in_transactions]
        own = group.tombstones() if isinstance(group, ConsumerGroup) else [group_tombstone(group_id)]
        return records + own

    def _next_of_remaining(self, offsets: OffsetStore, pending: TransactionalOffsets, room: int) -> list[GroupRecord]:
        """Except for what was committed since, or is about to be: a tombstone would undo that."""
        return [
            offset_tombstone(*key)
            for key, committed in self._take(room)
            if offsets.get(*key) is committed and not pending.is_pending(*key)
        ]

    def _take(self, room: int) -> list[_Remaining]:
        taken = list(islice(self._remaining, room))
        self._remaining_count -= len(taken)
        return taken


def _one_by_one(group_id: str, offsets: GroupOffsets) -> Iterator[_Remaining]:
    """All of a large group's would take long to make at once."""
    for topic, partitions in offsets.items():
        for partition, committed in partitions.items():
            yield _Remaining(OffsetKey(group_id, topic, partition), committed)


def _size(offsets: OffsetStore, pending: TransactionalOffsets, group_id: str) -> int:
    of_both = (*offsets.of_group(group_id).values(), *pending.of_group(group_id).values())
    return sum(map(len, of_both))
