"""A consumer group as its records tell it: members, target assignment, resolved regular expressions, who owns what.

Changed by `replay` only, and any order of records that a compacted log can have leads to the same group. What is
behind "can be lost" in `__init__` is kept here for those who decide.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.groups.assignors.spec import NOTHING, Assignment
from penstock.groups.consumer.member import EMPTY_HANDED, LEAVING_EPOCH, ConsumerMember, Holdings, MemberTimers
from penstock.groups.consumer.records import group_tombstones
from penstock.groups.consumer.subscription import ResolvedRegex, subscribed_topics
from penstock.groups.decision import GroupRecord
from penstock.groups.group_words import CONSUMER_PROTOCOL_TYPE, GroupState, GroupType
from penstock.wire.generated.records_consumer_group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from penstock.wire.struct import RecordMessage

if TYPE_CHECKING:
    from penstock.groups.consumer.regexes import RegexJob
    from penstock.groups.consumer.target import AssignmentJob, Parked

# Members begin at the target's epoch, and 0 means joining.
INITIAL_EPOCH = 1
# Subscriptions are kept by value while members come and go; then swept.
_SHARED_SLACK = 16


class ConsumerGroup:
    __slots__ = (
        "_shared_topics",
        "_subscribed_topics",
        "assignment_job",
        "epoch",
        "group_id",
        "has_partition_metadata",
        "lookups",
        "members",
        "metadata_hash",
        "metadata_is_stale",
        "owners",
        "parked",
        "refresh_job",
        "regexes",
        "regexes_are_stale",
        "regexes_checked_ms",
        "static_members",
        "target_epoch",
        "target_timestamp_ms",
        "targets",
        "timers",
    )
    type = GroupType.CONSUMER
    protocol_type = CONSUMER_PROTOCOL_TYPE
    uses_consumer_protocol = True

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = INITIAL_EPOCH
        self.metadata_hash = 0
        self.target_epoch = INITIAL_EPOCH
        self.target_timestamp_ms = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}  # instance id → member id
        self.targets: dict[str, Assignment] = {}  # by member id; no empty ones
        self.owners: dict[bytes, dict[int, str]] = {}  # topic id → partition → member that has or revokes it
        self.regexes: dict[str, ResolvedRegex] = {}
        self.has_partition_metadata = False  # a record of old that is to be removed
        self._shared_topics: dict[frozenset[str], frozenset[str]] = {}  # members mostly subscribe to the same
        self._subscribed_topics: frozenset[str] | None = None
        # The rest can be lost.
        self.metadata_is_stale = True  # topics that it may subscribe to have changed since the hash was looked at
        self.timers: dict[str, MemberTimers] = {}
        self.assignment_job: AssignmentJob | None = None
        self.parked: dict[str, Parked] = {}  # by member id: whose last request waits for a target
        self.lookups: dict[str, RegexJob] = {}  # by member id: whose last heartbeat waits for its expression
        self.refresh_job: RegexJob | None = None
        self.regexes_are_stale = True  # topics were created since the expressions were looked at
        self.regexes_checked_ms = -(1 << 62)  # on the steady clock

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def state_timestamp_ms(self) -> int:
        """When an empty group became empty; 0 if that is not known. (Kafka does not write it down.)"""
        return self.target_timestamp_ms

    @property
    def subscribed_topics(self) -> frozenset[str]:
        if self._subscribed_topics is None:
            self._subscribed_topics = subscribed_topics(self.members.values(), self.regexes)
        return self._subscribed_topics

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.subscribed_topics

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        return self.members.get(self.static_members.get(instance_id, ""))

    def target_of(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def owner_of(self, topic_id: bytes, partition: int) -> str | None:
        return self.owners.get(topic_id, {}).get(partition)

    def timers_of(self, member_id: str) -> MemberTimers:
        timers = self.timers.get(member_id)
        if timers is None:
            timers = self.timers[member_id] = MemberTimers(self.group_id, member_id)
        return timers

    def tombstones(self) -> list[GroupRecord]:
        return group_tombstones(self.group_id, list(self.members), list(self.regexes))

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, key: RecordMessage, value: RecordMessage | None) -> None:
        """Anything but the tombstone of the group itself, with which it is gone."""
        _REPLAYS[type(key)](self, key, value)

    def _replay_epoch(self, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue) -> None:
        self.epoch = value.epoch
        self.metadata_hash = value.metadata_hash

    def _replay_partition_metadata(
        self, key: ConsumerGroupPartitionMetadataKey, value: ConsumerGroupPartitionMetadataValue | None
    ) -> None:
        self.has_partition_metadata = value is not None

    def _replay_target_epoch(
        self,
        key: ConsumerGroupTargetAssignmentMetadataKey,
        value: ConsumerGroupTargetAssignmentMetadataValue | None,
    ) -> None:
        self.target_epoch = INITIAL_EPOCH if value is None else value.assignment_epoch
        self.target_timestamp_ms = 0 if value is None else value.assignment_timestamp

    def _replay_target(
        self, key: ConsumerGroupTargetAssignmentMemberKey, value: ConsumerGroupTargetAssignmentMemberValue | None
    ) -> None:
        topics = [] if value is None else value.topic_partitions
        if topics:
            self.targets[key.member_id] = {topic.topic_id: frozenset(topic.partitions) for topic in topics}
        else:
            self.targets.pop(key.member_id, None)

    def _replay_member(
        self, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
    ) -> None:
        self._subscribed_topics = None
        old = self.members.get(key.member_id)
        if value is not None:
            new = (old or ConsumerMember(key.member_id)).with_metadata(value)
            self._put(old, new._replace(topics=self._shared_topics.setdefault(new.topics, new.topics)))
        elif old is not None:
            self._remove(old)

    def _replay_assignment(
        self, key: ConsumerGroupCurrentMemberAssignmentKey, value: ConsumerGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(key.member_id)
        if value is not None:
            self._put(old, (old or ConsumerMember(key.member_id)).with_assignment(value))
        elif old is not None:
            gone = old._replace(epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH)
            self._put(old, gone._replace(assigned=EMPTY_HANDED, revoking=EMPTY_HANDED))

    def _replay_regex(
        self, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
    ) -> None:
        self._subscribed_topics = None
        if value is None:
            self.regexes.pop(key.regular_expression, None)
        else:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.regexes[key.regular_expression] = resolved

    # -- inside -------------------------------------------------------------------------------------------------

    def _put(self, old: ConsumerMember | None, new: ConsumerMember) -> None:
        self.members[new.member_id] = new
        if old is not None:
            self._forget_instance(old)
        if new.instance_id is not None:
            self.static_members[new.instance_id] = new.member_id
        if old is None or new.assigned is not old.assigned or new.revoking is not old.revoking:
            if old is not None:
                self._release(old)
            self._claim(new.member_id, new.assigned)
            self._claim(new.member_id, new.revoking)

    def _remove(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self.targets.pop(member.member_id, None)
        self._forget_instance(member)
        self._release(member)
        if len(self._shared_topics) > 2 * len(self.members) + _SHARED_SLACK:
            self._shared_topics = {each.topics: each.topics for each in self.members.values()}

    def _forget_instance(self, member: ConsumerMember) -> None:
        """Unless another has taken its place."""
        if member.instance_id is not None and self.static_members.get(member.instance_id) == member.member_id:
            del self.static_members[member.instance_id]

    def _claim(self, member_id: str, held: Holdings) -> None:
        for topic_id, partitions in held.items():
            self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def _release(self, member: ConsumerMember) -> None:
        """Only what it still owns: after a compaction another's claim may come before its own release."""
        for held in (member.assigned, member.revoking):
            for topic_id, partitions in held.items():
                owners = self.owners.get(topic_id, {})
                for partition in partitions:
                    if owners.get(partition) == member.member_id:
                        del owners[partition]
                if not owners:
                    self.owners.pop(topic_id, None)


_REPLAYS: dict[type[RecordMessage], Callable[[ConsumerGroup, Any, Any], None]] = {
    ConsumerGroupMetadataKey: ConsumerGroup._replay_epoch,
    ConsumerGroupPartitionMetadataKey: ConsumerGroup._replay_partition_metadata,
    ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._replay_target_epoch,
    ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._replay_target,
    ConsumerGroupMemberMetadataKey: ConsumerGroup._replay_member,
    ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._replay_assignment,
    ConsumerGroupRegularExpressionKey: ConsumerGroup._replay_regex,
}
CONSUMER_GROUP_KEYS = tuple(_REPLAYS)
