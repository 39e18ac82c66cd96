"""The driver: what is answered when, with logs in memory that commit, refuse and lose as told."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from penstock.broker import coordinator_batches, coordinator_leadership, group_driver, offset_sweeper
from penstock.groups import offset_sweep
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.hashing import coordinator_partition
from penstock.wire.generated.heartbeat import HeartbeatRequest
from penstock.wire.generated.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from penstock.wire.records import decode_group_record
from tests.groups.fakes import GroupWorld, offsets_topic, user_topic
from tests.groups.story import subscription
from tests.waiting import eventually_async

T = TypeVar("T")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(bounded())


def join_request(group: str = "g", member_id: str = "", session_ms: int = 10_000) -> JoinGroupRequest:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol("range", subscription("t"))
    return JoinGroupRequest(group, session_ms, 10_000, member_id, None, "consumer", [protocol])


def commit_request(offset: int, group: str = "g", topic: str = "t", partitions: int = 1) -> OffsetCommitRequest:
    parts = [OffsetCommitRequest.OffsetCommitRequestPartition(n, offset, -1, None) for n in range(partitions)]
    named = OffsetCommitRequest.OffsetCommitRequestTopic(topic, user_topic(topic).id, parts)
    return OffsetCommitRequest(group, topics=[named])


async def join(world: GroupWorld, group: str = "g", **more: Any) -> JoinGroupResponse:
    answer = await world.service.join_group(join_request(group, **more), "c", "/h", 3)
    assert isinstance(answer, JoinGroupResponse)
    return answer


async def join_and_sync(world: GroupWorld, group: str = "g", **more: Any) -> JoinGroupResponse:
    joined = await join(world, group, **more)
    plan = [SyncGroupRequest.SyncGroupRequestAssignment(joined.member_id, b"x")]
    request = SyncGroupRequest(group, joined.generation_id, joined.member_id, assignments=plan)
    synced = await world.service.sync_group(request)
    assert isinstance(synced, SyncGroupResponse)
    return joined


async def fetched(world: GroupWorld, group: str = "g") -> dict[tuple[str, int], int] | ErrorCode:
    request = OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=None)
    answer = await world.service.fetch_offsets(request)
    if isinstance(answer, ErrorCode):
        return answer
    return {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}


def started(awaitable: Awaitable[T]) -> "asyncio.Future[T]":
    return asyncio.ensure_future(awaitable)


async def passed_over(times: int = 5) -> None:
    """Lets everything run that can run."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def test_answers_wait_for_the_commit() -> None:
    async def test() -> None:
        world = GroupWorld()
        joined = await join_and_sync(world)
        world.partition.auto_commit = False
        commit = started(world.service.commit_offsets(commit_request(5, group="s"), 9))
        # Reading, joining and more commits come after it in the log, so they wait for it too; heartbeats do not.
        fetch = started(fetched(world, "s"))
        rejoin = started(world.service.join_group(join_request(member_id=joined.member_id), "c", "/h", 3))
        await passed_over()
        assert not commit.done()
        assert not fetch.done()
        assert not rejoin.done()
        assert world.service.heartbeat(HeartbeatRequest("g", 2, joined.member_id)) is ErrorCode.NONE
        world.partition.commit()
        assert isinstance(await commit, OffsetCommitResponse)
        assert await fetch == {("t", 0): 5}
        assert isinstance(await rejoin, JoinGroupResponse)
        world.service.stop()

    run(test)


