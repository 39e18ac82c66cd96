"""Three metadata drivers with real files: elect, commit, fail over, catch up by log or snapshot, change voters."""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.broker import metadata_floor
from penstock.broker.metadata_driver import AmongStrangers, MetadataUnavailable, NotController
from penstock.broker.metadata_store import MetadataUnreadable
from penstock.metadata.snapshot import parse_snapshot_name
from penstock.model.errors import ErrorCode, Refusal
from penstock.quorum.control_records import voters_in
from penstock.quorum.voters import Endpoint
from penstock.records.batch import iter_headers
from tests.quorum.driver_cluster import DriverCluster
from tests.waiting import eventually_async


def live(path: Path, story: Callable[[DriverCluster], Awaitable[None]], voters: int = 3, **settings: object) -> None:
    async def main() -> None:
        async with DriverCluster(path, voters, **settings) as cluster:
            await story(cluster)
            assert not [node.failures for node in cluster.running.values() if node.failures]

    asyncio.run(main())


def test_one_leads_and_all_follow(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(7)
        await cluster.all_have(7)
        others = [node for node in cluster.running.values() if node is not leader]
        for node in others:
            assert node.driver.leader_id == leader.number
            assert node.driver.leader_address == ("localhost", leader.number)
            assert not node.driver.is_active
            with pytest.raises(NotController):
                await node.change(8)
        assert leader.driver.leader_id == leader.number
        assert leader.leaderships == [True]

    live(tmp_path, story)


def test_voters_are_pinned(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await eventually_async(lambda: _core(leader).voters.is_pinned)
        await leader.change(1)
        await cluster.all_have(1)
        for node in cluster.running.values():
            assert _core(node).voters.keys == {each.key for each in cluster.running.values()}
        content = leader.store.log.read_bytes(0, 1 << 20)
        assert isinstance(content, bytes)
        ((_, voters),) = voters_in(content)
        assert voters.by_id[2].endpoints == (Endpoint("CONTROLLER", "localhost", 2),)

    live(tmp_path, story)


def _core(node):  # type: ignore[no-untyped-def]
    assert node.driver.quorum is not None
    return node.driver.quorum.core


@pytest.mark.parametrize("number", [3, 4], ids=["a voter", "an observer"])
def test_a_node_of_another_cluster_learns_that_it_is(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(cluster: DriverCluster) -> None:
        if number in cluster.running:
            await cluster.stop(number)
            cluster.path = tmp_path / "new"
            cluster.path.mkdir()
        leader = await cluster.leader()
        cluster.ids[number] = "other"
        stranger = await cluster.start(number)
        with pytest.raises(AmongStrangers, match=r"\d, \d"):
            async with asyncio.timeout(10):
                await stranger.driver.wait_active_controller_known()
        await leader.driver.wait_active_controller_known()
        await leader.change(1)

    live(tmp_path, story)
    by_the_stranger = "is of another cluster than this node, which is of other"  # the others may say it of it, too
    said = [record.message for record in caplog.records if by_the_stranger in record.message]
    assert len(said) == len(set(said)) >= 2, "once of each"


def test_a_killed_leader_is_replaced_quickly(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(1)
        await cluster.all_have(1)
        began = time.monotonic()
        await cluster.kill(leader.number)
        second = await cluster.leader()
        await second.change(2)
        took = time.monotonic() - began
        print(f"next committed change after {took * 1000:.0f} ms")
        assert took < 3
        await cluster.all_have(2)
        again = await cluster.start(leader.number)
        await cluster.all_have(2)
        assert not again.driver.is_active
        assert second.driver.epoch == again.driver.epoch, "the one that came back disturbs nobody"

    live(tmp_path, story, controller_quorum_fetch_timeout_ms=1_000, controller_quorum_election_timeout_ms=500)


def test_a_leader_that_stops_hands_over(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        began = time.monotonic()
        await cluster.stop(leader.number)
        second = await cluster.leader()
        await second.change(3)
        assert time.monotonic() - began < 3
        await cluster.all_have(3)
        assert leader.leaderships == [True, False]
        assert cluster.requests["EndQuorumEpochRequest"] == 2

    live(tmp_path, story, controller_quorum_fetch_timeout_ms=20_000, controller_quorum_election_timeout_ms=500)


def test_a_voter_without_room_for_its_vote_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It votes for nobody, yet knows whom the others have elected; with room it follows."""

    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        full = cluster.running[1 if leader.number != 1 else 2]

        def no_room(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(full.store, "write_election_state", no_room)
            await cluster.stop(leader.number)
            second = await cluster.leader()
            await second.change(3)
            await eventually_async(lambda: full.driver.leader_id == second.number)
            assert full.driver.lacks_room
            assert full.value is None
        await cluster.all_have(3)
        assert second.driver.epoch == full.driver.epoch
        assert not full.driver.lacks_room

    live(tmp_path, story, voters=5)


def test_a_leader_that_is_cut_off_answers_nothing(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        old = await cluster.leader()
        await old.change(1)
        await cluster.all_have(1)
        cluster.cut_off.add(old.number)
        lost = asyncio.ensure_future(old.change(99))
        new = await cluster.leader()
        assert new is not old
        await new.change(2)
        with pytest.raises(NotController):
            await lost
        assert old.value == "1"
        cluster.cut_off.clear()
        await cluster.all_have(2)
        assert old.driver.pending.cluster_config.get("num.partitions") == "2"
        assert not old.driver.is_active

    live(tmp_path, story)


def test_a_node_that_was_away_catches_up_by_log(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        away = next(number for number in cluster.running if number != leader.number)
        await cluster.kill(away)
        for value in range(1, 30):
            await leader.change(value)
        await cluster.start(away)
        await cluster.all_have(29)

    live(tmp_path, story)


@pytest.mark.parametrize("at", ["content", "offset", "length"])
def test_a_leader_whose_log_has_rotted_puts_a_snapshot_in_its_place(tmp_path: Path, at: str) -> None:
    """Nobody could follow it, and nobody may take what it says now for what was decided."""

    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        away = next(number for number in cluster.running if number != leader.number)
        await cluster.kill(away)
        (file,) = (leader.path / "__cluster_metadata-0").glob("*.log")
        before = file.stat().st_size
        for value in range(1, 30):
            await leader.change(value)
        await cluster.all_have(29)
        content = bytearray(file.read_bytes())
        batch = next(position for position, _ in iter_headers(content) if position > (before + len(content)) // 2)
        content[batch + {"content": 70, "offset": 6, "length": 9}[at]] ^= 1
        file.write_bytes(content)
        node = await cluster.start(away)
        await cluster.all_have(29)
        assert cluster.requests["FetchSnapshotRequest"] >= 1
        await cluster.stop(leader.number)
        await cluster.start(leader.number)
        await cluster.all_have(29)
        assert not node.failures

    live(tmp_path, story)


def test_a_start_on_less_than_was_committed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may never have had it. So it is when a leader wants it cut."""
    monkeypatch.setattr(metadata_floor, "_INTERVAL_S", 0.02)

    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        other = next(node for node in cluster.running.values() if node is not leader)
        await leader.change(1)
        await cluster.all_have(1)
        await eventually_async(lambda: other.store.floor.offset == other.driver.end_offset)
        with pytest.raises(MetadataUnreadable, match=r"wants .* cut"):
            await other.driver._replica.truncate(other.store.floor.offset - 1)
        (file,) = (other.path / "__cluster_metadata-0").glob("*.log")
        await cluster.kill(other.number)
        content = file.read_bytes()
        file.write_bytes(content[:-1])
        with pytest.raises(MetadataUnreadable, match="damaged at offset"):
            await cluster.start(other.number)
        file.write_bytes(content)
        await cluster.start(other.number)
        await leader.change(2)
        await cluster.all_have(2)

    live(tmp_path, story)


def _snapshots(path: Path, number: int) -> list[int]:
    names = (path / str(number) / "__cluster_metadata-0").iterdir()
    return sorted(found.end_offset for entry in names if (found := parse_snapshot_name(entry.name)))


def test_a_node_that_was_away_catches_up_by_snapshot(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await eventually_async(lambda: _core(leader).voters.is_pinned)
        away = next(number for number in cluster.running if number != leader.number)
        await cluster.kill(away)
        for value in range(1, 60):
            await leader.change(value)
        await eventually_async(lambda: leader.store.log.log_start_offset > 20)
        node = await cluster.start(away)
        await cluster.all_have(59)
        assert cluster.requests["FetchSnapshotRequest"] >= 1
        assert node.store.log.log_start_offset > 0
        assert _core(node).voters == _core(leader).voters
        await leader.change(60)
        await cluster.all_have(60)
        other = next(n for n in cluster.running.values() if n is not leader and n is not node)
        assert _snapshots(tmp_path, other.number), "followers take snapshots too"

    live(tmp_path, story, metadata_log_max_record_bytes_between_snapshots=1_000)


def test_all_stop_and_come_back(tmp_path: Path) -> None:
    async def first(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        for value in range(1, 40):
            await leader.change(value)
        await cluster.all_have(39)

    async def second(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await cluster.all_have(39)
        assert _core(leader).voters.is_pinned
        await leader.change(40)
        await cluster.all_have(40)

    live(tmp_path, first, metadata_log_max_record_bytes_between_snapshots=1_000)
    live(tmp_path, second, metadata_log_max_record_bytes_between_snapshots=1_000)


def test_a_voter_joins_and_one_leaves(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(1)
        fourth = await cluster.start(4)
        await cluster.all_have(1)
        assert not _core(fourth).is_voter
        quorum = leader.driver.quorum
        assert quorum is not None
        assert await quorum.add_voter(fourth.key, fourth.driver.controller_endpoints, 5_000) is None
        await eventually_async(lambda: all(len(_core(node).voters) == 4 for node in cluster.running.values()))
        assert _core(fourth).is_voter
        again = await quorum.add_voter(fourth.key, (), 1_000)
        assert isinstance(again, Refusal)
        assert again.code == ErrorCode.DUPLICATE_VOTER
        assert await quorum.remove_voter(leader.key, 5_000) is None, "the leader itself"
        await eventually_async(lambda: not leader.driver.is_active)
        new = await cluster.leader()
        await new.change(2)
        await cluster.all_have(2)
        assert leader.number not in _core(new).voters.by_id
        assert leader.driver.leader_id == new.number, "it follows as an observer"

    live(tmp_path, story)


def test_a_voter_is_added_without_waiting_for_the_commit(tmp_path: Path) -> None:
    """AckWhenCommitted = false."""

    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(1)
        second = await cluster.start(2)
        await cluster.all_have(1)
        quorum = leader.driver.quorum
        assert quorum is not None
        endpoints = second.driver.controller_endpoints
        leader.driver.committed = lambda _: asyncio.sleep(60)  # type: ignore[assignment, method-assign]
        assert await asyncio.wait_for(quorum.add_voter(second.key, endpoints, 900, until_committed=False), 5) is None
        assert len(_core(leader).voters) == 2
        del leader.driver.committed
        await leader.change(2)

    live(tmp_path, story, voters=1)


def test_one_node_grows_to_two(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(5)
        second = await cluster.start(2)
        await cluster.all_have(5)
        quorum = leader.driver.quorum
        assert quorum is not None
        assert await quorum.add_voter(second.key, second.driver.controller_endpoints, 5_000) is None
        await leader.change(6)
        await cluster.all_have(6)
        await cluster.stop(1)
        assert await eventually_async(lambda: not second.driver.is_active), "one of two is no majority"
        await cluster.start(1)
        await cluster.leader()
        await cluster.all_have(6)

    live(tmp_path, story, voters=1)


def test_power_of_all_is_lost_with_an_uncommitted_tail(tmp_path: Path) -> None:
    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(1)
        await cluster.all_have(1)
        followers = [number for number in cluster.running if number != leader.number]
        for number in followers:
            await cluster.kill(number)
        lost = asyncio.ensure_future(leader.change(99))
        await eventually_async(lambda: leader.driver.pending.cluster_config.get("num.partitions") == "99")
        await eventually_async(lambda: leader.store.log.synced_end_offset == leader.store.log.end_offset)
        await cluster.kill(leader.number)
        lost.cancel()
        for number in followers:
            await cluster.start(number)
        new = await cluster.leader()
        await new.change(2)
        old = await cluster.start(leader.number)
        await cluster.all_have(2)
        assert old.driver.pending.cluster_config.get("num.partitions") == "2", "99 was cut off, in log and image"

    live(tmp_path, story)


def test_a_bug_in_who_listens_ends_the_node(tmp_path: Path) -> None:
    """It must not stay leader with a queue that nobody works off."""

    async def story(cluster: DriverCluster) -> None:
        leader = await cluster.leader()
        await leader.change(1)
        await cluster.all_have(1)

        def stumble(*_: object) -> None:
            raise KeyError("of nobody's")

        leader.driver.add_listener(stumble)
        with pytest.raises(MetadataUnavailable):
            await asyncio.wait_for(leader.change(2), 5)
        assert [str(error) for error in leader.failures] == [repr("of nobody's")]
        assert not leader.driver.is_active
        leader.failures.clear()
        await cluster.kill(leader.number)
        second = await cluster.leader()
        await second.change(3)
        await cluster.all_have(3)

    live(tmp_path, story)
