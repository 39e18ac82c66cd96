"""ConsumerGroupHeartbeat: join (epoch 0), stay, leave (−1), leave for a while (−2, static members).

A heartbeat that changes nothing is answered without further ado. Otherwise: first the member's records, with the
group epoch if they raise it; when those are replayed, the target and one step of reconciliation (`target`).
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from penstock.groups.consumer.checks import check_epoch, check_room, find_member
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import JOINING_EPOCH, STATIC_LEAVING_EPOCH, ConsumerMember, MemberState
from penstock.groups.consumer.membership import leave_for_now, plan_update
from penstock.groups.consumer.migration import remove_or_downgrade
from penstock.groups.consumer.reconcile import OwnedPartitions
from penstock.groups.consumer.regexes import RegexJob, is_due, mark_resolved, refresh_if_due
from penstock.groups.consumer.subscription import ResolvedRegex
from penstock.groups.consumer.target import Reply, go_on_with
from penstock.groups.decision import GroupRecord, Turn, Waiter
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import format_uuid, new_uuid
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

Assignment = ConsumerGroupHeartbeatResponse.Assignment
TopicPartitions = ConsumerGroupHeartbeatResponse.TopicPartitions

_UNRESOLVED: Mapping[str, ResolvedRegex] = MappingProxyType({})


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat request that is well-formed, with who sent it and who waits for the answer."""

    request: ConsumerGroupHeartbeatRequest
    client_id: str
    client_host: str
    waiter: Waiter
    may_describe: Callable[[str], bool]  # which topics its regular expression may find
    resolved: Mapping[str, ResolvedRegex] = _UNRESOLVED  # its expression, if the group did not know it


def keep_alive(turn: Turn, group: ConsumerGroup, beat: Beat) -> bool:
    """The heartbeat of every day: nothing new on either side. False if there is more to it."""
    request = beat.request
    member = group.members.get(request.member_id)
    if (
        member is None
        or request.member_epoch != member.epoch
        or member.epoch != group.target_epoch
        or member.epoch != group.epoch
        or member.state is not MemberState.STABLE
        or group.metadata_is_stale
        or is_due(turn, group)
        or request.subscribed_topic_names is not None
        or request.subscribed_topic_regex is not None
        or request.server_assignor is not None
        or request.instance_id != member.instance_id
        or request.rebalance_timeout_ms not in (-1, member.rebalance_timeout_ms)
        or request.rack_id not in (None, member.rack_id)
        or beat.client_id != member.client_id
        or beat.client_host != member.client_host
        or member.classic is not None
    ):
        return False
    turn.arm(group.timers[member.member_id].session, turn.config.consumer_session_timeout_ms)
    turn.answer(beat.waiter, _response(turn, member))
    return True


def heartbeat(turn: Turn, group: ConsumerGroup, beat: Beat, made_by: list[GroupRecord], is_due: bool = False) -> None:
    """`made_by`: the records that make the group, if it is not there yet; dropped when the heartbeat is refused.

    `is_due`: the group needs a target, whether this member changes anything or not.
    """
    request = beat.request
    found = _find(turn, group, request)
    if isinstance(found, Refusal):
        turn.answer(beat.waiter, found)
        return
    old, replaced = found
    new = _updated(old, beat)
    if new.regex and new.regex not in group.regexes and new.regex not in beat.resolved:
        known = group.members.get(request.member_id)
        job = RegexJob(group.group_id, [new.regex], turn.image, beat.may_describe, beat, known)
        group.lookups[request.member_id] = job
        turn.jobs.append(job)
        return
    group.lookups.pop(request.member_id, None)
    update = plan_update(turn, group, old, new, replaced, beat.resolved, is_due)
    turn.records += made_by + update.records
    if beat.resolved:
        turn.after_replay(lambda t: mark_resolved(t, request.group_id))
    else:
        refresh_if_due(turn, group, beat.may_describe)
    # One that is an epoch behind has missed an answer, and maybe with it what it was assigned.
    tells_all = _is_full(request) or request.member_epoch != old.epoch

    def respond(turn: Turn, group: ConsumerGroup, member: ConsumerMember, changed: bool) -> object:
        response = _response(turn, member)
        if changed or tells_all:
            response.assignment = _assignment(member)
        return response

    owned = owned_partitions(request)
    waits = update.raised_epoch or request.member_epoch == JOINING_EPOCH
    reply = Reply(beat.waiter, new.member_id, owned, update.subscription_changed, waits, respond)
    turn.later(beat.waiter, lambda t: go_on_with(t, request.group_id, reply))