def test_a_shard_led_elsewhere_sends_everybody_away() -> None:
    async def test() -> None:
        world = GroupWorld()
        joined = await join_and_sync(world)
        parked = started(world.service.join_group(join_request(), "c", "/h", 3))
        await passed_over()
        world.partition.auto_commit = False
        commit = started(world.service.commit_offsets(commit_request(5, group="s"), 9))
        await passed_over()
        world.lead(offsets_topic(1, leader=2, leader_epoch=1))
        assert await parked is ErrorCode.NOT_COORDINATOR
        assert await commit is ErrorCode.NOT_COORDINATOR
        # Watermarks that come afterwards mean nothing to the old answers. (P18)
        world.partition.commit()
        assert await world.service.commit_offsets(commit_request(6), 9) is ErrorCode.NOT_COORDINATOR
        assert world.service.heartbeat(HeartbeatRequest("g", 1, joined.member_id)) is ErrorCode.NOT_COORDINATOR
        assert await world.service.list_groups([], []) == (ErrorCode.NONE, [])
        world.lead(None)
        assert await fetched(world) is ErrorCode.NOT_COORDINATOR
        # It comes back, with a new epoch, and what was committed is there.
        world.partition.leader_epoch = 2
        world.lead(offsets_topic(1, leader_epoch=2))
        assert await fetched(world, "s") == {("t", 0): 5}
        world.service.stop()

    run(test)


def test_lost_records_make_the_shard_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_leadership, "_RELOAD_SECONDS", 0.01)

    async def test() -> None:
        world = GroupWorld()
        await join_and_sync(world)
        await world.service.commit_offsets(commit_request(5, group="s"), 9)
        world.partition.auto_commit = False
        commit = started(world.service.commit_offsets(commit_request(6, group="s"), 9))
        parked = started(world.service.join_group(join_request(), "c", "/h", 3))
        await passed_over()
        world.partition.lose_uncommitted(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await commit is ErrorCode.NOT_COORDINATOR
        assert await parked is ErrorCode.NOT_COORDINATOR
        assert await fetched(world, "s") is ErrorCode.COORDINATOR_NOT_AVAILABLE

        async def is_back() -> bool:
            return await fetched(world, "s") == {("t", 0): 5}

        await eventually_async(is_back)
        described = await world.service.describe_group("g", 5)
        assert not isinstance(described, ErrorCode)
        assert described.group_state == "Stable"
        world.service.stop()

    run(test)


def test_a_refused_append_changes_nothing() -> None:
    async def test() -> None:
        world = GroupWorld()
        world.partition.refusal = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        answer = await world.service.commit_offsets(commit_request(5), 9)
        assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await fetched(world) == {}
        joined = await join(world)
        request = SyncGroupRequest("g", joined.generation_id, joined.member_id)
        assert await world.service.sync_group(request) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.partition.refusal = None
        joined = await join(world, member_id=joined.member_id)
        assert joined.generation_id == 2
        world.service.stop()

    run(test)


def test_groups_survive_a_restart() -> None:
    async def test() -> None:
        world = GroupWorld(partitions=4)
        members = {group: await join_and_sync(world, group) for group in ("a", "b", "c", "d", "e")}
        for offset in range(300):
            request = commit_request(offset, group="simple", partitions=2)
            assert isinstance(await world.service.commit_offsets(request, 9), OffsetCommitResponse)
        world.restart()
        error, groups = await world.service.list_groups([], [])
        assert error is ErrorCode.NONE
        assert sorted(group.group_id for group in groups) == ["a", "b", "c", "d", "e", "simple"]
        for group, joined in members.items():
            request = HeartbeatRequest(group, joined.generation_id, joined.member_id)
            assert world.service.heartbeat(request) is ErrorCode.NONE
        assert await fetched(world, "simple") == {("t", 0): 299, ("t", 1): 299}
        results = await world.service.delete_groups(["simple", "a", "simple", "nogroup"])
        assert {result.group_id: result.error_code for result in results} == {
            "simple": ErrorCode.NONE,
            "a": ErrorCode.NON_EMPTY_GROUP,
            "nogroup": ErrorCode.GROUP_ID_NOT_FOUND,
        }
        world.restart()
        assert await fetched(world, "simple") == {}
        world.service.stop()

    run(test)


def test_requests_wait_for_the_load_a_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        world = GroupWorld()
        joined = await join_and_sync(world)
        await world.service.commit_offsets(commit_request(5, group="s"), 9)
        world.partition.may_read.clear()
        world.restart()
        monkeypatch.setattr(coordinator_leadership, "LOAD_WAIT_SECONDS", 0.01)
        assert await fetched(world, "s") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await world.service.list_groups([], []))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        # A heartbeat is believed.
        assert world.service.heartbeat(HeartbeatRequest("g", 1, joined.member_id)) is ErrorCode.NONE
        monkeypatch.setattr(coordinator_leadership, "LOAD_WAIT_SECONDS", 10)
        waiting = started(fetched(world, "s"))
        await passed_over()
        assert not waiting.done()
        # Topics deleted meanwhile are not forgotten.
        world.delete_topic("u")
        world.partition.may_read.set()
        assert await waiting == {("t", 0): 5}
        world.service.stop()

    run(test)


