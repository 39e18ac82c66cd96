"""Who may commit and fetch offsets of a group, asked by OffsetCommit, OffsetFetch and TxnOffsetCommit.

A commit with a generation or member epoch needs a member that is in it. One without (−1) is accepted while the group
is empty, which covers administrators and consumers that only store offsets here; in a transaction also otherwise.
A member of a consumer group may be an epoch behind and still commit for partitions that it has had since then.
"""

from collections.abc import Callable
from typing import NamedTuple

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember
from penstock.groups.group_words import GroupState
from penstock.model.errors import ErrorCode

_GROUP_ID_NOT_FOUND_FROM = 9
_MEMBER_EPOCH_FROM = 9

Group = ClassicGroup | ConsumerGroup
# Whether a partition (topic id and number) may be committed.
PartitionCheck = Callable[[bytes, int], ErrorCode]


class Committer(NamedTuple):
    member_id: str
    group_instance_id: str | None
    epoch: int  # generation or member epoch; −1: none
    api_version: int  # of OffsetCommit; of no meaning in a transaction
    is_transactional: bool = False

    @property
    def is_nobody(self) -> bool:
        return self.epoch < 0 and not self.member_id and self.group_instance_id is None


def check_committer(group: Group | None, committer: Committer) -> ErrorCode | PartitionCheck:
    """An error for the whole commit, or a check for each of its partitions.

    For TxnOffsetCommit below version 6, STALE_MEMBER_EPOCH and GROUP_ID_NOT_FOUND are ILLEGAL_GENERATION (KIP-1319).
    """
    if group is None:
        return _check_no_group(committer)
    if committer.epoch < 0 and group.is_empty:
        return _any_partition
    if committer.is_nobody:
        # Somebody without a part in the group wants to move the members' positions.
        return _any_partition if committer.is_transactional else ErrorCode.UNKNOWN_MEMBER_ID
    if isinstance(group, ClassicGroup):
        return _check_classic(group, committer) or _any_partition
    member = group.members.get(committer.member_id)
    return ErrorCode.UNKNOWN_MEMBER_ID if member is None else _check_member(member, committer)


def check_reader(group: Group | None, member_id: str | None, member_epoch: int) -> ErrorCode:
    """For OffsetFetch, from version 9 on: who names himself must be up to date."""
    if not isinstance(group, ConsumerGroup) or (member_id is None and member_epoch < 0):
        return ErrorCode.NONE
    member = group.members.get(member_id or "")
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member_epoch == member.epoch else _out_of_date(member)


def _any_partition(topic_id: bytes, partition: int) -> ErrorCode:
    return ErrorCode.NONE


def _check_no_group(committer: Committer) -> ErrorCode | PartitionCheck:
    if committer.epoch < 0:
        return _any_partition
    if committer.is_transactional or committer.api_version >= _GROUP_ID_NOT_FOUND_FROM:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def _check_classic(group: ClassicGroup, committer: Committer) -> ErrorCode:
    error = group.check_member(committer.member_id, committer.group_instance_id)
    if error:
        return error
    if committer.epoch != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not committer.is_transactional:
        # It knows the new generation but cannot know its assignment yet.
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_member(member: ConsumerMember, committer: Committer) -> ErrorCode | PartitionCheck:
    knows_epochs = committer.is_transactional or committer.api_version >= _MEMBER_EPOCH_FROM
    if not knows_epochs and not member.uses_classic_protocol:
        return ErrorCode.UNSUPPORTED_VERSION
    if committer.epoch == member.epoch:
        return _any_partition
    if committer.epoch > member.epoch:
        return _out_of_date(member)

    def check_partition(topic_id: bytes, partition: int) -> ErrorCode:
        """It has had the partition since it was in that epoch, so nobody else can have moved the position."""
        since = member.assigned.get(topic_id, {}).get(partition)
        if since is None:
            since = member.revoking.get(topic_id, {}).get(partition)
        return _out_of_date(member) if since is None or committer.epoch < since else ErrorCode.NONE

    return check_partition


def _out_of_date(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if member.uses_classic_protocol else ErrorCode.STALE_MEMBER_EPOCH
