"""Offsets in transactions against a model that knows only the rule: what was written last, of what counts, stands."""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import ErrorCode, Refusal
from penstock.records.markers import EndMarker
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from tests.groups.fakes import user_topic
from tests.groups.test_group_driver import join_and_sync
from tests.transactions_broker.fakes import MarkedPartition, TransactionalGroups, passed_over, run

GROUPS, TOPICS, PRODUCERS = ("g", "h"), ("t", "u"), (1, 2)
PartitionOf = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
TopicOf = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic


class Key(NamedTuple):
    group: str
    topic: str
    partition: int


def transactional_commit(
    producer_id: int, key: Key, offset: int, epoch: int = 0, generation: int = -1, member_id: str = ""
) -> TxnOffsetCommitRequest:
    topic = TopicOf(key.topic, user_topic(key.topic).id, [PartitionOf(key.partition, offset, -1, None)])
    return TxnOffsetCommitRequest("x", key.group, producer_id, epoch, generation, member_id, None, [topic])


async def commit_in_transaction(
    world: TransactionalGroups, producer_id: int, key: Key, offset: int, epoch: int = 0, **member: object
) -> ErrorCode:
    request = transactional_commit(producer_id, key, offset, epoch, **member)  # type: ignore[arg-type]
    answer = await world.service.commit_transactional_offsets(request, lambda: ErrorCode.NONE)
    if isinstance(answer, TxnOffsetCommitResponse):
        return ErrorCode(answer.topics[0].partitions[0].error_code)
    return answer


async def commit_plainly(world: TransactionalGroups, key: Key, offset: int) -> None:
    part = OffsetCommitRequest.OffsetCommitRequestPartition(key.partition, offset, -1, None)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(key.topic, user_topic(key.topic).id, [part])
    answer = await world.service.commit_offsets(OffsetCommitRequest(key.group, topics=[topic]), 9)
    assert isinstance(answer, OffsetCommitResponse)


async def end(world: TransactionalGroups, producer_id: int, commit: bool, epoch: int = 0) -> ErrorCode:
    return await world.service.write_marker(0, EndMarker(producer_id, epoch, 0, commit))


async def offsets(world: TransactionalGroups, group: str, require_stable: bool = False) -> dict[Key, int]:
    """Every offset; −2 where it is not told because it is unstable."""
    wanted = [OffsetFetchRequest.OffsetFetchRequestTopics(topic, partition_indexes=[0, 1]) for topic in TOPICS]
    request = OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=wanted)
    answer = await world.service.fetch_offsets(request, require_stable)
    assert isinstance(answer, OffsetFetchResponse.OffsetFetchResponseGroup)
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return {
        Key(group, topic.name, each.partition_index): -2 if each.error_code == unstable else each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }


class Model:
    """The log as a list; everything else follows from it."""

    def __init__(self) -> None:
        self.place = 0
        self.standing: dict[Key, tuple[int, int]] = {}  # place in the log and offset; −1: deleted
        self.pending: dict[int, dict[Key, tuple[int, int]]] = {}

    def write(self, key: Key, offset: int) -> None:
        self.place += 1
        self.standing[key] = (self.place, offset)

    def write_in_transaction(self, producer_id: int, key: Key, offset: int) -> None:
        self.place += 1
        self.pending.setdefault(producer_id, {})[key] = (self.place, offset)

    def end(self, producer_id: int, commit: bool) -> None:
        for key, written in self.pending.pop(producer_id, {}).items():
            if commit and written > self.standing.get(key, (0, 0)):
                self.standing[key] = written

    def delete_where(self, **fields: str) -> None:
        keys = {*self.standing, *(key for keys in self.pending.values() for key in keys)}
        for key in keys:
            if all(getattr(key, name) == value for name, value in fields.items()):
                self.write(key, -1)

    def offset(self, key: Key) -> int:
        return self.standing.get(key, (0, -1))[1]

    def is_unstable(self, key: Key) -> bool:
        """Something is pending that would count if it was committed now."""
        return any(keys[key] > self.standing.get(key, (0, 0)) for keys in self.pending.values() if key in keys)