def test_resigning_while_loading() -> None:
    async def test() -> None:
        world = GroupWorld()
        await join_and_sync(world)
        world.partition.may_read.clear()
        world.restart()
        waiting = started(fetched(world))
        await passed_over()
        world.lead(offsets_topic(1, leader=2, leader_epoch=1))
        assert await waiting is ErrorCode.NOT_COORDINATOR
        world.partition.may_read.set()
        world.service.stop()

    run(test)


def test_a_log_that_cannot_be_read_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_leadership, "_RELOAD_SECONDS", 0.01)

    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5), 9)
        world.partition.read_error = ErrorCode.KAFKA_STORAGE_ERROR
        world.restart()
        assert await fetched(world) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.partition.read_error = None

        async def is_back() -> bool:
            return await fetched(world) == {("t", 0): 5}

        await eventually_async(is_back)
        world.service.stop()

    run(test)


@pytest.mark.parametrize("place", [6, 8, 16, 20, -1], ids=["offset", "length", "format", "checksum", "content"])
def test_a_batch_that_is_damaged_is_no_state(place: int) -> None:
    """Else a group would go on from somewhere else: the replica is reported, and another may lead instead."""

    async def test() -> None:
        world = GroupWorld()
        for offset in (3, 4, 5):
            await world.service.commit_offsets(commit_request(offset), 9)
        base, batch = world.partition.batches[1]
        rotten = bytearray(batch)
        rotten[place] ^= 1
        world.partition.batches[1] = (base, bytes(rotten))
        world.restart()
        assert await fetched(world) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert world.partition.suspected == [base]
        world.partition.batches[1] = (base, batch)

        async def is_back() -> bool:
            return await fetched(world) == {("t", 0): 5}

        await eventually_async(is_back)
        world.service.stop()

    run(test)


def test_sessions_end_on_the_loop() -> None:
    async def test() -> None:
        world = GroupWorld()
        for number in range(50):
            await join_and_sync(world, f"g{number}", session_ms=40)

        async def all_empty() -> bool:
            _, groups = await world.service.list_groups(["Empty"], [])
            return len(groups) == 50

        await eventually_async(all_empty)
        world.service.stop()

    run(test)


def test_members_are_heard_before_they_are_judged_after_a_stall() -> None:
    async def test() -> None:
        world = GroupWorld()
        lives = await join_and_sync(world, "lives", session_ms=1_000)
        await join_and_sync(world, "silent", session_ms=1_000)
        world.clock.jumped_ms = 60_000  # as if the process had been stopped for a minute
        world.service._wake()
        request = HeartbeatRequest("lives", lives.generation_id, lives.member_id)
        assert world.service.heartbeat(request) is ErrorCode.NONE

        async def empty() -> list[str]:
            _, groups = await world.service.list_groups(["Empty"], [])
            return [group.group_id for group in groups]

        assert await eventually_async(empty) == ["silent"]
        assert world.service.heartbeat(request) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_the_first_who_is_heard_after_a_stall_does_not_get_the_others_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_driver, "_STALL_MS", 30_000)  # however slow this machine is

    async def test() -> None:
        world = GroupWorld()
        members = {group: await join_and_sync(world, group, session_ms=20_000) for group in ("first", "second")}
        requests = [HeartbeatRequest(group, each.generation_id, each.member_id) for group, each in members.items()]
        world.clock.jumped_ms = 60_000
        world.service._wake()
        assert world.service.heartbeat(requests[0]) is ErrorCode.NONE
        await asyncio.sleep(0.05)
        assert world.service.heartbeat(requests[1]) is ErrorCode.NONE
        world.service.stop()

    run(test)


