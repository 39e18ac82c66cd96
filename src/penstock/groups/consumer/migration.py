"""Groups change their protocol while they run (KIP-848), as far as `group.consumer.migration.policy` lets them.

Upgrade: the first member of the new protocol joins a classic group of consumers. All its members stay, with what
they have, as classic members of a consumer group; JoinGroup, SyncGroup and Heartbeat go on working for them.
Downgrade: the last member of the new protocol leaves, and the rest becomes a classic group, which rebalances.
Committed offsets belong to the group's name and are not touched by either.
"""

from collections.abc import Collection, Iterable, Mapping

from penstock.groups.assignors.spec import Assignment
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.join import Join
from penstock.groups.classic.member import ClassicMember
from penstock.groups.classic.rebalance import keep_session as keep_classic_session
from penstock.groups.classic.rebalance import prepare_rebalance
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import INITIAL_EPOCH, ConsumerGroup
from penstock.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, held_by
from penstock.groups.consumer.membership import remove_members
from penstock.groups.consumer.records import (
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from penstock.groups.consumer.subscription import hash_metadata, subscribed_topics
from penstock.groups.consumer.target import dismiss_parked, keep_session
from penstock.groups.decision import GroupRecord, Turn
from penstock.groups.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    embedded_version,
    encode_assignment,
)
from penstock.groups.group_records import stable_group_record
from penstock.groups.group_words import CONSUMER_PROTOCOL_TYPE
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_consumer_group import ConsumerGroupMemberMetadataValue

ClassicProtocol = ConsumerGroupMemberMetadataValue.ClassicProtocol


# -- upgrade --------------------------------------------------------------------------------------------------------


