"""The two phases of a classic rebalance: gather the members (join), then wait for the leader's plan (sync).

Every function changes what a restart may forget and says in its turn what to write and whom to answer. Lasting
state follows in `replay`, once the record is in the log.
"""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.member import ClassicMember
from penstock.groups.decision import Turn
from penstock.groups.group_records import empty_group_record
from penstock.groups.group_words import GroupState
from penstock.model.errors import ErrorCode
from penstock.wire.generated.join_group import JoinGroupResponse


def prepare_or_complete(turn: Turn, group: ClassicGroup) -> None:
    """The set of members changed: begin a rebalance, or go on with the one under way."""
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_ready(turn, group)
    else:
        prepare_rebalance(turn, group)


def prepare_rebalance(turn: Turn, group: ClassicGroup) -> None:
    if group.state is GroupState.COMPLETING_REBALANCE:
        _send_back_to_join(turn, group)
    group.pending_syncs.clear()
    turn.disarm(group.sync_timer)
    was_empty = group.is_empty
    group.enter(GroupState.PREPARING_REBALANCE, turn.now.wall_ms)
    if was_empty:
        _begin_initial_rebalance(turn, group)
    elif group.has_all_members_joined:
        complete_join(turn, group)
    else:
        turn.arm(group.join_timer, group.rebalance_timeout_ms)


def complete_join_if_ready(turn: Turn, group: ClassicGroup) -> None:
    """Ends the join phase when nobody is missing; the initial delay is waited for in any case."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and not group.is_initial_rebalance
        and group.has_all_members_joined
    ):
        complete_join(turn, group)


def complete_join(turn: Turn, group: ClassicGroup) -> None:
    """Ends the join phase with those who joined. Static members are kept until their session ends. (KIP-345)"""
    turn.disarm(group.join_timer)
    for member in [m for m in group.members.values() if m.join_waiter is None and not m.is_static]:
        drop_member(turn, group, member)
    if not group.members:
        _become_empty(turn, group)
    elif not group.elect_joined_leader():
        # Only static members are left and none of them joined: wait on until their sessions decide.
        turn.arm(group.join_timer, group.rebalance_timeout_ms)
    else:
        _begin_generation(turn, group)


def expire_join_phase(turn: Turn, group: ClassicGroup) -> None:
    if group.state is not GroupState.PREPARING_REBALANCE:
        return
    if group.is_initial_rebalance and group.new_member_added and group.initial_remaining_ms > 0:
        # Somebody came during the delay, so more may: wait again, up to the rebalance timeout in all. (KIP-134)
        group.new_member_added = False
        delay_ms = min(turn.config.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms -= delay_ms
        turn.arm(group.join_timer, delay_ms)
        return
    complete_join(turn, group)


def expire_sync_phase(turn: Turn, group: ClassicGroup) -> None:
    """Members that joined but never synced would hold partitions that nobody reads."""
    if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE) or not group.pending_syncs:
        return
    for member_id in sorted(group.pending_syncs):
        drop_member(turn, group, group.members[member_id])
    prepare_rebalance(turn, group)


def expire_session(turn: Turn, group: ClassicGroup, member_id: str) -> None:
    if take_back_id(turn, group, member_id):
        complete_join_if_ready(turn, group)
        return
    member = group.members.get(member_id)
    # A member that waits for us has its session armed again when it is answered.
    if member is not None and not member.keeps_session:
        drop_member(turn, group, member)
        prepare_or_complete(turn, group)


def drop_member(turn: Turn, group: ClassicGroup, member: ClassicMember) -> None:
    """Takes a member out. If it waits it is told that it is unknown, so that a live client joins afresh."""
    waiter = group.take_join_waiter(member)
    if waiter is not None:
        turn.answer(waiter, ErrorCode.UNKNOWN_MEMBER_ID)
    if member.sync_waiter is not None:
        turn.answer(member.sync_waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        member.sync_waiter = None
    turn.disarm(member.session)
    group.remove_member(member)


def take_back_id(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    """Forgets an id that was handed out to a client which has not joined with it; False if it was not."""
    timer = group.pending_joins.pop(member_id, None)
    if timer is None:
        return False
    turn.disarm(timer)
    turn.load.pending_members -= 1
    return True


def keep_session(turn: Turn, member: ClassicMember) -> None:
    turn.arm(member.session, member.session_timeout_ms)


def join_response(group: ClassicGroup, member_id: str, *, skip_assignment: bool = False) -> JoinGroupResponse:
    """The current generation, as this member sees it: only the leader gets to see the others."""
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=_members_for_leader(group) if member_id == group.leader_id else [],
    )


def _members_for_leader(group: ClassicGroup) -> list[JoinGroupResponse.JoinGroupResponseMember]:
    protocol = group.protocol_name or ""
    return [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.protocols[protocol],
        )
        for member in group.members.values()
    ]


def _begin_initial_rebalance(turn: Turn, group: ClassicGroup) -> None:
    delay_ms = turn.config.initial_rebalance_delay_ms
    if delay_ms == 0:
        complete_join(turn, group)
        return
    group.is_initial_rebalance = True
    group.new_member_added = False
    group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    turn.arm(group.join_timer, delay_ms)


def _begin_generation(turn: Turn, group: ClassicGroup) -> None:
    group.begin_generation(turn.now.wall_ms)
    for member in group.members.values():
        waiter = group.take_join_waiter(member)
        if waiter is not None:
            turn.answer(waiter, join_response(group, member.member_id))
        keep_session(turn, member)
        member.is_new = False
    turn.arm(group.sync_timer, group.rebalance_timeout_ms)


def _become_empty(turn: Turn, group: ClassicGroup) -> None:
    generation = group.generation + 1
    now_ms = turn.now.wall_ms
    turn.write(empty_group_record(group, generation, now_ms))
    # Unwritten, the old members come back after a restart and time out; until then the group is empty all the same.
    turn.on_refused.append(lambda _: group.become_empty(generation, now_ms))


def _send_back_to_join(turn: Turn, group: ClassicGroup) -> None:
    """Assignments of the interrupted generation are void."""
    for member in group.members.values():
        member.assignment = b""
        if member.sync_waiter is not None:
            turn.answer(member.sync_waiter, ErrorCode.REBALANCE_IN_PROGRESS)
            member.sync_waiter = None
            keep_session(turn, member)