def test_one_stall_holds_up_the_silent_once_however_many_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_driver, "_TIMEOUTS_PER_WAKE", 1)

    async def test() -> None:
        world = GroupWorld()
        for number in range(40):
            await join_and_sync(world, f"g{number}", session_ms=20_000)
        stalls = 0
        wake_at = world.service._wake_at

        def count(deadline_ms: int) -> None:
            nonlocal stalls
            stalls += deadline_ms > world.clock.monotonic() * 1000 and world.service._stalled
            wake_at(deadline_ms)

        monkeypatch.setattr(world.service, "_wake_at", count)
        world.clock.jumped_ms = 60_000
        world.service._wake()

        async def all_empty() -> bool:
            _, groups = await world.service.list_groups(["Empty"], [])
            return len(groups) == 40

        await eventually_async(all_empty)
        assert stalls < 10, "one, and those of the machine"
        world.service.stop()

    run(test)


def test_a_slow_log_is_not_waited_for_for_ever() -> None:
    async def test() -> None:
        world = GroupWorld(offsets_commit_timeout_ms=30)
        world.partition.auto_commit = False
        answer = await world.service.commit_offsets(commit_request(5), 9)
        assert answer is ErrorCode.COORDINATOR_NOT_AVAILABLE
        # It was slow, not lost.
        world.partition.commit()
        assert await fetched(world) == {("t", 0): 5}
        world.service.stop()

    run(test)


def test_clients_that_ask_again_leave_nothing_behind_while_the_log_is_stuck() -> None:
    async def test() -> None:
        world = GroupWorld(offsets_commit_timeout_ms=30)
        await join_and_sync(world)
        world.partition.auto_commit = False
        for offset in range(10):
            answers = await asyncio.gather(
                *(world.service.commit_offsets(commit_request(offset, group=f"s{n}"), 9) for n in range(10))
            )
            assert set(answers) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert len(world.partition.waiters) <= 1
        # Whoever waits is answered as far as the log has come, not only at its end.
        first = started(world.service.commit_offsets(commit_request(20, group="s"), 9))
        await passed_over()
        middle = world.partition.end_offset
        second = started(world.service.commit_offsets(commit_request(21, group="s"), 9))
        await passed_over()
        world.partition.commit(middle)
        assert isinstance(await first, OffsetCommitResponse)
        assert not second.done()
        world.partition.commit()
        assert isinstance(await second, OffsetCommitResponse)
        assert await fetched(world, "s9") == {("t", 0): 9}
        assert not world.partition.waiters
        world.service.stop()

    run(test)