# Few, so that they meet.
KEYS = st.sampled_from([Key("g", "t", 0), Key("g", "t", 0), Key("g", "u", 0), Key("h", "t", 1)])
OFFSETS = st.integers(0, 99)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), KEYS, OFFSETS),
        st.tuples(st.just("in transaction"), st.sampled_from(PRODUCERS), KEYS, OFFSETS),
        st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
        st.tuples(st.just("delete offset"), KEYS),
        st.tuples(st.just("delete group"), st.sampled_from(GROUPS)),
        st.tuples(st.just("delete topic"), st.sampled_from(TOPICS)),
        st.tuples(st.just("restart")),
    ),
    max_size=25,
)


async def take(step: tuple[object, ...], world: TransactionalGroups, model: Model) -> None:
    match step:
        case ("plain", Key() as key, int(offset)):
            await commit_plainly(world, key, offset)
            model.write(key, offset)
        case ("in transaction", int(producer_id), Key() as key, int(offset)):
            assert await commit_in_transaction(world, producer_id, key, offset) is ErrorCode.NONE
            model.write_in_transaction(producer_id, key, offset)
        case ("end", int(producer_id), bool(commit)):
            assert await end(world, producer_id, commit) is ErrorCode.NONE
            model.end(producer_id, commit)
        case ("delete offset", Key() as key):
            part = OffsetDeleteRequest.OffsetDeleteRequestPartition(key.partition)
            topic = OffsetDeleteRequest.OffsetDeleteRequestTopic(key.topic, [part])
            await world.service.delete_offsets(OffsetDeleteRequest(key.group, [topic]))
            model.write(key, -1)
        case ("delete group", str(group)):
            await world.service.delete_groups([group])
            model.delete_where(group=group)
        case ("delete topic", str(name)):
            world.delete_topic(name)
            world.topics[name] = user_topic(name)
            model.delete_where(topic=name)
        case _:
            world.restart()


async def check(world: TransactionalGroups, model: Model) -> None:
    for group in GROUPS:
        told = await offsets(world, group)
        assert told == {key: model.offset(key) for key in told}
        stable = await offsets(world, group, require_stable=True)
        assert stable == {key: -2 if model.is_unstable(key) else model.offset(key) for key in stable}


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_offsets_stand_in_the_order_of_the_log(steps: list[tuple[object, ...]]) -> None:
    async def test() -> None:
        world = TransactionalGroups()
        model = Model()
        for step in steps:
            await take(step, world, model)
            await check(world, model)
        world.restart()
        await check(world, model)
        for producer_id in PRODUCERS:
            await end(world, producer_id, commit=True)
            model.end(producer_id, commit=True)
        await check(world, model)
        led = world.service._leadership.active[0]
        assert led.shard.pending_offset_count == 0, "nothing is left behind"
        world.service.stop()

    run(test)


def test_answers_wait_for_the_commit() -> None:
    async def test() -> None:
        world = TransactionalGroups()
        key = Key("g", "t", 0)
        await offsets(world, "g")
        world.partition.auto_commit = False
        commit = asyncio.ensure_future(commit_in_transaction(world, 1, key, 5))
        marker = asyncio.ensure_future(end(world, 1, commit=True))
        await passed_over()
        fetch = asyncio.ensure_future(offsets(world, "g"))
        await passed_over()
        assert not any(each.done() for each in (commit, marker, fetch))
        world.partition.commit()
        assert await commit is ErrorCode.NONE
        assert await marker is ErrorCode.NONE
        assert (await fetch)[key] == 5
        world.service.stop()

    run(test)


