"""Random lives of groups: clients join, sync, fall silent, crash and double; the log refuses; the broker restarts.

After every step the shard is looked over (see `World.check`), and a shard rebuilt from the log must be the same in
all that lasts. In the end nobody acts any more: every group must become empty and every waiter must be answered.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.groups.classic.group import ClassicGroup, GroupState
from penstock.groups.decision import Decision, Now
from penstock.groups.group_deletion import GroupDeletion
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.leave_group import LeaveGroupRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest
from penstock.wire.generated.records_group import GroupMetadataKey, GroupMetadataValue
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.records import decode_group_record, encode_coordinator_key, encode_coordinator_value
from tests.groups.story import CONFIG, CountingRng, subscription

PROTOCOLS = [{"range": subscription("t")}, {"sticky": b"s", "range": subscription("t,u")}, {"range": b"!"}]


class Client:
    def __init__(self, name: str, group_id: str, instance: str | None) -> None:
        self.name = name
        self.group_id = group_id
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []  # of the last generation, if it leads it


class World:
    def __init__(self, delay_ms: int) -> None:
        self.config = replace(
            CONFIG,
            min_session_timeout_ms=1,
            initial_rebalance_delay_ms=delay_ms,
            max_size=4,
            new_member_join_timeout_ms=30_000,
            offsets_retention_ms=100_000,
            offsets_retention_check_interval_ms=20_000,
        )
        self.rng = CountingRng()
        self.log: list[tuple[bytes, bytes | None]] = []
        self.steady_ms = 0
        self.refuse_next = False
        self.waiter_count = 0
        self.waiting: dict[int, tuple[Client, int]] = {}  # waiter → client and the generation it synced for
        self.leaders: dict[tuple[str, int], str] = {}
        self.shard = GroupShard(self.config, self.rng)
        self.shard.finish_load(self.now)
        # two in a group of their own, two more, and two that were given the same instance id by mistake
        self.clients = [Client(f"c{n}", "g" if n else "h", "i" if n > 3 else None) for n in range(6)]

    @property
    def now(self) -> Now:
        return Now(self.steady_ms, 1_000_000 + self.steady_ms)

    def new_waiter(self, client: Client, generation: int = -1) -> int:
        self.waiter_count += 1
        self.waiting[self.waiter_count] = (client, generation)
        return self.waiter_count

    def apply(self, decision: Decision) -> None:
        if decision.records and self.refuse_next:
            self.refuse_next = False
            decision = self.shard.refused(decision, ErrorCode.NOT_ENOUGH_REPLICAS, self.now)
            assert not decision.records
        for record in decision.records:
            value = None if record.value is None else encode_coordinator_value(record.value, record.version)
            self.log.append((encode_coordinator_key(record.key), value))
            self.shard.replay(record.key, record.value)
        # A group that is gone begins with generation 1 should its name be used again.
        self.leaders = {place: leader for place, leader in self.leaders.items() if place[0] in self.shard.groups}
        for waiter, response in decision.answers:
            client, generation = self.waiting.pop(waiter)  # KeyError: answered twice
            self.hear(client, generation, response)

    def hear(self, client: Client, generation: int, response: Any) -> None:
        if isinstance(response, JoinGroupResponse):
            client.member_id = response.member_id
            if not response.error_code:
                client.generation = response.generation_id
                client.members = [member.member_id for member in response.members]
                if client.members and not response.skip_assignment:
                    leads = client.instance or response.member_id
                    assert self.leaders.setdefault((client.group_id, client.generation), leads) == leads
        elif isinstance(response, SyncGroupResponse):
            expected = f"{client.instance or client.member_id}@{generation}"
            assert response.assignment.decode() in (expected, "")
        elif response in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    # -- what clients do --------------------------------------------------------------------------------------------

    def join(self, client: Client, choice: int) -> None:
        protocols = PROTOCOLS[choice % 3 if choice < 6 else 0]
        request = JoinGroupRequest(
            client.group_id,
            5_000 + 1_000 * choice,
            8_000 + 4_000 * (choice % 3),
            client.member_id,
            client.instance,
            "consumer",
            [JoinGroupRequest.JoinGroupRequestProtocol(*item) for item in protocols.items()],
        )
        version = (3, 5, 9)[choice % 3]
        waiter = self.new_waiter(client)
        self.apply(self.shard.decide_join(request, client.name, "/h", version, waiter, self.now))

    def sync(self, client: Client, choice: int) -> None:
        group = self.shard.groups.get(client.group_id)
        plan = []
        for member_id in client.members:
            member = group.members.get(member_id) if group else None
            name = (member.group_instance_id if member else None) or member_id
            plan.append(
                SyncGroupRequest.SyncGroupRequestAssignment(member_id, f"{name}@{client.generation}".encode())
            )
        request = SyncGroupRequest(
            client.group_id, client.generation, client.member_id, client.instance, assignments=plan
        )
        self.apply(self.shard.decide_sync(request, self.new_waiter(client, client.generation), self.now))

    def heartbeat(self, client: Client, choice: int) -> None:
        request = HeartbeatRequest(client.group_id, client.generation, client.member_id, client.instance)
        self.shard.heartbeat(request, self.steady_ms)

    def leave(self, client: Client, choice: int) -> None:
        member_id = "" if choice == 0 else client.member_id
        identity = LeaveGroupRequest.MemberIdentity(member_id, client.instance)
        request = LeaveGroupRequest(client.group_id, members=[identity])
        self.apply(self.shard.decide_leave(request, self.new_waiter(client), self.now))

    def commit(self, client: Client, choice: int) -> None:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic("t" if choice < 4 else "u")
        topic.partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(choice % 3, choice, -1, None)]
        generation = -1 if choice == 0 else client.generation
        request = OffsetCommitRequest(
            client.group_id, generation, client.member_id, client.instance, 30_000 if choice == 1 else -1, [topic]
        )
        waiter = self.new_waiter(client)
        self.apply(self.shard.decide_commit_offsets(request, 9, waiter, self.now))

    def crash(self, client: Client, choice: int) -> None:
        client.member_id, client.generation, client.members = "", -1, []

    def delete_group(self, client: Client, choice: int) -> None:
        waiter = self.new_waiter(client)
        self.apply(self.shard.decide_delete_groups(GroupDeletion([client.group_id]), waiter, self.now))

    # -- what befalls them ------------------------------------------------------------------------------------------

    def advance(self, client: Client, choice: int) -> None:
        self.pass_time((100, 1_000, 2_999, 3_000, 5_000, 8_000, 12_000, 40_000)[choice])

    def pass_time(self, ms: int) -> None:
        end_ms = self.steady_ms + ms
        while (next_ms := self.shard.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.steady_ms = max(self.steady_ms, next_ms)
            while (decision := self.shard.decide_timeout(self.now)) is not None:
                self.apply(decision)
        self.steady_ms = end_ms

    def refuse(self, client: Client, choice: int) -> None:
        self.refuse_next = True

    def restart(self, client: Client, choice: int) -> None:
        for waiter, response in self.shard.resign():
            assert response is ErrorCode.NOT_COORDINATOR
            del self.waiting[waiter]
        self.shard = self.rebuilt()
        self.apply(self.shard.finish_load(self.now))
        self.leaders.clear()  # generations that were never written are given out again

    def rebuilt(self) -> GroupShard:
        shard = GroupShard(self.config, self.rng)
        for key, value in self.log:
            shard.replay(*decode_group_record(key, value))
        return shard

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        parked = []
        for group in self.shard.groups.values():
            check_group(group)
            for member in group.members.values():
                parked += [w for w in (member.join_waiter, member.sync_waiter) if w is not None]
        assert sorted(parked) == sorted(self.waiting)  # nobody is lost
        assert lasting_state(self.rebuilt()) == lasting_state(self.shard)
        pending = sum(len(group.pending_joins) for group in self.shard.groups.values())
        assert self.shard._load.pending_members == pending

    def check_log(self) -> None:
        generations: dict[str, int] = {}
        for raw_key, raw_value in self.log:
            key, value = decode_group_record(raw_key, raw_value)
            if isinstance(key, GroupMetadataKey):
                if value is None:
                    generations.pop(key.group, None)
                else:
                    assert isinstance(value, GroupMetadataValue)
                    assert value.generation >= generations.get(key.group, 0)
                    generations[key.group] = value.generation


def check_group(group: ClassicGroup) -> None:
    members = list(group.members.values())
    assert group.awaiting_joins == sum(member.join_waiter is not None for member in members)
    assert group.static_members == {m.group_instance_id: m.member_id for m in members if m.group_instance_id}
    for name, count in group.supported_protocols.items():
        assert count == sum(name in member.protocols for member in members)
    assert group.pending_syncs <= set(group.members)
    assert not group.pending_joins.keys() & group.members.keys()
    if members:
        assert group.leader_id in group.members
        assert len(members) in group.supported_protocols.values()  # something all support
    for member in members:
        assert member.session.armed or member.keeps_session
        assert member.join_waiter is None or member.sync_waiter is None
    assert all(timer.armed for timer in group.pending_joins.values())
    check_state(group)


def check_state(group: ClassicGroup) -> None:
    members = group.members.values()
    if group.state is GroupState.EMPTY:
        assert not group.members
    elif group.state is GroupState.PREPARING_REBALANCE:
        assert group.join_timer.armed
        assert not any(member.sync_waiter for member in members)
    else:
        assert group.members
        assert not any(member.join_waiter for member in members)
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert group.sync_timer.armed
            assert group.leader_id in group.pending_syncs
        else:
            assert group.sync_timer.armed or not group.pending_syncs
            assert not any(member.sync_waiter for member in members)


def lasting_state(shard: GroupShard) -> dict[str, Any]:
    """What the log knows. A stable group lives by it, unless a static member's new id could not be written."""
    return {
        group.group_id: (group.lasting, shard.offsets_of(group.group_id))
        for group in shard.groups.values()
        if group.lasting is not None or shard.offsets_of(group.group_id)
    }