def test_a_load_that_fails_by_a_bug_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(coordinator_leadership, "_RELOAD_SECONDS", 0.2)

    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5), 9)
        with monkeypatch.context() as patch:
            patch.setattr(world.partition, "read_bytes", lambda *_: 1 // 0)
            world.restart()
            assert await fetched(world) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert any(record.exc_info for record in caplog.records), "with its traceback"

        async def is_loaded() -> bool:
            return await fetched(world) == {("t", 0): 5}

        await eventually_async(is_loaded)
        world.service.stop()

    run(test)


def test_a_shard_that_is_lost_as_soon_as_it_is_loaded_is_loaded_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition has another leader already when the load ends, and what is uncommitted here will never be."""

    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5), 9)
        world.partition.auto_commit = False
        started(world.service.commit_offsets(commit_request(6), 9))
        await passed_over()
        with monkeypatch.context() as patch:
            patch.setattr(world.partition, "when_committed", lambda _, told: told(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            world.restart()
            assert await fetched(world) is ErrorCode.COORDINATOR_NOT_AVAILABLE, "nothing is served from it"
        world.partition.auto_commit = True
        world.partition.commit()

        async def is_loaded() -> bool:
            return await fetched(world) == {("t", 0): 6}

        await eventually_async(is_loaded)
        world.service.stop()

    monkeypatch.setattr(coordinator_leadership, "_RELOAD_SECONDS", 0.2)
    run(test)


def test_offsets_of_deleted_topics_go() -> None:
    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5, topic="t"), 9)
        await world.service.commit_offsets(commit_request(6, topic="u"), 9)
        world.delete_topic("u")
        assert await fetched(world) == {("t", 0): 5}
        world.restart()
        assert await fetched(world) == {("t", 0): 5}
        world.service.stop()

    run(test)


def test_offsets_of_a_topic_that_was_deleted_while_nobody_led_go_with_the_next_leader() -> None:
    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5, topic="t"), 9)
        await world.service.commit_offsets(commit_request(6, topic="u"), 9)
        world.lead(offsets_topic(1, leader=-1, leader_epoch=1))
        world.delete_topic("u")
        world.lead(offsets_topic(1, leader_epoch=2))
        assert await fetched(world) == {("t", 0): 5}
        world.service.stop()

    run(test)


def test_offsets_of_deleted_topics_go_once_the_log_takes_records_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_sweep, "_RETRY_MS", 20)

    async def test() -> None:
        world = GroupWorld()
        await world.service.commit_offsets(commit_request(5, topic="t"), 9)
        await world.service.commit_offsets(commit_request(6, topic="u"), 9)
        world.partition.refusal = Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, "")
        world.delete_topic("u")
        await asyncio.sleep(0.05)
        assert await fetched(world) == {("t", 0): 5, ("u", 0): 6}
        world.partition.refusal = None

        async def is_gone() -> bool:
            return await fetched(world) == {("t", 0): 5}

        await eventually_async(is_gone)
        world.service.stop()

    run(test)


def test_a_topic_with_many_offsets_is_forgotten_in_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two shards: they share what a turn of the loop has room for."""
    monkeypatch.setattr(offset_sweeper, "_STEP", 100)

    async def test() -> None:
        world = GroupWorld(partitions=2)
        world.topics["t"] = user_topic("t", 1_000)
        world.lead(offsets_topic(2, leader_epoch=1))
        for group in ("g", "h", "i", "j"):
            await world.service.commit_offsets(commit_request(5, group, partitions=500), 9)
        shards = [led.shard for led in world.service._leadership.active.values()]
        assert all(shard.offset_count for shard in shards)
        counts = [2_000]
        world.delete_topic("t")
        while counts[-1]:
            counts.append(sum(shard.offset_count for shard in shards))
            await asyncio.sleep(0)
        assert max(before - after for before, after in pairwise(counts)) <= 100
        world.service.stop()

    run(test)


def test_many_records_become_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small ones will do: a busy machine takes its time.
    monkeypatch.setattr(coordinator_batches, "_BATCH_BYTES", 32 * 1024)

    async def test() -> None:
        world = GroupWorld()
        request = commit_request(7, partitions=2_000)
        assert isinstance(await world.service.commit_offsets(request, 9), OffsetCommitResponse)
        assert 1 < len(world.partition.batches) < 10
        assert all(len(batch) < 40_000 for _, batch in world.partition.batches)
        world.restart()
        offsets = await fetched(world)
        assert not isinstance(offsets, ErrorCode)
        assert len(offsets) == 2_000
        await world.service.delete_groups(["g"])
        world.restart()
        assert await fetched(world) == {}
        world.service.stop()

    run(test)


def test_a_group_goes_to_the_partition_of_its_name() -> None:
    async def test() -> None:
        world = GroupWorld(partitions=50)
        for group in ("orders", "payments", "connect-cluster", "x"):
            await world.service.commit_offsets(commit_request(1, group=group), 9)
            records = world.partitions[coordinator_partition(group, 50)].records()
            keys = [decode_group_record(key or b"", value)[0] for key, value in records]
            assert group in {key.group for key in keys}  # type: ignore[attr-defined]
        world.service.stop()

    run(test)
