"""LeaveGroup: members leave, or an administrator takes static members out by instance id (KIP-345, KIP-447)."""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.rebalance import complete_join_if_ready, drop_member, prepare_or_complete, take_back_id
from penstock.groups.decision import Turn, Waiter
from penstock.model.errors import ErrorCode
from penstock.wire.generated.leave_group import LeaveGroupRequest, LeaveGroupResponse


def leave_group(turn: Turn, group: ClassicGroup | None, request: LeaveGroupRequest, waiter: Waiter) -> None:
    """One answer per member; the group rebalances once for all that left."""
    response = LeaveGroupResponse()
    members_before = len(group.members) if group is not None else 0
    for identity in request.members:
        error = ErrorCode.UNKNOWN_MEMBER_ID if group is None else _leave(turn, group, identity)
        response.members.append(
            LeaveGroupResponse.MemberResponse(
                member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error
            )
        )
    if group is not None:
        if len(group.members) != members_before:
            prepare_or_complete(turn, group)
        else:
            complete_join_if_ready(turn, group)
    turn.answer(waiter, response)


def _leave(turn: Turn, group: ClassicGroup, identity: LeaveGroupRequest.MemberIdentity) -> ErrorCode:
    member_id = identity.member_id
    if not member_id:
        # Administrative removal: the instance id alone says who.
        member_id = group.static_members.get(identity.group_instance_id or "", "")
        if not member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif take_back_id(turn, group, member_id):
        return ErrorCode.NONE
    error = group.check_member(member_id, identity.group_instance_id)
    if not error:
        drop_member(turn, group, group.members[member_id])
    return error