def leave(turn: Turn, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, waiter: Waiter) -> None:
    member = find_member(group, request.member_id, request.instance_id)
    if isinstance(member, Refusal):
        turn.answer(waiter, member)
        return
    if request.member_epoch == STATIC_LEAVING_EPOCH:
        leave_for_now(turn, group, member)
    else:
        remove_or_downgrade(turn, group, [member])
    turn.answer(waiter, ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch))


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> OwnedPartitions:
    if request.topic_partitions is None:
        return None
    owned: dict[bytes, frozenset[int]] = {}
    for topic in request.topic_partitions:
        owned[topic.topic_id] = owned.get(topic.topic_id, frozenset()) | frozenset(topic.partitions)
    return owned


# -- who it is ------------------------------------------------------------------------------------------------------


def _find(
    turn: Turn, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest
) -> tuple[ConsumerMember, ConsumerMember | None] | Refusal:
    """The member as it is known, and the static member that it takes the place of."""
    joins = request.member_epoch == JOINING_EPOCH
    member_id, instance_id = request.member_id, request.instance_id
    refusal = check_room(group, member_id, instance_id, turn.config.consumer_max_size)
    if refusal is not None:
        return refusal
    if joins and instance_id is not None:
        return _find_static(turn, group, member_id, instance_id)
    if joins:
        # Clients of version 0 let the coordinator make up their id.
        member_id = member_id or format_uuid(new_uuid(turn.rng.random_bytes))
        return group.members.get(member_id) or ConsumerMember(member_id), None
    member = find_member(group, member_id, instance_id)
    if isinstance(member, Refusal):
        return member
    return check_epoch(member, request.member_epoch, owned_partitions(request)) or (member, None)


def _find_static(
    turn: Turn, group: ConsumerGroup, member_id: str, instance_id: str
) -> tuple[ConsumerMember, ConsumerMember | None] | Refusal:
    """It joins, or comes back: under a new id only after it left, or if it used to speak the classic protocol."""
    member_id = member_id or format_uuid(new_uuid(turn.rng.random_bytes))
    current = group.static_member(instance_id)
    if current is None:
        return group.members.get(member_id) or ConsumerMember(member_id), None
    if current.member_id == member_id:
        return current, None
    if current.epoch != STATIC_LEAVING_EPOCH and not current.uses_classic_protocol:
        return Refusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance "
            f"id is owned by {current.member_id} member.",
        )
    return current.taken_over_by(member_id), current


def _updated(member: ConsumerMember, beat: Beat) -> ConsumerMember:
    """What a heartbeat does not say stays as it was."""
    request = beat.request
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return member._replace(
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        topics=member.topics if names is None else frozenset(names),
        regex=member.regex if regex is None else regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        server_assignor=member.server_assignor if request.server_assignor is None else request.server_assignor,
        classic=None,
    )


# -- what it is told ------------------------------------------------------------------------------------------------


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """A client that joins or has had an error says everything, and wants to hear everything."""
    return request.member_epoch == JOINING_EPOCH or (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def _response(turn: Turn, member: ConsumerMember) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=turn.config.consumer_heartbeat_interval_ms,
    )


def _assignment(member: ConsumerMember) -> ConsumerGroupHeartbeatResponse.Assignment:
    return Assignment([TopicPartitions(topic, sorted(held)) for topic, held in sorted(member.assigned.items())])
