"""Clients of groups for random lives: one of the newer protocol, one of the classic, which may share a group.

They do what real ones do, in the most daring way: they use a partition as soon as they are told of it, and use one
they are to give up until they are made to let go. `owned` is what they use.
"""

from typing import Any, NamedTuple

from penstock.groups.embedded_protocol import decode_assignment, decode_subscription
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from penstock.wire.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.records import encode_versioned

Place = tuple[bytes, int]  # topic id, partition: a topic that is made again is another
SUBSCRIPTIONS = [["t"], ["t", "u"], ["u"], ["t"]]
RETRIABLE = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
REGEXES = [None, None, None, "u.*"]


class Client:
    """`world` takes its requests to the shard and brings the answers, if they are not lost."""

    def __init__(self, world: Any, name: str, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.incarnation = 0
        self.member_id = ""
        self.topics = ["t"]
        self.owned: set[Place] = set()
        # Woken from an old snapshot, or no member any more: it may use anything until it hears from the coordinator.
        self.is_suspect = False

    def forget(self) -> None:
        """The process died: nobody uses its partitions, and nobody has told the coordinator."""
        self.incarnation += 1
        self.member_id = ""
        self.owned.clear()
        self.is_suspect = False

    def act(self) -> None:
        """Takes the next step of a client that behaves."""
        raise AssertionError("each protocol has its own")


class Snapshot(NamedTuple):
    member_id: str
    epoch: int
    owned: set[Place]
    told: set[Place]


class ConsumerClient(Client):
    def __init__(self, world: Any, name: str, instance: str | None) -> None:
        super().__init__(world, name, instance)
        self.epoch = 0
        self.regex: str | None = None
        self.told: set[Place] = set()
        self.says_all = True  # after an error, and to join
        self.subscription_said = False
        self.snapshots: list[Snapshot] = []

    def forget(self) -> None:
        super().forget()
        self.leave_epoch()

    def leave_epoch(self) -> None:
        self.epoch = 0
        self.owned.clear()
        self.told = set()
        self.says_all = True

    def subscribe(self, choice: int) -> None:
        self.topics = SUBSCRIPTIONS[choice % len(SUBSCRIPTIONS)]
        self.regex = REGEXES[choice % len(REGEXES)]
        self.subscription_said = False

    def let_go(self) -> None:
        self.owned &= self.told

    def wake_up_from(self, choice: int) -> None:
        """As it was some epochs ago, as after a long sleep of its machine. Within an epoch nobody could tell.

        So one that has crashed meanwhile does not come back into the epoch that the coordinator still knows it in,
        either: a real client there knows that an answer is missing and says everything, the snapshot does not.
        """
        last = {(old.member_id, old.epoch): old for old in self.snapshots}.values()
        older = [
            old
            for old in last
            if (old.member_id != self.member_id or 0 < old.epoch < self.epoch)
            and old.epoch != self.world.epoch_of(old.member_id)
        ]
        if older:
            self.incarnation += 1
            self.member_id, self.epoch, owned, told = older[choice % len(older)]
            self.owned, self.told = set(owned), set(told)
            self.says_all, self.subscription_said = False, False
            self.is_suspect = True

    def act(self) -> None:
        self.let_go()
        self.beat(says_owned=True)

    def beat(self, says_owned: bool, lost: bool = False) -> None:
        if not self.member_id:
            self.member_id = f"{self.name}.{self.incarnation}"
        # Whoever waits for an answer longer than it cares to, or had none, sends everything again.
        self.says_all |= self.world.is_awaited_by(self)
        everything = self.says_all or not self.subscription_said
        owned = None
        if self.says_all or says_owned:
            owned = self.world.by_topic_id(self.owned)
        request = ConsumerGroupHeartbeatRequest(
            self.world.group_id,
            self.member_id,
            self.epoch,
            self.instance,
            None,
            7_000 if self.says_all else -1,
            self.topics if everything else None,
            (self.regex or "") if everything else None,
            None,
            owned,
        )
        self.subscription_said = True
        self.says_all |= lost
        self.world.send_beat(self, request, lost)

    def leave(self, for_now: bool) -> None:
        epoch = -2 if for_now and self.instance is not None else -1
        request = ConsumerGroupHeartbeatRequest(self.world.group_id, self.member_id, epoch, self.instance)
        if self.member_id:
            self.world.send_beat(self, request, lost=True)
        self.incarnation += 1
        self.member_id = ""
        self.leave_epoch()

    def hear(self, answer: Any) -> None:
        self.is_suspect = False
        if isinstance(answer, ConsumerGroupHeartbeatResponse):
            self.says_all = False
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.told = self.world.places(answer.assignment.topic_partitions)
                self.owned |= self.told
            self.snapshots.append(Snapshot(self.member_id, self.epoch, set(self.owned), self.told))
            return
        self.says_all = True
        code = answer.code if isinstance(answer, Refusal) else answer
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.leave_epoch()
        elif code in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
            self.incarnation += 1
            self.member_id = ""
            self.leave_epoch()


class ClassicClient(Client):
    """Eager: gives everything up before it joins. Cooperative: joins with what it has, and gives up what it must."""

    def __init__(self, world: Any, name: str, instance: str | None, eager: bool) -> None:
        super().__init__(world, name, instance)
        self.eager = eager
        self.generation = -1
        self.next_step = "join"
        self.plan: dict[str, bytes] = {}
        self.is_leader = False
        self.places_planned: list[Place] = []
        self.topics_said: list[str] = []

    def forget(self) -> None:
        super().forget()
        self.start_over()

    def start_over(self) -> None:
        self.generation = -1
        self.next_step = "join"
        self.owned.clear()

    def act(self) -> None:
        {"join": self.join, "sync": self.sync, "heartbeat": self.heartbeat, "wait": lambda: None}[self.next_step]()

    def subscribe(self, choice: int) -> None:
        self.topics = SUBSCRIPTIONS[choice % len(SUBSCRIPTIONS)]

    def join(self) -> None:
        if self.eager:
            self.owned.clear()
        held = self.world.by_name(self.owned)
        owned = [ConsumerProtocolSubscription.TopicPartition(*item) for item in held.items()]
        subscription = encode_versioned(ConsumerProtocolSubscription(topics=self.topics, owned_partitions=owned), 1)
        request = JoinGroupRequest(
            self.world.group_id,
            20_000,
            15_000,
            self.member_id,
            self.instance,
            "consumer",
            [JoinGroupRequest.JoinGroupRequestProtocol("any", subscription)],
        )
        self.next_step = "wait"
        self.topics_said = self.topics
        self.world.send_join(self, request)

    def sync(self) -> None:
        plan = [SyncGroupRequest.SyncGroupRequestAssignment(*item) for item in self.plan.items()]
        request = SyncGroupRequest(
            self.world.group_id, self.generation, self.member_id, self.instance, "consumer", "any", plan
        )
        self.next_step = "wait"
        self.world.send_sync(self, request)

    def heartbeat(self) -> None:
        if self.topics != self.topics_said or (
            self.is_leader and self.places_planned != list(self.world.all_places())
        ):
            # It wants something else; or it leads, and sees that the topics have changed.
            self.join()
            return
        request = HeartbeatRequest(self.world.group_id, self.generation, self.member_id, self.instance)
        error = self.world.send_heartbeat(request)
        if error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.next_step = "join"
        elif error is not ErrorCode.NONE:
            self.hear(error)

    def leave(self, for_now: bool) -> None:
        identity = LeaveGroupRequest.MemberIdentity(self.member_id, self.instance)
        if self.member_id:
            self.world.send_leave(self, LeaveGroupRequest(self.world.group_id, members=[identity]))
        self.forget()

    def hear(self, answer: Any) -> None:
        if isinstance(answer, JoinGroupResponse) and answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            self.next_step = "join"
        elif isinstance(answer, JoinGroupResponse):
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.plan = self._make_plan(answer) if not answer.skip_assignment else {}
            # A leader that need not plan, since it came back in time, watches the topics all the same. (KIP-814)
            self.is_leader = answer.leader == answer.member_id
            self.places_planned = [] if answer.skip_assignment else list(self.world.all_places())
            self.next_step = "sync"
        elif isinstance(answer, SyncGroupResponse):
            self._take(answer.assignment)
        elif answer in RETRIABLE:
            self.next_step = "join"  # with all it has
        else:
            if answer in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                self.member_id = ""
            self.start_over()

    def _take(self, assignment: bytes) -> None:
        decoded = decode_assignment(assignment)
        assert decoded is not None
        assigned = self.world.places_by_name(decoded.assigned_partitions)
        gave_up = self.owned - assigned
        self.owned = assigned
        self.next_step = "join" if gave_up and not self.eager else "heartbeat"

    def _make_plan(self, joined: JoinGroupResponse) -> dict[str, bytes]:
        """Everybody keeps what it has and wants; the rest goes to the first that wants it."""
        wants: dict[str, set[str]] = {}
        plan: dict[str, set[Place]] = {}
        for member in joined.members:
            subscription = decode_subscription(member.metadata)
            assert subscription is not None
            wants[member.member_id] = set(subscription.topics)
            plan[member.member_id] = self.world.places_by_name(subscription.owned_partitions)
        taken: set[Place] = set().union(*plan.values())
        names = self.world.topics.names
        for topic, number in self.world.all_places() if plan else ():
            takers = [member for member, topics in wants.items() if names[topic] in topics]
            if (topic, number) not in taken and takers:
                plan[min(takers, key=lambda member: len(plan[member]))].add((topic, number))
        return {
            member: self._encode({place for place in places if names[place[0]] in wants[member]})
            for member, places in plan.items()
        }

    def _encode(self, places: set[Place]) -> bytes:
        entries = [ConsumerProtocolAssignment.TopicPartition(*item) for item in self.world.by_name(places).items()]
        return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=entries), 1)
