"""A ConsumerGroupHeartbeat finds the group it is for: a consumer group, a classic one that becomes one, or none."""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.checks import group_not_found, not_a_consumer_group
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.heartbeat import Beat, heartbeat, keep_alive, leave
from penstock.groups.consumer.member import JOINING_EPOCH
from penstock.groups.consumer.migration import finish_upgrade, plan_upgrade
from penstock.groups.decision import Turn
from penstock.groups.group_records import group_tombstone
from penstock.model.errors import ErrorCode, Refusal


def consumer_heartbeat(turn: Turn, group: ClassicGroup | ConsumerGroup | None, beat: Beat) -> None:
    request = beat.request
    if isinstance(group, ConsumerGroup):
        if request.member_epoch < JOINING_EPOCH:
            leave(turn, group, request, beat.waiter)
        elif not keep_alive(turn, group, beat):
            heartbeat(turn, group, beat, [])
    elif request.member_epoch != JOINING_EPOCH:
        missing = group_not_found if group is None else not_a_consumer_group
        turn.answer(beat.waiter, missing(request.group_id))
    elif group is None:
        heartbeat(turn, ConsumerGroup(request.group_id), beat, [])
    elif group.is_empty:
        heartbeat(turn, ConsumerGroup(request.group_id), beat, [group_tombstone(request.group_id)])
    else:
        _upgrade(turn, group, beat)


def _upgrade(turn: Turn, group: ClassicGroup, beat: Beat) -> None:
    """The heartbeat is decided on the group as it will be, so that all of it is written at once, or nothing."""
    if len(group.members) >= turn.config.consumer_max_size:
        message = f"The group already has {len(group.members)} members."
        turn.answer(beat.waiter, Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message))
        return
    records = plan_upgrade(group, turn.config, turn.image)
    if isinstance(records, Refusal):
        turn.answer(beat.waiter, records)
        return
    upgraded = ConsumerGroup(group.group_id)
    for record in records:
        upgraded.replay(record.key, record.value)
    # Who knows what topics the leader saw, or whether it got to assign anything: a target is due.
    heartbeat(turn, upgraded, beat, [group_tombstone(group.group_id), *records], is_due=True)
    if turn.records:
        finish_upgrade(turn, group)
