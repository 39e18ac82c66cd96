"""What is wrong with a request of a consumer group's member, if anything: a refusal with a message, or nothing."""

from collections.abc import Sequence

from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    Holdings,
    MemberState,
)
from penstock.groups.consumer.reconcile import OwnedPartitions
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_CLIENT_MAKES_MEMBER_ID_FROM = 1
_REJOIN = "The member must abandon all its partitions and rejoin."


def check_heartbeat(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Sequence[str]
) -> Refusal | None:
    """The form of a request; no state is looked at."""
    epoch = request.member_epoch
    needs_member_id = api_version >= _CLIENT_MAKES_MEMBER_ID_FROM or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH
    for name, text in (
        ("MemberId", request.member_id if needs_member_id else None),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if text is not None and not text.strip():
            return _invalid(f"{name} can't be empty.")
    problem = _check_join(request) if epoch == JOINING_EPOCH else ""
    if epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        problem = "InstanceId can't be null."
    elif epoch < STATIC_LEAVING_EPOCH:
        problem = "MemberEpoch is invalid."
    if problem:
        return _invalid(problem)
    if request.server_assignor is not None and request.server_assignor not in assignors:
        return Refusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )
    return None


def _check_join(request: ConsumerGroupHeartbeatRequest) -> str:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be provided in first request."
    if request.topic_partitions is None or request.topic_partitions:
        return "TopicPartitions must be empty when (re-)joining."
    # Empty ones are fine: a member without topics.
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    return ""


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)


def check_epoch(member: ConsumerMember, epoch: int, owned: OwnedPartitions) -> Refusal | None:
    """A client one epoch behind may have missed our answer; it is let in if it has nothing it should not have."""
    if epoch == JOINING_EPOCH:
        return None
    if member.uses_classic_protocol:
        # A client that was replaced by a classic one. What is known of the member is not what this client said.
        message = f"The consumer group member uses the classic protocol. {_REJOIN}"
        return Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)
    if epoch != member.epoch:
        is_behind = epoch < member.epoch
        if is_behind and epoch == member.previous_epoch and _is_part_of(owned, member.assigned):
            return None
        word = "smaller" if is_behind else "greater"
        return Refusal(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {word} member epoch ({epoch}) than the one known by the group "
            f"coordinator ({member.epoch}). {_REJOIN}",
        )
    if member.state is MemberState.UNKNOWN and (owned is None or owned):
        return Refusal(ErrorCode.FENCED_MEMBER_EPOCH, f"The consumer group member is in a unknown state. {_REJOIN}")
    return None


def _is_part_of(owned: OwnedPartitions, held: Holdings) -> bool:
    return owned is not None and all(partitions <= held.get(topic, {}).keys() for topic, partitions in owned.items())


def check_room(group: ConsumerGroup, member_id: str, instance_id: str | None, max_size: int) -> Refusal | None:
    """A static member that comes back needs no room of its own."""
    if len(group.members) < max_size or member_id in group.members or instance_id in group.static_members:
        return None
    return Refusal(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"The consumer group has reached its maximum capacity of {max_size} members.",
    )


def find_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember | Refusal:
    """A member by its id, or by its instance id, which must then be its own."""
    if instance_id is None:
        member = group.members.get(member_id)
        return member if member is not None else unknown_member(group, member_id)
    member = group.static_member(instance_id)
    if member is None:
        return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        return Refusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def unknown_member(group: ConsumerGroup, member_id: str) -> Refusal:
    return Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")


def group_not_found(group_id: str) -> Refusal:
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")


def not_a_consumer_group(group_id: str) -> Refusal:
    return Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