def test_a_refused_commit_leaves_nothing_pending() -> None:
    async def test() -> None:
        world = TransactionalGroups()
        key = Key("g", "t", 0)
        world.partition.refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "no")
        assert await commit_in_transaction(world, 1, key, 5) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await end(world, 1, commit=True) is ErrorCode.NOT_ENOUGH_REPLICAS
        world.partition.refusal = None
        assert (await offsets(world, "g", require_stable=True))[key] == -1
        assert await end(world, 1, commit=True) is ErrorCode.NONE
        assert (await offsets(world, "g"))[key] == -1
        assert (await world.service.list_groups([], []))[1] == []
        world.service.stop()

    run(test)


def test_a_producer_of_an_older_epoch_is_refused() -> None:
    async def test() -> None:
        world = TransactionalGroups()
        key = Key("g", "t", 0)
        assert await commit_in_transaction(world, 1, key, 5, epoch=3) is ErrorCode.NONE
        assert await end(world, 1, commit=False, epoch=4) is ErrorCode.NONE
        assert await commit_in_transaction(world, 1, key, 6, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(world, 1, commit=True, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await commit_in_transaction(world, 1, key, 6, epoch=4) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_members_are_checked_when_they_are_named() -> None:
    async def test() -> None:
        world = TransactionalGroups()
        key = Key("g", "t", 0)
        joined = await join_and_sync(world)
        member = {"generation": joined.generation_id, "member_id": joined.member_id}
        assert await commit_in_transaction(world, 1, key, 5, **member) is ErrorCode.NONE
        stale = {**member, "generation": joined.generation_id - 1}
        assert await commit_in_transaction(world, 1, key, 5, **stale) is ErrorCode.ILLEGAL_GENERATION
        stranger = {**member, "member_id": "stranger"}
        assert await commit_in_transaction(world, 1, key, 5, **stranger) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit_in_transaction(world, 1, key, 6) is ErrorCode.NONE, "clients before KIP-447"
        nobody = await commit_in_transaction(world, 1, Key("none", "t", 0), 5, **member)
        assert nobody is ErrorCode.GROUP_ID_NOT_FOUND
        world.service.stop()

    run(test)


def test_a_transaction_keeps_its_group_alive() -> None:
    async def test() -> None:
        world = TransactionalGroups(offsets_retention_minutes=1, offsets_retention_check_interval_ms=1)
        key = Key("g", "t", 0)
        await commit_plainly(world, key, 1)
        await commit_plainly(world, Key("g", "t", 1), 1)
        await commit_in_transaction(world, 1, key, 2)
        world.clock.jumped_ms += 1
        long_ago = world.clock.now_ms() + 61_000
        world.clock.now_ms = lambda: long_ago  # type: ignore[method-assign]
        world.service._wake()
        assert (await offsets(world, "g"))[Key("g", "t", 1)] == -1, "expired"
        assert (await offsets(world, "g"))[key] == 1, "about to be committed again"
        await end(world, 1, commit=True)
        assert (await offsets(world, "g"))[key] == 2
        world.clock.now_ms = lambda: long_ago + 61_000  # type: ignore[method-assign]
        world.clock.jumped_ms += 10
        world.service._wake()
        assert (await world.service.list_groups([], []))[1] == []
        world.service.stop()

    run(test)


@pytest.mark.parametrize("commit", [True, False])
def test_the_loader_reads_what_the_log_says(commit: bool) -> None:
    """Markers of producers that it has never heard of, and a compacted log in which only the marker is left."""

    async def test() -> None:
        world = TransactionalGroups()
        assert isinstance(world.partition, MarkedPartition)
        await commit_in_transaction(world, 7, Key("g", "t", 0), 1)
        await end(world, 7, commit)
        await end(world, 8, commit)
        world.partition.batches = world.partition.batches[1:]
        world.partition.log_start_offset = 1
        world.restart()
        assert set((await offsets(world, "g")).values()) == {-1}
        world.service.stop()

    run(test)
