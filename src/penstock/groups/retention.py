"""Offsets that nobody needs because they are older than the retention.

The retention of an offset counts from its commit, but not from before its group became empty. So a simple group,
which never has members, and topics that a stable group no longer subscribes to go by the commit alone.
"""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.committer import Group
from penstock.groups.config import GroupConfig
from penstock.groups.decision import GroupRecord
from penstock.groups.group_records import group_tombstone, offset_tombstone
from penstock.groups.group_words import GroupState
from penstock.groups.offset_store import CommittedOffset, OffsetStore
from penstock.groups.transactional_offsets import TransactionalOffsets


def expire_group(
    group: Group,
    offsets: OffsetStore,
    pending: TransactionalOffsets,
    config: GroupConfig,
    now_wall_ms: int,
) -> list[GroupRecord]:
    """Tombstones for expired offsets, and for the group when it is empty and has none left.

    What an open transaction is about to commit is in use, however old the last commit is.
    """
    records: list[GroupRecord] = []
    remaining = pending.has_group(group.group_id)
    for topic, partitions in offsets.of_group(group.group_id).items():
        keeps_topic = not _may_expire(group) or group.is_subscribed_to(topic)
        for partition, committed in partitions.items():
            in_use = keeps_topic or pending.is_pending(group.group_id, topic, partition)
            if in_use or not _is_expired(group, committed, config.offsets_retention_ms, now_wall_ms):
                remaining = True
            else:
                records.append(offset_tombstone(group.group_id, topic, partition))
    if not remaining and group.is_empty:
        records += tombstones_of(group)
    return records


def tombstones_of(group: Group) -> list[GroupRecord]:
    """For a group without members; none if somebody is about to join it."""
    if isinstance(group, ClassicGroup):
        return [] if group.pending_joins else [group_tombstone(group.group_id)]
    return group.tombstones()


def _may_expire(group: Group) -> bool:
    if not isinstance(group, ClassicGroup):
        return True
    if group.protocol_type is None or group.is_empty:
        return True
    # Only a stable consumer group tells which topics it does without.
    return group.state is GroupState.STABLE and group.subscribed_topics is not None


def _is_expired(group: Group, committed: CommittedOffset, retention_ms: int, now_wall_ms: int) -> bool:
    if committed.expire_timestamp_ms != -1:
        return now_wall_ms >= committed.expire_timestamp_ms
    since_ms = committed.commit_timestamp_ms
    if group.protocol_type is not None and group.is_empty:
        since_ms = max(since_ms, group.state_timestamp_ms)
    return now_wall_ms - since_ms >= retention_ms
