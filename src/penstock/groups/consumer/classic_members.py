"""Classic members of a consumer group: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, while a group migrates.

To such a client the group looks as if it rebalanced often: it is told so whenever it has to move, joins with what it
owns (as the cooperative protocol does), and syncs to hear what it has. Its generation is its member epoch. There is
no leader and nobody waits for anybody.
"""

from penstock.groups.classic.join import KNOWN_MEMBER_ID_FROM, Join, new_member_id
from penstock.groups.config import MigrationPolicy
from penstock.groups.consumer.checks import check_room, find_member
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember, MemberState
from penstock.groups.consumer.membership import plan_update
from penstock.groups.consumer.migration import classic_metadata, downgrade_for, remove_or_downgrade, topic_names
from penstock.groups.consumer.reconcile import OwnedPartitions
from penstock.groups.consumer.target import Reply, go_on_with, keep_session
from penstock.groups.decision import Turn, Waiter
from penstock.groups.embedded_protocol import decode_subscription, embedded_version, encode_assignment
from penstock.groups.group_words import CONSUMER_PROTOCOL_TYPE
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse


def join_as_classic(turn: Turn, group: ConsumerGroup, join: Join) -> bool:
    """False if the group has become a classic one for this member: it is to join that when all is replayed."""
    subscription = _check_join(turn, group, join)
    if isinstance(subscription, ErrorCode):
        turn.answer(join.waiter, subscription)
        return True
    if not join.member_id and join.group_instance_id is None and join.api_version >= KNOWN_MEMBER_ID_FROM:
        # It need not be remembered: a member may come with any id here.
        member_id = new_member_id(turn, join.client_id)
        turn.answer(join.waiter, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        return True
    found = _find(turn, group, join)
    if isinstance(found, ErrorCode):
        turn.answer(join.waiter, found)
        return True
    old, replaced = found
    owned = _owned(subscription, turn.image)
    if owned and old.member_id not in group.members:
        # It was a member once and does not know that it is none any more. What it has may be another's by now.
        turn.answer(join.waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        return True
    if replaced is not None and downgrade_for(turn, group, replaced, join):
        return False
    new = _updated(old, join, subscription)
    update = plan_update(turn, group, old, new, replaced, {})
    turn.records += update.records
    reply = Reply(
        join.waiter,
        new.member_id,
        owned,
        update.subscription_changed,
        update.raised_epoch,
        _joined,
    )
    turn.later(join.waiter, lambda t: go_on_with(t, group.group_id, reply))
    return True


def sync_as_classic(turn: Turn, group: ConsumerGroup, request: SyncGroupRequest, waiter: Waiter) -> None:
    member = _find_classic(group, request.member_id, request.group_instance_id, request.generation_id)
    if isinstance(member, ErrorCode):
        turn.answer(waiter, member)
        return
    name = member.classic_protocol.name
    if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (None, name):
        turn.answer(waiter, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return
    timers = group.timers_of(member.member_id)
    if group.target_epoch > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        if not timers.join.armed:
            turn.arm(timers.join, member.rebalance_timeout_ms)
        turn.answer(waiter, ErrorCode.REBALANCE_IN_PROGRESS)
        return
    turn.disarm(timers.sync)
    keep_session(turn, group, member)
    held = {topic: frozenset(partitions) for topic, partitions in member.assigned.items()}
    version = embedded_version(member.classic_protocol.metadata) or 0
    turn.answer(
        waiter,
        SyncGroupResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(topic_names(held, turn.image), version),
        ),
    )


def heartbeat_as_classic(turn: Turn, group: ConsumerGroup, request: HeartbeatRequest) -> ErrorCode:
    """Sends it to join again when there is a newer target, something to give up, or something to get."""
    member = _find_classic(group, request.member_id, request.group_instance_id, request.generation_id)
    if isinstance(member, ErrorCode):
        return member
    keep_session(turn, group, member)
    if (
        member.epoch < group.target_epoch
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits_for_others(group, member))
    ):
        timer = group.timers_of(member.member_id).join
        if not timer.armed:
            turn.arm(timer, member.rebalance_timeout_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_as_classic(turn: Turn, group: ConsumerGroup, request: LeaveGroupRequest, waiter: Waiter) -> None:
    """One answer per member. An administrator may also take out members of the new protocol by instance id."""
    response = LeaveGroupResponse()
    leaving: dict[str, ConsumerMember] = {}
    for identity in request.members:
        member_id, instance_id = identity.member_id, identity.group_instance_id
        if instance_id is not None and not member_id:
            member_id = group.static_members.get(instance_id, "")
        member = find_member(group, member_id, instance_id)
        if isinstance(member, ConsumerMember):
            leaving[member.member_id] = member
        response.members.append(
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id,
                group_instance_id=instance_id,
                error_code=member.code if isinstance(member, Refusal) else ErrorCode.NONE,
            )
        )
    remove_or_downgrade(turn, group, list(leaving.values()))
    turn.answer(waiter, response)


# -- joining --------------------------------------------------------------------------------------------------------


def _check_join(turn: Turn, group: ConsumerGroup, join: Join) -> ConsumerProtocolSubscription | ErrorCode:
    if turn.config.consumer_migration_policy is MigrationPolicy.DISABLED:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    room = check_room(group, join.member_id, join.group_instance_id, turn.config.consumer_max_size)
    if room is not None:
        return room.code
    if join.protocol_type != CONSUMER_PROTOCOL_TYPE or not _shares_protocol(group, join):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # All its protocols carry the same subscription.
    subscription = decode_subscription(next(iter(join.protocols.values())))
    return ErrorCode.INCONSISTENT_GROUP_PROTOCOL if subscription is None else subscription


def _shares_protocol(group: ConsumerGroup, join: Join) -> bool:
    """Whether some protocol is known to it and to all other classic members, should the group be downgraded."""
    shared = set(join.protocols)
    for member in group.members.values():
        is_itself = member.member_id == join.member_id or (
            member.instance_id is not None and member.instance_id == join.group_instance_id
        )
        if member.classic is not None and not is_itself:
            shared &= {protocol.name for protocol in member.classic.supported_protocols}
    return bool(shared)


def _find(turn: Turn, group: ConsumerGroup, join: Join) -> tuple[ConsumerMember, ConsumerMember | None] | ErrorCode:
    """The member as it is known, and the static member that it takes the place of."""
    if join.group_instance_id is None:
        member_id = join.member_id or new_member_id(turn, join.client_id)
        return group.members.get(member_id) or ConsumerMember(member_id), None
    current = group.static_member(join.group_instance_id)
    if join.member_id:
        member = find_member(group, join.member_id, join.group_instance_id)
        return member.code if isinstance(member, Refusal) else (member, None)
    member_id = new_member_id(turn, join.group_instance_id)
    if current is None:
        return ConsumerMember(member_id), None
    return current.taken_over_by(member_id), current


def _updated(member: ConsumerMember, join: Join, subscription: ConsumerProtocolSubscription) -> ConsumerMember:
    return member._replace(
        instance_id=join.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        regex="",
        client_id=join.client_id,
        client_host=join.client_host,
        classic=classic_metadata(join.session_timeout_ms, join.protocols),
    )


def _owned(subscription: ConsumerProtocolSubscription, image: MetadataImage) -> OwnedPartitions:
    topics = ((image.topic(entry.topic), entry.partitions) for entry in subscription.owned_partitions)
    return {topic.id: frozenset(partitions) for topic, partitions in topics if topic is not None}


def _joined(turn: Turn, group: ConsumerGroup, member: ConsumerMember, changed: bool) -> JoinGroupResponse:
    """It must sync within its rebalance timeout, or it would hold partitions that it does not know of."""
    timers = group.timers_of(member.member_id)
    turn.disarm(timers.join)
    turn.arm(timers.sync, member.rebalance_timeout_ms)
    return JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=member.classic_protocol.name,
        member_id=member.member_id,
    )


# -- the others -----------------------------------------------------------------------------------------------------


def _find_classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember | ErrorCode:
    member = find_member(group, member_id, instance_id)
    if isinstance(member, Refusal):
        return member.code
    if not member.uses_classic_protocol:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return member if generation == member.epoch else ErrorCode.ILLEGAL_GENERATION


def _waits_for_others(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether partitions of its target are still held by others."""
    for topic, partitions in group.target_of(member.member_id).items():
        held = member.assigned.get(topic, {})
        for partition in partitions:
            if partition not in held and group.owner_of(topic, partition) is not None:
                return True
    return False
