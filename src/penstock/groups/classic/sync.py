"""SyncGroup and Heartbeat: members of a generation fetch their assignment and show that they live."""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.member import ClassicMember
from penstock.groups.classic.rebalance import keep_session, prepare_rebalance
from penstock.groups.decision import Turn, Waiter
from penstock.groups.group_records import stable_group_record
from penstock.groups.group_words import GroupState
from penstock.groups.timers import TimerQueue
from penstock.model.errors import ErrorCode
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse


def sync_group(turn: Turn, group: ClassicGroup, request: SyncGroupRequest, waiter: Waiter) -> None:
    error = _check_sync(group, request)
    if error:
        turn.answer(waiter, error)
        return
    member = group.members[request.member_id]
    group.pending_syncs.discard(member.member_id)
    if not group.pending_syncs:
        turn.disarm(group.sync_timer)
    if group.state is GroupState.STABLE:
        keep_session(turn, member)
        turn.answer(waiter, _sync_response(group, member.assignment))
        return
    if member.sync_waiter is not None:
        turn.answer(member.sync_waiter, ErrorCode.REBALANCE_IN_PROGRESS)
    member.sync_waiter = waiter
    if group.leader_id == member.member_id:
        _accept_assignment(turn, group, request)


def heartbeat(timers: TimerQueue, group: ClassicGroup, request: HeartbeatRequest, now_steady_ms: int) -> ErrorCode:
    """Writes nothing, so it is answered at once."""
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    member = group.members[request.member_id]
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    timers.arm(member.session, now_steady_ms + member.session_timeout_ms)
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_sync(group: ClassicGroup, request: SyncGroupRequest) -> ErrorCode:
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _differs(given: str | None, current: str | None) -> bool:
    return given is not None and current is not None and given != current


def _sync_response(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=assignment
    )


def _accept_assignment(turn: Turn, group: ClassicGroup, request: SyncGroupRequest) -> None:
    """The leader's plan becomes the group's record; replay makes the group stable."""
    assignments = {each.member_id: each.assignment for each in request.assignments}
    turn.write(stable_group_record(group, assignments, turn.now.wall_ms))
    turn.on_refused.append(lambda refused: prepare_rebalance(refused, group))
    for member in group.members.values():
        _answer_sync(turn, group, member, assignments.get(member.member_id, b""))


def _answer_sync(turn: Turn, group: ClassicGroup, member: ClassicMember, assignment: bytes) -> None:
    if member.sync_waiter is not None:
        turn.answer(member.sync_waiter, _sync_response(group, assignment))
        member.sync_waiter = None
        # Its session may have run out unheeded while it waited.
        keep_session(turn, member)
