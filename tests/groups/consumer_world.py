"""A shard, its log, topics and clients: what happens to them, and what must hold whatever happens."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import MemberState, held_by
from penstock.groups.decision import Decision, Job, Now
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.records import decode_group_record, encode_coordinator_key, encode_coordinator_value
from tests.groups.consumer_clients import ClassicClient, Client, ConsumerClient, Place
from tests.groups.story import CONFIG, CountingRng
from tests.groups.topics import Topics

TopicPartitions = ConsumerGroupHeartbeatRequest.TopicPartitions


class World:
    group_id = "g"

    def __init__(self, inline_size: int, assignment_interval_ms: int = 0) -> None:
        self.config = replace(
            CONFIG,
            min_session_timeout_ms=1,
            initial_rebalance_delay_ms=0,
            consumer_session_timeout_ms=12_000,
            consumer_assignment_interval_ms=assignment_interval_ms,
            inline_assignment_size=inline_size,
            new_member_join_timeout_ms=30_000,
            offsets_retention_ms=100_000,
            offsets_retention_check_interval_ms=20_000,
        )
        self.rng = CountingRng()
        self.topics = Topics()
        self.topics.put("t", 3)
        self.topics.put("u", 2)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.steady_ms = 0
        self.appends_before_refusal = -1
        self.waiter_count = 0
        self.waiting: dict[int, tuple[Client, int] | None] = {}  # waiter → who hears the answer, if anybody does
        self.jobs: list[Job] = []
        self.shard = self.rebuilt()
        self.shard.finish_load(self.now)
        self.clients: list[Client] = [
            ConsumerClient(self, "a", None),
            ConsumerClient(self, "b", None),
            ConsumerClient(self, "s", "i"),
            ConsumerClient(self, "z", "i"),  # given the same instance id, by mistake or after a restart
            ClassicClient(self, "x", None, eager=True),
            ClassicClient(self, "y", None, eager=False),
            ClassicClient(self, "w", None, eager=False),
            ClassicClient(self, "v", "i", eager=True),  # likewise, with the other protocol
        ]

    @property
    def now(self) -> Now:
        return Now(self.steady_ms, 1_000_000 + self.steady_ms)

    @property
    def group(self) -> Any:
        return self.shard.groups.get(self.group_id)

    def epoch_of(self, member_id: str) -> int | None:
        """As the coordinator knows it."""
        group = self.group
        member = group.members.get(member_id) if isinstance(group, ConsumerGroup) else None
        return member.epoch if member is not None else None

    # -- the driver's part ------------------------------------------------------------------------------------------

    def apply(self, decision: Decision) -> None:
        while True:
            self.jobs += decision.jobs
            if decision.records and self._is_refused():
                decision = self.shard.refused(decision, ErrorCode.NOT_ENOUGH_REPLICAS, self.now)
                assert not decision.records
            for record in decision.records:
                value = None if record.value is None else encode_coordinator_value(record.value, record.version)
                self.log.append((encode_coordinator_key(record.key), value))
                self.shard.replay(record.key, record.value)
            for waiter, answer in decision.answers:
                self._answer(waiter, answer)
            self._note_outcasts()
            if not decision.is_to_be_continued:
                return
            decision = self.shard.go_on(decision, self.now)

    def _note_outcasts(self) -> None:
        """Whoever is taken out may not know it, even when a join of long ago lets it in again."""
        members: Collection[str] = self.group.members if self.group is not None else ()
        for client in self.clients:
            if isinstance(client, ConsumerClient) and client.epoch > 0 and client.member_id not in members:
                client.is_suspect = True
            if isinstance(client, ConsumerClient) and not members:
                client.snapshots.clear()  # the epochs of a group made anew begin anew

    def _is_refused(self) -> bool:
        self.appends_before_refusal -= 1
        return self.appends_before_refusal == -1

    def _answer(self, waiter: int, answer: Any) -> None:
        heard_by = self.waiting.pop(waiter)  # KeyError: answered twice
        if heard_by is not None and heard_by[0].incarnation == heard_by[1]:
            heard_by[0].hear(answer)

    def new_waiter(self, client: Client | None, lost: bool = False) -> int:
        """A client hears the answer to its last request only, unless that is lost."""
        self.waiter_count += 1
        for waiter, heard_by in self.waiting.items():
            if heard_by is not None and heard_by[0] is client:
                self.waiting[waiter] = None
        self.waiting[self.waiter_count] = None if client is None or lost else (client, client.incarnation)
        return self.waiter_count

    def is_awaited_by(self, client: Client) -> bool:
        """Whether a request of this client is under way."""
        return (client, client.incarnation) in self.waiting.values()

    # -- what clients send ------------------------------------------------------------------------------------------

    def send_beat(self, client: Client, request: ConsumerGroupHeartbeatRequest, lost: bool) -> None:
        waiter = self.new_waiter(client, lost)
        oracle = Oracle(self.group, request)
        decision = self.shard.decide_consumer_heartbeat(request, client.name, "/h", lambda _: True, waiter, self.now)
        oracle.check_answers(decision)
        self.apply(decision)
        oracle.check_instances(self.group)

    def send_join(self, client: Client, request: Any) -> None:
        waiter = self.new_waiter(client)
        self.apply(self.shard.decide_join(request, client.name, "/h", 9, waiter, self.now))

    def send_sync(self, client: Client, request: Any) -> None:
        self.apply(self.shard.decide_sync(request, self.new_waiter(client), self.now))

    def send_heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        return self.shard.heartbeat(request, self.steady_ms)

    def send_leave(self, client: Client, request: Any) -> None:
        self.apply(self.shard.decide_leave(request, self.new_waiter(None), self.now))

    def commit(self, client: Client, place: Place) -> ErrorCode:
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(self.topics.names[place[0]], place[0])
        topic.partitions = [OffsetCommitRequest.OffsetCommitRequestPartition(place[1], 1, -1, None)]
        epoch = client.generation if isinstance(client, ClassicClient) else client.epoch  # type: ignore[attr-defined]
        request = OffsetCommitRequest(self.group_id, epoch, client.member_id, client.instance, -1, [topic])
        decision = self.shard.decide_commit_offsets(request, 9, self.new_waiter(None), self.now)
        [(_, answer)] = decision.answers
        self.apply(decision)
        if isinstance(answer, OffsetCommitResponse):
            return ErrorCode(answer.topics[0].partitions[0].error_code)
        assert isinstance(answer, ErrorCode)
        return answer

    # -- partitions -------------------------------------------------------------------------------------------------

    def places(self, topics: list[Any]) -> set[Place]:
        return {(topic.topic_id, number) for topic in topics for number in topic.partitions}

    def places_by_name(self, topics: list[Any]) -> set[Place]:
        there = [(self.topics.image.topic(entry.topic), entry.partitions) for entry in topics]
        return {(topic.id, number) for topic, numbers in there if topic is not None for number in numbers}

    def by_name(self, places: set[Place]) -> dict[str, list[int]]:
        by_name: dict[str, list[int]] = {}
        for topic_id, number in sorted(places):
            if self.topics.image.topic_by_id(topic_id) is not None:
                by_name.setdefault(self.topics.names[topic_id], []).append(number)
        return by_name

    def there(self, places: set[Place]) -> set[Place]:
        """Nothing can be used of topics that are deleted, whoever has not heard of it."""
        return {place for place in places if self.topics.image.topic_by_id(place[0]) is not None}

    def by_topic_id(self, places: set[Place]) -> list[TopicPartitions]:
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, number in sorted(places):
            by_topic.setdefault(topic_id, []).append(number)
        return [TopicPartitions(*item) for item in by_topic.items()]

    def held_by(self, member: Any) -> set[Place]:
        return {(topic, n) for topic, numbers in held_by(member).items() for n in numbers}

    def all_places(self) -> Iterator[Place]:
        for topic in sorted(self.topics.image.topics.values(), key=lambda each: each.name):
            for number in range(len(topic.partitions)):
                yield topic.id, number

    # -- what befalls them ------------------------------------------------------------------------------------------

    def change_topics(self, name: str, partitions: int) -> None:
        created = self.topics.put(name, partitions)
        self.shard.follow(self.topics.image, [name], created)

    def delete_topic(self, name: str) -> None:
        if self.topics.image.topic(name) is not None:
            self.topics.delete(name)
            self.shard.follow(self.topics.image, [name], False)
            self.shard.forget_topics([name])
            while (decision := self.shard.decide_sweep(self.now, 100)) is not None:
                self.apply(decision)

    def pass_time(self, ms: int) -> None:
        end_ms = self.steady_ms + ms
        while (next_ms := self.shard.next_deadline_ms()) is not None and next_ms <= end_ms:
            self.steady_ms = max(self.steady_ms, next_ms)
            while (decision := self.shard.decide_timeout(self.now)) is not None:
                self.apply(decision)
        self.steady_ms = end_ms

    def run_job(self, fails: bool = False) -> None:
        if self.jobs:
            job = self.jobs.pop(0)
            job.failed = fails
            if not fails:
                job.run()
            self.apply(self.shard.decide_job(job, self.now))

    def restart(self) -> None:
        for waiter, answer in self.shard.resign():
            assert answer is ErrorCode.NOT_COORDINATOR
            self._answer(waiter, answer)
        self.jobs.clear()
        self.shard = self.rebuilt()
        self.apply(self.shard.finish_load(self.now))

    def rebuilt(self) -> GroupShard:
        """From a log compacted as the loader does: of each key the last record."""
        latest: dict[bytes, bytes | None] = {}
        for key, value in self.log:
            latest.pop(key, None)
            latest[key] = value
        shard = GroupShard(self.config, self.rng)
        for key, value in latest.items():
            shard.replay(*decode_group_record(key, value))
        shard.follow(self.topics.image, (), True)
        return shard

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        group = self.group
        if isinstance(group, ConsumerGroup):
            check_consumer_group(self, group)
        parked = [waiter for job in self.jobs for waiter in job.waiters]
        if isinstance(group, ConsumerGroup):
            parked += [each.reply.waiter for each in group.parked.values()]
        elif isinstance(group, ClassicGroup):
            check_classic_group(self, group)
            for member in group.members.values():
                parked += [w for w in (member.join_waiter, member.sync_waiter) if w is not None]
        assert sorted(parked) == sorted(self.waiting)  # nobody is lost

    def check_log(self) -> None:
        assert lasting_state(self.rebuilt()) == lasting_state(self.shard)


class Oracle:
    """What must come of a heartbeat, from the group before it."""

    def __init__(self, group: Any, request: ConsumerGroupHeartbeatRequest) -> None:
        self.request = request
        self.members = dict(group.members) if isinstance(group, ConsumerGroup) else {}
        self.static_members = dict(group.static_members) if isinstance(group, ConsumerGroup) else {}

    def check_answers(self, decision: Decision) -> None:
        """A member that goes on must be in its epoch, or one behind with nothing that it should not have."""
        member = self.members.get(self.request.member_id)
        epoch = self.request.member_epoch
        if epoch <= 0 or (member is not None and epoch == member.epoch):
            return
        owned = self.request.topic_partitions
        is_let_in = (
            member is not None
            and not member.uses_classic_protocol
            and epoch == member.previous_epoch < member.epoch
            and owned is not None
            and all(set(topic.partitions) <= member.assigned.get(topic.topic_id, {}).keys() for topic in owned)
        )
        refused = [answer for _, answer in decision.answers if isinstance(answer, Refusal)]
        assert bool(refused) is not is_let_in

    def check_instances(self, group: Any) -> None:
        """Nobody takes the place of a living static member of the newer protocol."""
        instance = self.request.instance_id
        before = self.members.get(self.static_members.get(instance or "", ""))
        after = group.static_members.get(instance) if isinstance(group, ConsumerGroup) else None
        if before is not None and after is not None and after != before.member_id:
            assert before.epoch == -2 or before.uses_classic_protocol


def check_classic_group(world: World, group: ClassicGroup) -> None:
    """Members have given up what another gets."""
    users: dict[Place, str] = {}
    for client in world.clients:
        is_member = isinstance(client, ClassicClient) and client.member_id in group.members
        for place in client.owned if is_member and not missed_rebalance(client, group.generation) else ():
            assert users.setdefault(place, client.name) == client.name, f"{place} is used twice"


def missed_rebalance(client: Client, generation: int) -> bool:
    """Static members may stay away from the rebalances of a classic group. (KIP-345)"""
    return isinstance(client, ClassicClient) and client.instance is not None and client.generation < generation


def check_consumer_group(world: World, group: ConsumerGroup) -> None:
    assert group.target_epoch <= group.epoch
    owners: dict[Place, str] = {}
    targets: dict[Place, str] = {}
    for member in group.members.values():
        held = world.held_by(member)
        for place in held:
            assert owners.setdefault(place, member.member_id) == member.member_id, f"{place} has two owners"
        for topic, numbers in group.target_of(member.member_id).items():
            for number in numbers:
                # No partition is promised to two.
                assert targets.setdefault((topic, number), member.member_id) == member.member_id
        for client in world.clients:
            is_aware = not client.is_suspect and not missed_rebalance(client, member.epoch)
            if client.member_id == member.member_id and is_aware:
                # The heart of it: nobody uses what is not its own. What is told and what is lost make no difference.
                alien = world.there(client.owned) - held
                assert not alien, f"{client.name} uses {alien}"
        check_member(group, member)
    assert owners == {(topic, n): who for topic, numbers in group.owners.items() for n, who in numbers.items()}
    assert group.targets.keys() <= group.members.keys()
    statics = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id is not None}
    assert group.static_members == statics
    assert all(regex in {m.regex for m in group.members.values()} for regex in group.regexes)
    assert not group.parked or group.assignment_job is not None


def check_member(group: ConsumerGroup, member: Any) -> None:
    assert member.epoch <= group.target_epoch
    assert group.timers[member.member_id].session.armed
    if member.state is MemberState.UNREVOKED_PARTITIONS and not member.uses_classic_protocol and member.epoch > 0:
        assert member.revoking
        assert group.timers[member.member_id].rebalance.armed
    if member.state is not MemberState.UNREVOKED_PARTITIONS:
        assert not member.revoking
    assert not member.regex or member.regex in group.regexes


def lasting_state(shard: GroupShard) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for group in shard.groups.values():
        offsets = shard.offsets_of(group.group_id)
        if isinstance(group, ConsumerGroup):
            state[group.group_id] = (
                offsets,
                group.epoch,
                group.metadata_hash,
                group.target_epoch,
                group.target_timestamp_ms,
                group.members,
                group.static_members,
                group.targets,
                group.owners,
                group.regexes,
            )
        elif group.lasting is not None or offsets:
            state[group.group_id] = (offsets, group.lasting)
    return state
