"""Members come, change and go: the records for it, and the group epoch that it raises."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import EMPTY_HANDED, STATIC_LEAVING_EPOCH, ConsumerMember
from penstock.groups.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    member_tombstones,
    partition_metadata_tombstone,
    regex_record,
    regex_tombstone,
    target_epoch_record,
    target_record,
)
from penstock.groups.consumer.subscription import ResolvedRegex, hash_metadata, subscribed_topics
from penstock.groups.consumer.target import dismiss_parked, preferred_assignor
from penstock.groups.decision import GroupRecord, Turn
from penstock.model.errors import ErrorCode


class Update(NamedTuple):
    """What a member's request does to the group."""

    records: list[GroupRecord]
    subscription_changed: bool
    raised_epoch: bool


def plan_update(
    turn: Turn,
    group: ConsumerGroup,
    old: ConsumerMember,
    new: ConsumerMember,
    replaced: ConsumerMember | None,
    resolved: Mapping[str, ResolvedRegex],
    is_due: bool = False,
) -> Update:
    """`old` is new itself if nobody knows it yet, or a copy of the static member `replaced` under the new id.

    `resolved`: expressions that the group did not have yet. `is_due`: raises the epoch in any case.
    """
    records: list[GroupRecord] = []
    if replaced is not None:
        records += member_tombstones(group.group_id, replaced.member_id)
        dismiss_parked(turn, group, ErrorCode.FENCED_INSTANCE_ID, [replaced.member_id])
    if new != old or replaced is not None:
        records.append(member_record(group.group_id, new))
    if replaced is not None:
        records.append(target_record(group.group_id, new.member_id, group.target_of(replaced.member_id)))
        records.append(current_record(group.group_id, old))
    regexes = dict(group.regexes)
    regex_changed = new.regex != old.regex
    if regex_changed:
        records += _change_regex(turn, group, old.regex, new.regex, regexes, resolved)
    members = {**group.members, new.member_id: new} if regex_changed or new != old or replaced else group.members
    if replaced is not None:
        members = {key: member for key, member in members.items() if key != replaced.member_id}
    subscription_changed = regex_changed or new.topics != old.topics
    must_raise = is_due or subscription_changed or _assignor_changed(turn, group, members)
    raised = _raise_epoch(turn, group, members, regexes, must_raise)
    return Update(records + raised, subscription_changed, bool(raised))


def _change_regex(
    turn: Turn,
    group: ConsumerGroup,
    old: str,
    new: str,
    regexes: dict[str, ResolvedRegex],
    resolved: Mapping[str, ResolvedRegex],
) -> list[GroupRecord]:
    """An expression is kept as long as somebody subscribes by it. Changes `regexes` likewise."""
    records = []
    if old in regexes and sum(member.regex == old for member in group.members.values()) == 1:
        del regexes[old]
        records.append(regex_tombstone(group.group_id, old))
    if new and new not in regexes:
        found = regexes[new] = resolved[new]
        records.append(regex_record(group.group_id, new, *found))
    return records


def _assignor_changed(turn: Turn, group: ConsumerGroup, members: Mapping[str, ConsumerMember]) -> bool:
    if members is group.members:
        return False
    assignors = turn.config.consumer_assignors
    return preferred_assignor(group.members.values(), assignors) != preferred_assignor(members.values(), assignors)


def _raise_epoch(
    turn: Turn,
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    regexes: Mapping[str, ResolvedRegex],
    must_raise: bool,
) -> list[GroupRecord]:
    """The epoch also rises when topics have changed under the group's feet."""
    if not must_raise and not group.metadata_is_stale:
        return []
    metadata_hash = hash_metadata(subscribed_topics(members.values(), regexes), turn.image)
    if not must_raise and metadata_hash == group.metadata_hash:
        group.metadata_is_stale = False
        return []
    turn.after_replay(_mark_fresh(group.group_id))
    records = [epoch_record(group.group_id, group.epoch + 1, metadata_hash)]
    if group.has_partition_metadata:
        records.append(partition_metadata_tombstone(group.group_id))
    return records


def _mark_fresh(group_id: str) -> Callable[[Turn], None]:
    def mark(turn: Turn) -> None:
        group = turn.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.metadata_is_stale = False

    return mark


# -- leaving --------------------------------------------------------------------------------------------------------


def remove_members(turn: Turn, group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> None:
    """Takes members out and raises the epoch; the next heartbeat of anybody makes the new target."""
    gone = {member.member_id for member in leaving}
    members = {key: member for key, member in group.members.items() if key not in gone}
    for member in leaving:
        turn.records += member_tombstones(group.group_id, member.member_id)
    regexes = dict(group.regexes)
    for regex in sorted({member.regex for member in leaving} & regexes.keys()):
        if not any(member.regex == regex for member in members.values()):
            del regexes[regex]
            turn.write(regex_tombstone(group.group_id, regex))
    epoch = group.epoch + 1
    metadata_hash = hash_metadata(subscribed_topics(members.values(), regexes), turn.image)
    turn.write(epoch_record(group.group_id, epoch, metadata_hash))
    if not members:
        # Nobody is left to make a target for it. When it became empty is what the retention of offsets counts from.
        turn.write(target_epoch_record(group.group_id, epoch, turn.now.wall_ms))
    dismiss_parked(turn, group, ErrorCode.UNKNOWN_MEMBER_ID, gone)
    turn.after_replay(lambda t: _forget_timers(t, group, gone))


def _forget_timers(turn: Turn, group: ConsumerGroup, member_ids: Collection[str]) -> None:
    for member_id in member_ids:
        timers = group.timers.pop(member_id, None)
        if timers is not None:
            for timer in (timers.session, timers.rebalance, timers.join, timers.sync):
                turn.disarm(timer)


def leave_for_now(turn: Turn, group: ConsumerGroup, member: ConsumerMember) -> None:
    """A static member says that it will be back: it keeps its partitions until its session ends. (KIP-345)

    They count as assigned since epoch 0, so that it may commit for them under the id it comes back with.
    """
    away = member._replace(
        epoch=STATIC_LEAVING_EPOCH,
        assigned={topic: dict.fromkeys(held, 0) for topic, held in member.assigned.items()},
        revoking=EMPTY_HANDED,
    )
    turn.write(current_record(group.group_id, away))
    turn.after_replay(lambda t: t.disarm(group.timers_of(member.member_id).rebalance))
