"""JoinGroup: new members, members that come back, and static members under a new id (KIP-345, KIP-394, KIP-814)."""

from typing import NamedTuple

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.member import ClassicMember
from penstock.groups.classic.rebalance import (
    complete_join_if_ready,
    drop_member,
    join_response,
    keep_session,
    prepare_or_complete,
    prepare_rebalance,
    take_back_id,
)
from penstock.groups.decision import Turn, Waiter
from penstock.groups.group_records import stable_group_record
from penstock.groups.group_words import GroupState
from penstock.groups.timers import Timer, TimerKind
from penstock.model.errors import ErrorCode
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse

KNOWN_MEMBER_ID_FROM = 4
_SKIP_ASSIGNMENT_FROM = 9


class Join(NamedTuple):
    """A JoinGroup request, cleaned, with who sent it and who waits for the answer."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    api_version: int
    waiter: Waiter


def read_join(request: JoinGroupRequest, client_id: str, client_host: str, api_version: int, waiter: Waiter) -> Join:
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    rebalance_timeout_ms = request.rebalance_timeout_ms
    return Join(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        client_id,
        client_host,
        request.session_timeout_ms,
        # Version 0 knows one timeout only.
        request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        request.protocol_type,
        protocols,
        api_version,
        waiter,
    )


def join_group(turn: Turn, group: ClassicGroup, join: Join) -> None:
    if not _has_room(turn, group, join.member_id):
        _refuse_for_size(turn, group, join)
    elif not group.supports_protocols(join.protocol_type, join.protocols):
        turn.answer(join.waiter, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif not join.member_id:
        _join_new(turn, group, join)
    elif join.member_id in group.pending_joins:
        _join_pending(turn, group, join)
    else:
        _join_known(turn, group, join)


def _has_room(turn: Turn, group: ClassicGroup, member_id: str) -> bool:
    max_size = turn.config.max_size
    if group.state is GroupState.EMPTY:
        return member_id in group.pending_joins or len(group.pending_joins) < max_size
    if group.state is GroupState.PREPARING_REBALANCE:
        # Counted by who waits: should the limit have been lowered, the last to rejoin are turned away.
        member = group.members.get(member_id)
        return (member is not None and member.join_waiter is not None) or group.awaiting_joins < max_size
    return member_id in group.members or len(group.members) < max_size


def _refuse_for_size(turn: Turn, group: ClassicGroup, join: Join) -> None:
    turn.answer(join.waiter, ErrorCode.GROUP_MAX_SIZE_REACHED)
    take_back_id(turn, group, join.member_id)
    member = group.members.get(join.member_id)
    if member is not None:
        drop_member(turn, group, member)
    complete_join_if_ready(turn, group)


# -- members without an id ------------------------------------------------------------------------------------------


def _join_new(turn: Turn, group: ClassicGroup, join: Join) -> None:
    if join.group_instance_id is not None:
        member_id = new_member_id(turn, join.group_instance_id)
        current = group.static_members.get(join.group_instance_id)
        if current is None:
            _add_member(turn, group, join, member_id)
        else:
            _replace_static_member(turn, group, group.members[current], join, member_id)
    elif join.api_version >= KNOWN_MEMBER_ID_FROM:
        _hand_out_id(turn, group, join)
    else:
        _add_member(turn, group, join, new_member_id(turn, join.client_id))


def new_member_id(turn: Turn, prefix: str) -> str:
    raw = bytearray(turn.rng.random_bytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    text = raw.hex()
    return f"{prefix}-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _hand_out_id(turn: Turn, group: ClassicGroup, join: Join) -> None:
    """The client is to come back with its id, so that a retry does not make a second member of it. (KIP-394)"""
    if turn.load.pending_members >= turn.config.max_pending_members:
        turn.answer(join.waiter, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return
    turn.load.pending_members += 1
    member_id = new_member_id(turn, join.client_id)
    timer = group.pending_joins[member_id] = Timer(TimerKind.SESSION, group.group_id, member_id)
    turn.arm(timer, join.session_timeout_ms)
    turn.answer(join.waiter, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))


def _join_pending(turn: Turn, group: ClassicGroup, join: Join) -> None:
    if join.group_instance_id is not None:
        # Ids are handed out to dynamic members only; let the client begin again.
        turn.answer(join.waiter, ErrorCode.UNKNOWN_MEMBER_ID)
        return
    take_back_id(turn, group, join.member_id)
    _add_member(turn, group, join, join.member_id)


def _add_member(turn: Turn, group: ClassicGroup, join: Join, member_id: str) -> None:
    member = _new_member(group, join, member_id)
    member.is_new = True
    member.join_waiter = join.waiter
    if group.is_initial_rebalance:
        group.new_member_added = True
    group.add_member(member, join.protocol_type)
    # It has no generation to heartbeat for yet.
    turn.arm(member.session, turn.config.new_member_join_timeout_ms)
    prepare_or_complete(turn, group)


def _new_member(group: ClassicGroup, join: Join, member_id: str) -> ClassicMember:
    return ClassicMember(
        group.group_id,
        member_id,
        join.group_instance_id,
        join.client_id,
        join.client_host,
        join.session_timeout_ms,
        join.rebalance_timeout_ms,
        join.protocols,
    )


# -- members with an id ---------------------------------------------------------------------------------------------


def _join_known(turn: Turn, group: ClassicGroup, join: Join) -> None:
    error = group.check_member(join.member_id, join.group_instance_id)
    if error:
        turn.answer(join.waiter, error)
        return
    member = group.members[join.member_id]
    if _must_rebalance(group, member, join):
        _update_member(turn, group, member, join)
        prepare_or_complete(turn, group)
    else:
        # It lost the answer to its last join, or only asks: it gets the current generation and will sync.
        keep_session(turn, member)
        turn.answer(join.waiter, join_response(group, member.member_id))


def _must_rebalance(group: ClassicGroup, member: ClassicMember, join: Join) -> bool:
    if group.state is GroupState.PREPARING_REBALANCE:
        return True
    if group.state is GroupState.STABLE and group.leader_id == member.member_id:
        # The leader rejoins when it sees a reason that does not show in metadata, such as new partitions.
        return True
    return not member.has_protocols(join.protocols)


def _update_member(turn: Turn, group: ClassicGroup, member: ClassicMember, join: Join) -> None:
    group.set_protocols(member, join.protocols)
    member.session_timeout_ms = join.session_timeout_ms
    member.rebalance_timeout_ms = join.rebalance_timeout_ms
    if member.sync_waiter is not None:
        turn.answer(member.sync_waiter, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_waiter = None
    displaced = group.set_join_waiter(member, join.waiter)
    if displaced is not None:
        turn.answer(displaced, ErrorCode.REBALANCE_IN_PROGRESS)


# -- static members -------------------------------------------------------------------------------------------------


def _replace_static_member(turn: Turn, group: ClassicGroup, old: ClassicMember, join: Join, member_id: str) -> None:
    """A restarted static member takes its place back; while the group is stable, without a rebalance."""
    former_leader_id = group.leader_id
    _fence(turn, group, old)
    new = _new_member(group, join, member_id)
    group.replace_member_id(old, new)
    keep_session(turn, new)
    if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
        _persist_new_id(turn, group, new, join, former_leader_id)
        return
    group.set_join_waiter(new, join.waiter)
    if group.state is GroupState.PREPARING_REBALANCE:
        complete_join_if_ready(turn, group)
    else:
        # In CompletingRebalance the leader may already be planning for the old id.
        prepare_rebalance(turn, group)


def _fence(turn: Turn, group: ClassicGroup, member: ClassicMember) -> None:
    waiter = group.take_join_waiter(member)
    if waiter is not None:
        turn.answer(waiter, ErrorCode.FENCED_INSTANCE_ID)
    if member.sync_waiter is not None:
        turn.answer(member.sync_waiter, ErrorCode.FENCED_INSTANCE_ID)
        member.sync_waiter = None
    turn.disarm(member.session)


def _persist_new_id(
    turn: Turn, group: ClassicGroup, member: ClassicMember, join: Join, former_leader_id: str | None
) -> None:
    """If this is not appended the client retries and gets yet another id; the old one is fenced either way."""
    assignments = {other.member_id: other.assignment for other in group.members.values()}
    turn.write(stable_group_record(group, assignments, turn.now.wall_ms))
    is_leader = group.leader_id == member.member_id
    if join.api_version >= _SKIP_ASSIGNMENT_FROM:
        response = join_response(group, member.member_id, skip_assignment=is_leader)
    else:
        # Older clients cannot be told to skip the assignment: a returning leader is told that its old id leads.
        response = join_response(group, member.member_id)
        response.leader = former_leader_id or ""
        response.members = []
    turn.answer(join.waiter, response)