def check_stable_groups(world: World) -> None:
    for group in world.shard.groups.values():
        if group.state is GroupState.STABLE:
            assert group.lasting is not None
            assert group.lasting.generation == group.generation
            written = {m.group_instance_id or m.member_id: m.assignment for m in group.lasting.members}
            assert written == {m.group_instance_id or m.member_id: m.assignment for m in group.members.values()}


ACTIONS = [
    *[World.join] * 6,
    *[World.sync] * 6,
    *[World.heartbeat] * 2,
    *[World.advance] * 4,
    World.leave,
    *[World.commit] * 2,
    World.crash,
    World.refuse,
    World.restart,
    World.delete_group,
]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=70)


@given(steps=STEPS, delay_ms=st.sampled_from([0, 3_000]))
@settings(max_examples=600, deadline=None)
def test_random_lives(steps: Sequence[tuple[Any, int, int]], delay_ms: int) -> None:
    world = World(delay_ms)
    for action, client, choice in steps:
        action(world, world.clients[client], choice)
        world.check()
        check_stable_groups(world)
    world.refuse_next = False
    # Nobody acts any more. The longest a member can hang on: its join, a rebalance, its session.
    world.pass_time(90_000)
    world.check()
    assert not world.waiting
    assert all(group.is_empty for group in world.shard.groups.values())
    # And after the retention nothing is left at all.
    world.pass_time(200_000)
    world.check()
    assert not world.shard.groups
    world.check_log()
