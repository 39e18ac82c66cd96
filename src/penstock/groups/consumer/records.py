"""The records of consumer groups, in Kafka's own formats.

A member is three records: what it says about itself, its target and what it holds. It goes by three tombstones, the
record about itself last.
"""

from penstock.groups.assignors.spec import Assignment
from penstock.groups.consumer.member import ConsumerMember, Holdings, RecordedPartitions
from penstock.groups.decision import GroupRecord
from penstock.wire.generated.records_consumer_group import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

TargetPartitions = ConsumerGroupTargetAssignmentMemberValue.TopicPartition


def member_record(group_id: str, member: ConsumerMember) -> GroupRecord:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=member.classic,
    )
    return GroupRecord(ConsumerGroupMemberMetadataKey(group_id, member.member_id), value)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> GroupRecord:
    return GroupRecord(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(epoch, metadata_hash))


def target_record(group_id: str, member_id: str, target: Assignment) -> GroupRecord:
    partitions = [TargetPartitions(topic, sorted(target[topic])) for topic in sorted(target)]
    value = ConsumerGroupTargetAssignmentMemberValue(partitions)
    return GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), value)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> GroupRecord:
    value = ConsumerGroupTargetAssignmentMetadataValue(epoch, timestamp_ms)
    return GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id), value)


def current_record(group_id: str, member: ConsumerMember) -> GroupRecord:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_recorded(member.assigned),
        partitions_pending_revocation=_recorded(member.revoking),
    )
    return GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member.member_id), value)


def regex_record(group_id: str, regex: str, topics: frozenset[str], version: int, timestamp_ms: int) -> GroupRecord:
    value = ConsumerGroupRegularExpressionValue(sorted(topics), version, timestamp_ms)
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id, regex), value)


def regex_tombstone(group_id: str, regex: str) -> GroupRecord:
    return GroupRecord(ConsumerGroupRegularExpressionKey(group_id, regex), None)


def partition_metadata_tombstone(group_id: str) -> GroupRecord:
    """Releases before 4.1 kept topic metadata in the log; a hash of it took its place."""
    return GroupRecord(ConsumerGroupPartitionMetadataKey(group_id), None)


def member_tombstones(group_id: str, member_id: str) -> list[GroupRecord]:
    return [
        GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        GroupRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def group_tombstones(group_id: str, member_ids: list[str], regexes: list[str]) -> list[GroupRecord]:
    records = [
        GroupRecord(ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None) for member_id in member_ids
    ]
    records += [
        GroupRecord(ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None) for member_id in member_ids
    ]
    records.append(GroupRecord(ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
    records += [GroupRecord(ConsumerGroupMemberMetadataKey(group_id, member_id), None) for member_id in member_ids]
    records += [regex_tombstone(group_id, regex) for regex in regexes]
    records.append(partition_metadata_tombstone(group_id))
    records.append(GroupRecord(ConsumerGroupMetadataKey(group_id), None))
    return records


def _recorded(held: Holdings) -> list[RecordedPartitions]:
    recorded = []
    for topic in sorted(held):
        epochs = held[topic]
        partitions = sorted(epochs)
        recorded.append(RecordedPartitions(topic, partitions, [epochs[partition] for partition in partitions]))
    return recorded