def plan_upgrade(group: ClassicGroup, config: GroupConfig, image: MetadataImage) -> list[GroupRecord] | Refusal:
    """The records of the consumer group that a classic one becomes. Its own tombstone is to come before them."""
    if not config.consumer_migration_policy.allows_upgrade:
        return _cannot_upgrade(group, "online upgrade is disabled")
    if not group.uses_consumer_protocol:
        return _cannot_upgrade(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > config.consumer_max_size:
        return _cannot_upgrade(group, "the group size exceeds the consumer group maximum size")
    epoch = max(group.generation, INITIAL_EPOCH)
    members: list[ConsumerMember] = []
    taken: set[tuple[bytes, int]] = set()
    told = _last_told(group)
    for classic in group.members.values():
        assignment = told.get(classic.group_instance_id or classic.member_id, b"")
        member = _as_consumer_member(group, classic, assignment, epoch, image, taken)
        if isinstance(member, str):
            return _cannot_upgrade(group, member)
        members.append(member)
    topics = subscribed_topics(members, {})
    records = [member_record(group.group_id, member) for member in members]
    records.append(epoch_record(group.group_id, epoch, hash_metadata(topics, image)))
    records += [target_record(group.group_id, member.member_id, _as_target(member)) for member in members]
    records.append(target_epoch_record(group.group_id, epoch, 0))
    records += [current_record(group.group_id, member) for member in members]
    return records


def _cannot_upgrade(group: ClassicGroup, why: str) -> Refusal:
    return Refusal(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {group.group_id} to consumer group because {why}.",
    )


def _last_told(group: ClassicGroup) -> dict[str, bytes]:
    """What members may have, by instance or member id: their last written assignment, also in mid-rebalance."""
    members = group.lasting.members if group.lasting is not None else []
    return {member.group_instance_id or member.member_id: member.assignment for member in members}


def _as_consumer_member(
    group: ClassicGroup,
    classic: ClassicMember,
    assigned_bytes: bytes,
    epoch: int,
    image: MetadataImage,
    taken: set[tuple[bytes, int]],
) -> ConsumerMember | str:
    """The member, or why it cannot be one. `taken` keeps a partition from two members, whatever their leader did."""
    metadata = classic.protocols.get(group.protocol_name or "") or next(iter(classic.protocols.values()))
    subscription = decode_subscription(metadata)
    assignment = decode_assignment(assigned_bytes)
    if subscription is None or assignment is None:
        return "the embedded consumer protocol is malformed"
    if assignment.user_data:
        return "an unsupported custom assignor is in use, whose user data would be lost"
    assigned: dict[bytes, dict[int, int]] = {}
    for entry in assignment.assigned_partitions:
        topic = image.topic(entry.topic)
        for partition in entry.partitions if topic is not None else ():
            assert topic is not None
            if topic.partition(partition) is not None and (topic.id, partition) not in taken:
                taken.add((topic.id, partition))
                assigned.setdefault(topic.id, {})[partition] = epoch
    return ConsumerMember(
        classic.member_id,
        classic.group_instance_id,
        subscription.rack_id or None,
        classic.client_id,
        classic.client_host,
        frozenset(subscription.topics),
        rebalance_timeout_ms=classic.rebalance_timeout_ms,
        classic=classic_metadata(classic.session_timeout_ms, classic.protocols),
        epoch=epoch,
        previous_epoch=epoch,
        assigned=assigned,
    )


def classic_metadata(session_timeout_ms: int, protocols: Mapping[str, bytes]) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(session_timeout_ms, [ClassicProtocol(*item) for item in protocols.items()])


def _as_target(member: ConsumerMember) -> Assignment:
    return {topic: frozenset(held) for topic, held in member.assigned.items()}


def finish_upgrade(turn: Turn, group: ClassicGroup) -> None:
    """All who wait for the classic rebalance come again, to the consumer group; and sessions begin there."""
    for member in group.members.values():
        for waiter in (group.take_join_waiter(member), member.sync_waiter):
            if waiter is not None:
                turn.answer(waiter, ErrorCode.REBALANCE_IN_PROGRESS)
        member.sync_waiter = None
    turn.after_replay(lambda t: keep_all_sessions(t, group.group_id))


def keep_all_sessions(turn: Turn, group_id: str) -> None:
    group = turn.groups.get(group_id)
    if isinstance(group, ConsumerGroup):
        for member in group.members.values():
            keep_session(turn, group, member)


# -- downgrade ------------------------------------------------------------------------------------------------------


def remove_or_downgrade(turn: Turn, group: ConsumerGroup, leaving: Collection[ConsumerMember]) -> None:
    """Members go. If only classic ones stay, the group becomes theirs."""
    if not leaving:
        return
    gone = {member.member_id for member in leaving}
    staying = [member for key, member in group.members.items() if key not in gone]
    if can_downgrade(turn, staying):
        downgrade(turn, group, staying)
    else:
        remove_members(turn, group, leaving)


def can_downgrade(turn: Turn, staying: Collection[ConsumerMember]) -> bool:
    return (
        0 < len(staying) <= turn.config.max_size
        and turn.config.consumer_migration_policy.allows_downgrade
        and all(member.uses_classic_protocol for member in staying)
    )


def downgrade_for(turn: Turn, group: ConsumerGroup, replaced: ConsumerMember, join: Join) -> bool:
    """A static member of the new protocol, the last one, comes back speaking the classic one: so does the group.

    It is put into the classic group under its old id, and then joins there like any static member that comes back.
    False if the group stays what it is.
    """
    others = [member for member in group.members.values() if member is not replaced]
    stand_in = replaced._replace(classic=classic_metadata(join.session_timeout_ms, join.protocols))
    if replaced.uses_classic_protocol or not can_downgrade(turn, [*others, stand_in]):
        return False
    downgrade(turn, group, [*others, stand_in])
    return True


def downgrade(turn: Turn, group: ConsumerGroup, staying: Collection[ConsumerMember]) -> None:
    """The classic group knows what its members have today. That it is to rebalance must not be lost in a crash.

    It rebalances even when everybody has what it should: it needs a leader, one that knows it, to watch the topics.
    """
    classic = _as_classic_group(group, staying)
    assignments = {}
    for member in staying:
        version = embedded_version(classic.members[member.member_id].protocols[classic.protocol_name or ""])
        assignments[member.member_id] = encode_assignment(topic_names(held_by(member), turn.image), version or 0)
    turn.records += group.tombstones()
    turn.write(stable_group_record(classic, assignments, turn.now.wall_ms, is_settled=False))
    dismiss_parked(turn, group, ErrorCode.REBALANCE_IN_PROGRESS)
    turn.after_replay(lambda t: _keep_classic_sessions(t, group.group_id))
    turn.later(None, lambda t: _rebalance(t, group.group_id))


def topic_names(target: Assignment, image: MetadataImage) -> dict[str, list[int]]:
    topics = ((image.topic_by_id(topic_id), partitions) for topic_id, partitions in target.items())
    return {topic.name: sorted(partitions) for topic, partitions in topics if topic is not None}


def _as_classic_group(group: ConsumerGroup, members: Iterable[ConsumerMember]) -> ClassicGroup:
    """A group to write down; replay makes the real one."""
    classic = ClassicGroup(group.group_id)
    classic.generation = group.epoch
    for member in members:
        assert member.classic is not None
        protocols = {protocol.name: protocol.metadata for protocol in member.classic.supported_protocols}
        classic.add_member(
            ClassicMember(
                group.group_id,
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                protocols,
            ),
            CONSUMER_PROTOCOL_TYPE,
        )
    classic.protocol_name = classic.select_protocol()
    return classic


def _keep_classic_sessions(turn: Turn, group_id: str) -> None:
    group = turn.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        for member in group.members.values():
            keep_classic_session(turn, member)


def _rebalance(turn: Turn, group_id: str) -> None:
    group = turn.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        prepare_rebalance(turn, group)
