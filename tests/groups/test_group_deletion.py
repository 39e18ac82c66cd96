"""Groups with many offsets are deleted in steps; what comes after the first step is another group's."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from penstock.groups import group_deletion
from penstock.groups.decision import Now
from penstock.groups.group_deletion import GroupDeletion
from penstock.groups.group_records import offset_record
from penstock.groups.shard import GroupShard
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.records_group import OffsetCommitValue
from tests.groups.fakes import GroupWorld, offsets_topic
from tests.groups.story import CONFIG, CountingRng
from tests.groups.test_group_driver import commit_request, fetched, join, passed_over, run

NOW = Now(0, 0)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_deletion, "_STEP", 100)


def shard_with(**offset_counts: int) -> GroupShard:
    shard = GroupShard(CONFIG, CountingRng())
    for group_id, count in offset_counts.items():
        for partition in range(count):
            commit(shard, group_id, partition, 1)
    return shard


def commit(shard: GroupShard, group_id: str, partition: int, offset: int, producer_id: int | None = None) -> None:
    record = offset_record(group_id, "t", partition, OffsetCommitValue(offset=offset))
    if producer_id is None:
        shard.replay(record.key, record.value)
    else:
        shard.replay_transactional(producer_id, record.key, record.value)


def step(shard: GroupShard, deletion: GroupDeletion) -> tuple[int, list[str]]:
    """How many records were written, and which groups are done."""
    decision = shard.decide_delete_groups(deletion, None, NOW)
    for record in decision.records:
        shard.replay(record.key, record.value)
    [(_, results)] = decision.answers
    assert not any(result.error_code for result in results)
    return len(decision.records), [result.group_id for result in results]


def test_steps_have_a_size_and_groups_go_whole_where_they_fit() -> None:
    shard = shard_with(a=60, b=60, c=20, large=250, last=1)
    deletion = GroupDeletion(list(shard.groups))
    steps = []
    while not deletion.is_done:
        steps.append(step(shard, deletion))
    assert steps == [(61, ["a"]), (82, ["b", "c"]), (101, []), (100, []), (52, ["large", "last"])]
    assert not shard.groups


def test_what_is_committed_after_the_first_step_stays() -> None:
    shard = shard_with(large=250)
    deletion = GroupDeletion(["large"])
    step(shard, deletion)
    commit(shard, "large", 0, 7)
    commit(shard, "large", 240, 8)
    commit(shard, "large", 241, 9, producer_id=1)
    while not deletion.is_done:
        step(shard, deletion)
    shard.replay_marker(1, True)
    kept = shard.offsets_of("large")["t"]
    assert {partition: committed.offset for partition, committed in kept.items()} == {0: 7, 240: 8, 241: 9}


def test_open_transactions_of_the_deleted_group_commit_nothing() -> None:
    shard = shard_with(large=250)
    for partition in (0, 249, 250):
        commit(shard, "large", partition, 2, producer_id=1)
    deletion = GroupDeletion(["large"])
    while not deletion.is_done:
        step(shard, deletion)
    shard.replay_marker(1, True)
    assert not shard.groups


def test_a_step_looks_at_no_more_offsets_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Counter[str]()

    class Counted(group_deletion._Remaining):
        def __new__(cls, *fields: Any) -> "Counted":
            looks["in all"] += 1
            return super().__new__(cls, *fields)

    monkeypatch.setattr(group_deletion, "_Remaining", Counted)
    shard = shard_with(large=1_000)
    deletion = GroupDeletion(["large"])
    seen = [0]
    while not deletion.is_done:
        step(shard, deletion)
        seen.append(looks["in all"])
        for partition in range(1_000):
            commit(shard, "large", partition, 2)  # so that nothing goes any more, and there is only to look
    assert [after - before for before, after in pairwise(seen)] == [100] * 10


def test_others_have_the_loop_between_the_steps_of_all_shards() -> None:
    async def test() -> None:
        world = GroupWorld(partitions=2)
        names = [f"g{number}" for number in range(40)]
        for name in names:
            await world.service.commit_offsets(commit_request(5, name, partitions=20), 9)
        shards = [led.shard for led in world.service._leadership.active.values()]
        assert all(shard.offset_count for shard in shards)
        counts = [800]
        deleting = asyncio.ensure_future(world.service.delete_groups(names))
        while not deleting.done():
            await asyncio.sleep(0)
            counts.append(sum(shard.offset_count for shard in shards))
        assert max(before - after for before, after in pairwise(counts)) <= 100
        assert {(each.group_id, each.error_code) for each in await deleting} == {(name, 0) for name in names}
        assert counts[-1] == 0
        world.service.stop()

    run(test)


def test_a_deletion_that_is_refused_half_way_tells_what_was_done() -> None:
    async def test() -> None:
        world = GroupWorld()
        for name in ("first", "second", "third"):
            await world.service.commit_offsets(commit_request(5, name, partitions=90), 9)
        world.partition.auto_commit = False
        deleting = asyncio.ensure_future(world.service.delete_groups(["first", "second", "third"]))
        await asyncio.sleep(0.01)
        world.partition.refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "")
        world.partition.commit()
        not_now = ErrorCode.COORDINATOR_NOT_AVAILABLE
        told = [(each.group_id, each.error_code) for each in await deleting]
        assert told == [("first", 0), ("second", not_now), ("third", not_now)]
        world.service.stop()

    run(test)


def test_a_shard_that_goes_elsewhere_half_way_sends_the_rest_after_it() -> None:
    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5, "first", partitions=90), 9)
        await join(world, "second")
        world.partition.auto_commit = False
        deleting = asyncio.ensure_future(world.service.delete_groups(["second", "first", "third"]))
        await asyncio.sleep(0.01)
        world.lead(None)
        assert {each.error_code for each in await deleting} == {ErrorCode.NOT_COORDINATOR}
        world.service.stop()

    run(test)


def test_a_shard_that_is_loaded_again_half_way_is_another_one() -> None:
    async def test() -> None:
        world = GroupWorld()
        for name in ("first", "large", "last"):
            await world.service.commit_offsets(commit_request(5, name, partitions=90 if name != "large" else 250), 9)
        world.partition.auto_commit = False
        deleting = asyncio.ensure_future(world.service.delete_groups(["first", "large", "last"]))
        for _ in range(2):  # all of the first group, some of the second
            await passed_over(10)
            world.partition.commit()
        world.partition.auto_commit = True
        world.lead(offsets_topic(1, leader_epoch=1))
        told = [(each.group_id, each.error_code) for each in await deleting]
        elsewhere = ErrorCode.NOT_COORDINATOR
        assert told == [("first", 0), ("large", elsewhere), ("last", elsewhere)]
        left = await fetched(world, "large")
        assert not isinstance(left, ErrorCode)
        assert len(left) == 150
        # The client tries again.
        assert not any(each.error_code for each in await world.service.delete_groups(["large", "last"]))
        assert await fetched(world, "large") == await fetched(world, "last") == {}
        world.service.stop()

    run(test)
