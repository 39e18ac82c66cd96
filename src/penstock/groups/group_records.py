"""The records of `__consumer_offsets`, in Kafka's own formats and versions, so that its tools can read them."""

from collections.abc import Mapping

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.decision import GroupRecord
from penstock.model.ids import ZERO_UUID
from penstock.wire.generated.records_group import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

GROUP_METADATA_VERSION = 3
# 1 is the only version with an expiry of its own, 4 the only one with a topic id.
_OFFSET_WITH_EXPIRY_VERSION = 1
_OFFSET_VERSION = 3
_OFFSET_WITH_TOPIC_ID_VERSION = 4


def stable_group_record(
    group: ClassicGroup, assignments: Mapping[str, bytes], now_wall_ms: int, *, is_settled: bool = True
) -> GroupRecord:
    """The current generation with what the leader assigned; members it forgot get nothing.

    A group that is not settled has to rebalance: it is written without a leader, by which a load knows it.
    """
    protocol = group.protocol_name or ""
    members = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols[protocol],
            assignment=assignments.get(member.member_id, b""),
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=protocol,
        leader=group.leader_id if is_settled else None,
        current_state_timestamp=now_wall_ms,
        members=members,
    )
    return GroupRecord(GroupMetadataKey(group.group_id), value, GROUP_METADATA_VERSION)


def empty_group_record(group: ClassicGroup, generation: int, now_wall_ms: int) -> GroupRecord:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=generation,
        protocol=None,
        leader=None,
        current_state_timestamp=now_wall_ms,
        members=[],
    )
    return GroupRecord(GroupMetadataKey(group.group_id), value, GROUP_METADATA_VERSION)


def group_tombstone(group_id: str) -> GroupRecord:
    return GroupRecord(GroupMetadataKey(group_id), None)


def offset_record(group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> GroupRecord:
    if value.expire_timestamp != -1:
        version = _OFFSET_WITH_EXPIRY_VERSION
    elif value.topic_id != ZERO_UUID:
        version = _OFFSET_WITH_TOPIC_ID_VERSION
    else:
        version = _OFFSET_VERSION
    return GroupRecord(OffsetCommitKey(group_id, topic, partition), value, version)


def offset_tombstone(group_id: str, topic: str, partition: int) -> GroupRecord:
    return GroupRecord(OffsetCommitKey(group_id, topic, partition), None)
