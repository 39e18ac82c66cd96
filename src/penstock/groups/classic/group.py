"""A classic group: who is in it, which generation it is in, who leads.

States and what leads out of them:

    Empty                → PreparingRebalance  a member joins (the initial delay gathers more of them)
    PreparingRebalance   → CompletingRebalance all members joined, or the rebalance timeout passed
                         → Empty               nobody is left
    CompletingRebalance  → Stable              the leader's assignment was written
                         → PreparingRebalance  a member joins, leaves, changes or fails
    Stable               → PreparingRebalance  likewise, or the leader joins again
    any                  → Dead                the group was deleted; it is then no longer in the shard

`lasting` is the last replayed record; everything else can be lost with the process. This class keeps its own
counters right and decides nothing: see `rebalance`, `join`, `sync` and `leave`.
"""

from penstock.groups.classic.member import ClassicMember
from penstock.groups.decision import Waiter
from penstock.groups.embedded_protocol import decode_subscribed_topics
from penstock.groups.group_words import CONSUMER_PROTOCOL_TYPE, GroupState, GroupType
from penstock.groups.timers import Timer, TimerKind
from penstock.model.errors import ErrorCode
from penstock.wire.generated.records_group import GroupMetadataValue


class ClassicGroup:
    __slots__ = (
        "_subscribed_topics",
        "_subscription_known",
        "awaiting_joins",
        "generation",
        "group_id",
        "initial_remaining_ms",
        "is_initial_rebalance",
        "join_timer",
        "lasting",
        "leader_id",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "supported_protocols",
        "sync_timer",
    )
    type = GroupType.CLASSIC

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.lasting: GroupMetadataValue | None = None
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = -1  # wall clock; −1: not known
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation = 0
        self.leader_id: str | None = None  # one of `members` whenever there are any
        self.members: dict[str, ClassicMember] = {}  # in the order of joining
        self.static_members: dict[str, str] = {}  # instance id → member id
        self.supported_protocols: dict[str, int] = {}  # name → how many members support it; no zeros
        self.awaiting_joins = 0  # members with a join waiter
        self.pending_joins: dict[str, Timer] = {}  # ids handed out whose owner has not joined yet; not members
        self.pending_syncs: set[str] = set()  # members that have not synced in this generation
        self.is_initial_rebalance = False  # PreparingRebalance that came from Empty
        self.new_member_added = False
        self.initial_remaining_ms = 0
        self.join_timer = Timer(TimerKind.JOIN, group_id)
        self.sync_timer = Timer(TimerKind.SYNC, group_id)
        self._subscribed_topics: frozenset[str] | None = None
        self._subscription_known = False

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_unsettled(self) -> bool:
        """Written down with the rebalance still to come: it has just ceased to be a consumer group (KIP-848)."""
        return self.lasting is not None and bool(self.lasting.members) and self.lasting.leader is None

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def has_all_members_joined(self) -> bool:
        return self.awaiting_joins == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports_protocols(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        if self.is_empty:
            return bool(protocol_type and protocols)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        return any(self.supported_protocols.get(name, 0) == count for name in protocols)

    def select_protocol(self) -> str:
        """The protocol with the most votes; at a tie the one that got its first vote first."""
        count = len(self.members)
        candidates = {name for name, supporters in self.supported_protocols.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.vote(candidates)
            votes[name] = votes.get(name, 0) + 1
        return max(votes, key=votes.__getitem__)

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        if group_instance_id is not None:
            current = self.static_members.get(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    @property
    def subscribed_topics(self) -> frozenset[str] | None:
        """What the members of a consumer group subscribe to; None where that cannot be known."""
        if not self._subscription_known:
            self._subscribed_topics = self._read_subscriptions()
            self._subscription_known = True
        return self._subscribed_topics

    def is_subscribed_to(self, topic: str) -> bool:
        """On the safe side: a consumer group whose subscription cannot be read counts as subscribed."""
        topics = self.subscribed_topics
        return self.uses_consumer_protocol if topics is None else topic in topics

    def _read_subscriptions(self) -> frozenset[str] | None:
        if not self.uses_consumer_protocol:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = decode_subscribed_topics(member.protocols.get(self.protocol_name, b""))
            if subscribed is None:
                return None
            topics.update(subscribed)
        return frozenset(topics)

    # -- members ------------------------------------------------------------------------------------------------

    def add_member(self, member: ClassicMember, protocol_type: str) -> None:
        if not self.members:
            self.protocol_type = protocol_type
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        self._count_protocols(member, 1)
        if member.join_waiter is not None:
            self.awaiting_joins += 1

    def remove_member(self, member: ClassicMember) -> None:
        """The caller has answered its waiters and stopped its session."""
        del self.members[member.member_id]
        self._count_protocols(member, -1)
        if member.join_waiter is not None:
            self.awaiting_joins -= 1
        if member.group_instance_id is not None:
            del self.static_members[member.group_instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_syncs.discard(member.member_id)

    def replace_member_id(self, old: ClassicMember, new: ClassicMember) -> None:
        """A static member came back under a new id: it takes the place, the assignment and the lead of the old."""
        assert old.group_instance_id is not None
        was_leader = self.leader_id == old.member_id
        self.remove_member(old)
        self.add_member(new, self.protocol_type or "")
        new.assignment = old.assignment
        if was_leader:
            self.leader_id = new.member_id

    def set_protocols(self, member: ClassicMember, protocols: dict[str, bytes]) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)

    def set_join_waiter(self, member: ClassicMember, waiter: Waiter) -> Waiter | None:
        """Returns the waiter it had before, which now has to be told."""
        previous = member.join_waiter
        member.join_waiter = waiter
        if previous is None:
            self.awaiting_joins += 1
        return previous

    def take_join_waiter(self, member: ClassicMember) -> Waiter | None:
        waiter = member.join_waiter
        if waiter is not None:
            member.join_waiter = None
            self.awaiting_joins -= 1
        return waiter

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is among those that joined; False if nobody did."""
        if self.leader_id is not None and self.members[self.leader_id].join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader_id = member.member_id
                return True
        return False

    def _count_protocols(self, member: ClassicMember, delta: int) -> None:
        counts = self.supported_protocols
        for name in member.protocols:
            count = counts.get(name, 0) + delta
            if count:
                counts[name] = count
            else:
                del counts[name]

    # -- generations --------------------------------------------------------------------------------------------

    def begin_generation(self, now_wall_ms: int) -> None:
        """All members of the next generation are known; the leader's assignment is awaited."""
        self.generation += 1
        self.protocol_name = self.select_protocol()
        self.pending_syncs = set(self.members)
        self.enter(GroupState.COMPLETING_REBALANCE, now_wall_ms)
        self._subscription_known = False

    def become_empty(self, generation: int, now_wall_ms: int) -> None:
        self.generation = generation
        self.protocol_name = None
        self.leader_id = None
        self.pending_syncs.clear()
        self.enter(GroupState.EMPTY, now_wall_ms)
        self._subscription_known = False

    def enter(self, state: GroupState, now_wall_ms: int) -> None:
        self.state = state
        self.state_timestamp_ms = now_wall_ms
        self.is_initial_rebalance = False

    # -- replay -------------------------------------------------------------------------------------------------

    def replay(self, value: GroupMetadataValue) -> None:
        """Members that are here keep what is not lasting (waiters, sessions, their other protocols)."""
        self.lasting = value
        self.protocol_type = value.protocol_type or None
        recorded = {member.member_id for member in value.members}
        for member in [member for member in self.members.values() if member.member_id not in recorded]:
            self.remove_member(member)
        if not value.members:
            self.become_empty(value.generation, value.current_state_timestamp)
            return
        for record in value.members:
            self._replay_member(record, value.protocol or "")
        self.generation = value.generation
        self.protocol_name = value.protocol
        self.leader_id = value.leader if value.leader in self.members else next(iter(self.members))
        self.enter(GroupState.STABLE, value.current_state_timestamp)
        self._subscription_known = False

    def _replay_member(self, record: GroupMetadataValue.MemberMetadata, protocol: str) -> None:
        member = self.members.get(record.member_id)
        if member is None:
            rebalance_timeout_ms = record.rebalance_timeout
            member = ClassicMember(
                self.group_id,
                record.member_id,
                record.group_instance_id,
                record.client_id,
                record.client_host,
                record.session_timeout,
                record.session_timeout if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
                {protocol: record.subscription},
            )
            self.add_member(member, self.protocol_type or "")
        elif member.protocols.get(protocol) != record.subscription:
            self.set_protocols(member, {protocol: record.subscription})
        member.assignment = record.assignment
