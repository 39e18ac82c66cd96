"""A member of a consumer group: an immutable value, built by replay and drafted by decisions."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

from penstock.groups.timers import Timer, TimerKind
from penstock.wire.generated.records_consumer_group import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)

ClassicMemberMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata
RecordedPartitions = ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions

# Topic id → partition → the epoch since which the member has had it. No empty mappings in it; never changed in place.
Holdings = Mapping[bytes, Mapping[int, int]]
EMPTY_HANDED: Holdings = MappingProxyType({})

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
STATIC_LEAVING_EPOCH = -2  # a static member that will be back before its session ends


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # told to give up partitions, has not said that it did
    UNRELEASED_PARTITIONS = 2  # at the target's epoch, but others still hold some of its partitions
    UNKNOWN = 127  # written by a release with further states


class ConsumerMember(NamedTuple):
    """The first part is what it said about itself, the second how far it has come."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None  # set: it speaks the classic protocol (JoinGroup, SyncGroup)

    epoch: int = JOINING_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Holdings = EMPTY_HANDED
    revoking: Holdings = EMPTY_HANDED

    @property
    def uses_classic_protocol(self) -> bool:
        return self.classic is not None

    @property
    def classic_protocol(self) -> ConsumerGroupMemberMetadataValue.ClassicProtocol:
        """What a classic member speaks here: always its favourite, since nobody else has to understand it."""
        assert self.classic is not None
        return self.classic.supported_protocols[0]

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    def session_timeout_ms(self, default_ms: int) -> int:
        return default_ms if self.classic is None else self.classic.session_timeout_ms

    def taken_over_by(self, member_id: str) -> "ConsumerMember":
        """A static member that came back under another id: in the place of this one, with all it has."""
        return self._replace(member_id=member_id, epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH)

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        return self._replace(
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerMember":
        return self._replace(
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_state(value.state),
            assigned=_holdings(value.assigned_partitions, value.member_epoch),
            revoking=_holdings(value.partitions_pending_revocation, value.member_epoch),
        )


def held_by(member: ConsumerMember) -> dict[bytes, frozenset[int]]:
    """All that is its own: also what it is giving up, until it says that it did."""
    held: dict[bytes, frozenset[int]] = {}
    for holdings in (member.assigned, member.revoking):
        for topic, partitions in holdings.items():
            held[topic] = held.get(topic, frozenset()) | frozenset(partitions)
    return held


class MemberTimers:
    """What a member is waited for with: join and sync are for classic members, rebalance is for the others."""

    __slots__ = ("join", "rebalance", "session", "sync")

    def __init__(self, group_id: str, member_id: str) -> None:
        self.session = Timer(TimerKind.SESSION, group_id, member_id)
        self.rebalance = Timer(TimerKind.REBALANCE, group_id, member_id)
        self.join = Timer(TimerKind.JOIN, group_id, member_id)
        self.sync = Timer(TimerKind.SYNC, group_id, member_id)

    def __contains__(self, timer: Timer) -> bool:
        return timer in (self.session, self.rebalance, self.join, self.sync)


def _state(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN


def _holdings(topics: list[RecordedPartitions], member_epoch: int) -> Holdings:
    """Records of old have no epoch per partition: then the member's own counts."""
    if not topics:
        return EMPTY_HANDED
    held: dict[bytes, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            held[topic.topic_id] = dict.fromkeys(topic.partitions, max(member_epoch, 0))
        else:
            held[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return held
