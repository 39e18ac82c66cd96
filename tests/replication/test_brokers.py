"""Brokers that replicate to each other: produce, fetch, fail over, fall behind, catch up."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker.context import RequestContext
from penstock.broker.handlers import delete_records
from penstock.controller.configs import Change, Op, Resource, decide_incremental_alter_configs
from penstock.controller.decision import Decision
from penstock.log.partition_log import PartitionLog
from penstock.metadata.image import BROKER_RESOURCE
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.replication.leader_state import LeaderState
from penstock.wire.generated.delete_records import DeleteRecordsRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.records_metadata import PartitionChangeRecord
from tests.controller.cluster import directory
from tests.log.logs import NOW_MS, batch, values
from tests.replication.brokers import Brokers, FakePeers, consume_from, produce_to, running


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def all_alike(cluster: Brokers, *numbers: int, topic: str = "a") -> None:
    """All logs hold the same, and everybody knows that it is committed."""
    leader = cluster.leader(topic)

    def alike() -> bool:
        replicas = [cluster.replica(number, topic) for number in numbers]
        return all(
            values(replica.log) == values(leader.log) and replica.high_watermark == leader.log.end_offset
            for replica in replicas
        )

    await cluster.until(alike)


def test_what_is_acknowledged_is_on_every_replica() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            for number in range(5):
                answer = await cluster.produce(f"v{number}")
                assert (answer.error_code, answer.base_offset) == (0, number)
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(3).log) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
            assert cluster.leader().leader_state.isr == {1, 2, 3}  # type: ignore[union-attr]

    run(story)


def test_readers_of_followers_do_not_wait_for_the_next_record() -> None:
    """A commit is told to followers at once where consumers read from them, however long their fetches wait."""

    async def story() -> None:
        selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        async with running(2, replica_selector_class=selector, replica_fetch_wait_max_ms="30000") as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            for number in range(3):
                assert (await cluster.produce(f"v{number}")).error_code == 0
                async with asyncio.timeout(5):
                    found = await consume_from(cluster.brokers[2], number, max_wait_ms=20_000)
                assert (found.error_code, found.high_watermark) == (0, number + 1)
                assert found.records
            requests = len(cluster.brokers[2].peers.requests)  # type: ignore[attr-defined]
            assert requests <= 3 * 3 + 3, "each is told once"

    run(story)


def test_what_a_commit_releases_is_replicated_at_once() -> None:
    """A fetch that commits one record finds what was written because of that, in whichever partition."""

    async def story() -> None:
        async with running(2, replica_fetch_wait_max_ms="30000") as cluster:
            for topic in ("a", "b"):
                cluster.create(topic, replicas=(1, 2), min_insync_replicas="2")
                assert (await cluster.produce("first", topic=topic)).error_code == 0
            released: list[ErrorCode] = []

            def write_more(error: ErrorCode) -> None:
                released.append(error)
                for topic in ("a", "b"):
                    cluster.leader(topic).append(batch("released"), NOW_MS)

            leader = cluster.leader("a")
            leader.append(batch("awaited"), NOW_MS)
            leader.when_committed(leader.log.end_offset, write_more)
            await cluster.until(
                lambda: (
                    values(cluster.replica(2, "a").log)[1:] == [b"awaited", b"released"]
                    and values(cluster.replica(2, "b").log)[1:] == [b"released"]
                )
            )
            assert released == [ErrorCode.NONE]

    run(story)


def test_partitions_are_shared_out_over_fetchers() -> None:
    """Each has one, also when their number changes under way; a fetch that waits holds up its own share only."""

    async def story() -> None:
        async with running(2, num_replica_fetchers="3") as cluster:
            topics = [f"t{number}" for number in range(8)]
            for topic in topics:
                cluster.create(topic, replicas=(1, 2), min_insync_replicas="2")
                assert (await cluster.produce("one", topic=topic)).error_code == 0
            broker = cluster.brokers[2]
            fetchers = broker.replicas.fetchers

            def shares() -> list[int]:
                return [len(fetcher) for fetcher in fetchers._fetchers.values() if len(fetcher)]

            assert sum(shares()) == 8
            assert len(shares()) == 3
            broker.driver.settings = broker.settings.overlay({"num.replica.fetchers": "1"})
            for topic in topics:
                broker.replicas.refresh_settings(cluster.replica(2, topic))
            assert shares() == [8]
            for topic in topics:
                assert (await cluster.produce("two", topic=topic)).error_code == 0
                await all_alike(cluster, 1, 2, topic=topic)

    run(story)


def test_a_leader_fails_and_another_goes_on() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await cluster.stop(1, power_loss=True)
            cluster.fence(1)
            assert cluster.partition().leader == 2
            answer = await cluster.produce("two")
            assert answer.error_code == 0
            await cluster.start(1, clean=False)
            await cluster.until_in_sync(1, 2, 3)
            assert (await cluster.produce("three")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            assert values(cluster.replica(1).log) == [b"one", b"two", b"three"]

    run(story)


def test_an_old_leader_gives_up_what_nobody_else_has() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            cluster.deaf.add(1)
            cluster.fence(1)  # it does not hear of it
            await cluster.until(lambda: cluster.replica(2).is_leader)
            pending = asyncio.create_task(produce_to(cluster.brokers[1], "lost", timeout_ms=30_000))
            assert (await cluster.produce("two")).error_code == 0
            old = cluster.replica(1)
            assert (old.log.end_offset, old.high_watermark, pending.done()) == (2, 1, False)
            cluster.deaf.clear()
            cluster.beat(1)
            cluster.publish()
            assert (await pending).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert values(old.log) == [b"one", b"two"]
            assert cluster.brokers[1].replicas.counters.truncations == 1
            assert cluster.brokers[1].replicas.counters.truncations_below_watermark == 0

    run(story)


def test_an_old_leader_that_wrote_nothing_has_nothing_cut() -> None:
    """Only the epoch in which it led goes: operators are not told of a cut, nor is one counted."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            for leader in (1, 2):
                cluster.fence(leader)
                cluster.beat(leader)
                cluster.publish()
                await cluster.until_in_sync(1, 2, 3)
            assert (await cluster.produce("two")).error_code == 0
            await all_alike(cluster, 1, 2, 3)
            for broker in cluster.brokers.values():
                assert broker.replicas.counters.truncations == 0

    run(story)


def test_a_follower_that_stays_behind_leaves_and_comes_back() -> None:
    async def story() -> None:
        async with running(replica_lag_time_max_ms="50") as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await cluster.stop(3)
            answer = asyncio.create_task(cluster.produce("two"))
            leader = cluster.brokers[1]

            def shrunk() -> bool:
                leader.replicas.shrink_isrs()
                return set(cluster.partition().isr) == {1, 2}

            await cluster.until(shrunk)
            assert (await answer).error_code == 0
            assert leader.replicas.counters.isr_shrinks == 1
            await cluster.start(3)
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert leader.replicas.counters.isr_expands == 1

    run(story)


def test_too_few_in_sync_refuse_acks_all_and_take_acks_one() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            assert (await cluster.produce("one")).error_code == 0
            await cluster.stop(2)
            cluster.fence(2)
            assert (await cluster.produce("two")).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert (await cluster.produce("three", acks=1)).error_code == 0
            leader = cluster.leader()
            assert (leader.log.end_offset, leader.high_watermark) == (2, 1)
            await cluster.start(2)
            await cluster.until_in_sync(1, 2)
            await all_alike(cluster, 1, 2)

    run(story)


def test_a_follower_counts_only_what_it_has_fsynced() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            is_slow = asyncio.Event()
            go_on = threading.Event()
            loop = asyncio.get_running_loop()

            def wait(path: str) -> None:
                if path.endswith(".log"):
                    loop.call_soon_threadsafe(is_slow.set)
                    go_on.wait(10)

            cluster.disks[2].before_sync = wait
            answer = asyncio.create_task(cluster.produce("two"))
            await is_slow.wait()
            follower = cluster.replica(2)
            assert follower.log.end_offset == 2
            assert cluster.leader().log.counted_end_offset == 2 or not answer.done()
            assert cluster.leader().high_watermark == 1
            cluster.disks[2].before_sync = None
            go_on.set()
            assert (await answer).error_code == 0

    run(story)


def test_fetches_of_followers_are_incremental() -> None:
    async def story() -> None:
        async with running(2) as cluster:
            for topic in ("a", "b", "c"):
                cluster.create(topic, (1, 2))
            for topic in ("a", "b", "c"):
                await cluster.produce("one", topic=topic)
                await all_alike(cluster, 1, 2, topic=topic)
            peers = cluster.brokers[2].peers
            before = len(peers.requests)  # type: ignore[attr-defined]
            for number in range(5):
                await cluster.produce(f"more {number}", topic="b")
            later = peers.requests[before + 1 :]  # type: ignore[attr-defined]
            assert later
            assert all(request.session_id and len(request.topics) <= 1 for request in later)

    run(story)


def test_a_leader_that_hears_nobody_sends_its_clients_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.replication")

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            old = cluster.brokers[1]
            old.lifecycle.heard_at = -1e9  # type: ignore[union-attr]
            old.replicas.check_standing()
            assert not old.replicas.is_cut_off  # its followers still come
            for number in (2, 3):
                await cluster.brokers[number].replicas.fetchers.stop()
            waiting = asyncio.create_task(produce_to(old, "two"))
            await cluster.until(lambda: cluster.replica(1).log.end_offset == 2)
            for progress in cluster.replica(1).leader_state.progress.values():  # type: ignore[union-attr]
                progress.last_fetch_ms = progress.last_caught_up_ms = -(10**9)
            old.replicas.check_standing()
            old.replicas.check_standing()
            assert old.replicas.is_cut_off
            assert caplog.text.count("clients are turned away: ") == 1
            assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            row = await produce_to(old, "three")
            assert (row.error_code, row.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
            old.lifecycle.heard_at = old.clock.monotonic()  # type: ignore[union-attr]
            old.replicas.check_standing()
            assert not old.replicas.is_cut_off
            assert caplog.text.count("clients are no longer turned away") == 1
            assert cluster.leader() is old.partitions.find("a", 0)

    run(story)


def test_numbers_of_replication() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            leader = cluster.brokers[1].replicas
            await cluster.until(lambda: leader.survey().largest_lag_records == 0)
            assert leader.survey()[:5] == (1, 0, 0, 0, 0)
            assert cluster.brokers[2].replicas.survey()[:2] == (0, 1)
            assert cluster.brokers[2].replicas.counters.replicated_bytes > 60
            await cluster.stop(3)
            cluster.fence(3)
            await cluster.produce("two")
            assert leader.survey()[2:5] == (1, 0, 1)
            (late,) = [lag for lag in leader.lags() if lag.replica == 3]
            assert (late.records, late.is_in_sync) == (1, False)
            assert late.seconds > 0

    run(story)


def test_a_replica_that_never_had_everything_lags_since_its_leader_knows_it() -> None:
    eligible = lambda *_: False  # noqa: E731
    image = PartitionImage(replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=1, partition_epoch=1)
    state = LeaderState(1, image, 0, 1, 10_000, eligible, 5_000)
    assert [state.progress[replica].behind_ms(7_000) for replica in (2, 3)] == [2_000, 2_000]
    state.note_fetch(2, 7, 10, 0, 10, 8_000)
    state.note_fetch(3, 7, 4, 0, 10, 8_000)  # comes nearer, and is still behind
    assert [state.progress[replica].behind_ms(9_000) for replica in (2, 3)] == [1_000, 4_000]
    moved = image._replace(replicas=(1, 2, 4), partition_epoch=2)
    state.follow(moved, 9_500)
    assert [state.progress[replica].behind_ms(9_600) for replica in (2, 4)] == [1_600, 100]


def test_a_replica_that_moves_takes_everything_along_and_leaves_nothing() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create(replicas=(1, 2))
            for number in range(3):
                await cluster.produce(f"v{number}")
            await all_alike(cluster, 1, 2)
            topic = cluster.image.topic("a")
            assert topic is not None

            def change(replicas: list[int], isr: list[int] | None = None) -> Decision[None]:
                record = PartitionChangeRecord(
                    partition_id=0,
                    topic_id=topic.id,
                    replicas=replicas,
                    isr=isr,
                    directories=[directory(number * 10) for number in replicas],
                )
                return Decision([record], None)

            cluster.run(lambda _: change([1, 2, 3]))
            await cluster.until_in_sync(1, 2, 3)
            cluster.run(lambda _: change([1, 3], [1, 3]))
            await all_alike(cluster, 1, 3)
            assert cluster.brokers[2].logs.get("a", 0) is None
            assert not cluster.brokers[2].replicas.fetchers.followed_count()
            await cluster.until(lambda: "a-0" not in cluster.disks[2].list_dir("/data"))
            assert (await cluster.produce("after")).error_code == 0

    run(story)


def test_deleted_records_are_deleted_everywhere() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create()
            for number in range(4):
                await cluster.produce(f"v{number}")
            kind = DeleteRecordsRequest
            topics = [kind.DeleteRecordsTopic("a", [kind.DeleteRecordsPartition(0, 3)])]
            response = await delete_records.handle(
                cluster.brokers[1], RequestContext(21, 2), kind(topics=topics, timeout_ms=10_000)
            )
            row = response.topics[0].partitions[0]
            assert (row.error_code, row.low_watermark) == (0, 3)
            assert {cluster.replica(number).log.log_start_offset for number in (1, 2, 3)} == {3}

    run(story)


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_followers_that_catch_up_may_be_held_back(side: str) -> None:
    async def story() -> None:
        settings = {
            f"{side}_replication_throttled_rate": "1000",
            "replica_fetch_wait_max_ms": "20",
            "replica_fetch_max_bytes": "700",
        }
        async with running(2, **settings) as cluster:
            throttled = {f"{side}_replication_throttled_replicas": "0:2"}
            cluster.create(replicas=(1, 2), min_insync_replicas="1", **throttled)
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            await cluster.stop(2)
            cluster.fence(2)
            for number in range(4):
                await cluster.produce(f"{number}" * 600)
            began = cluster.brokers[1].clock.monotonic()
            await cluster.start(2)
            await cluster.until_in_sync(1, 2)
            assert cluster.brokers[1].clock.monotonic() - began > 0.5  # 2.6 KB at 1 KB/s, one second in advance
            assert (await cluster.produce("x" * 5_000)).error_code == 0  # in sync: not held back

    run(story)


def test_a_restarted_broker_leads_nothing_by_an_image_from_before() -> None:
    """The image it starts with says that it leads alone; in truth others went on without it."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create(min_insync_replicas="1")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2, 3)
            for number in (2, 3):
                await cluster.stop(number)
                cluster.fence(number)
            assert set(cluster.partition().isr) == {1}
            old = list(cluster.history)
            for number in (2, 3):
                await cluster.start(number)
            await cluster.until_in_sync(1, 2, 3)
            await cluster.stop(1)
            cluster.fence(1)
            assert (await cluster.produce("two")).error_code == 0
            cluster.deaf = {1}
            await cluster.start(1)  # registered, but all it has replayed is old
            restarted = cluster.brokers[1]
            restarted.driver.follow(old)  # type: ignore[attr-defined]
            assert not restarted.replicas.may_lead()
            row = await produce_to(restarted, "alone")
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            cluster.deaf.clear()
            cluster.publish()
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)

    run(story)


def test_a_bug_in_one_partition_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take = PartitionLog.append_as_follower

    def surprise(log: PartitionLog, *given: object) -> object:
        if log.name == "a-0":
            raise RuntimeError("a bug")
        return take(log, *given)  # type: ignore[arg-type]

    async def story() -> None:
        async with running(2) as cluster:
            for topic in ("a", "b"):
                cluster.create(topic, replicas=(1, 2), min_insync_replicas="1")
            monkeypatch.setattr(PartitionLog, "append_as_follower", surprise)
            await cluster.produce("one", acks=1)
            await cluster.until(lambda: "a bug" in caplog.text)
            await cluster.produce("two", acks=1, topic="b")
            await all_alike(cluster, 1, 2, topic="b")
            monkeypatch.undo()
            await all_alike(cluster, 1, 2)

    run(story)


def test_a_process_that_is_not_registered_acknowledges_nothing() -> None:
    """Somebody starts a second one with the id of a member: what it fetches the member does not have."""

    async def story() -> None:
        async with running(2) as cluster:
            cluster.create(replicas=(1, 2), min_insync_replicas="2")
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            await cluster.brokers[2].replicas.fetchers.stop()  # it sleeps; its session is not over
            impostor = FakePeers(cluster, 2)
            waiting = asyncio.create_task(cluster.produce("two", timeout_ms=300))
            for offset in (1, 2):
                await impostor.request_frame(("b1", 0), replica_fetch(cluster, 2, -1, offset), 1_000)
            assert (await waiting).error_code == ErrorCode.REQUEST_TIMED_OUT
            epoch = cluster.image.brokers[2].epoch
            await impostor.request_frame(("b1", 0), replica_fetch(cluster, 2, epoch, 2), 1_000)
            await cluster.until(lambda: cluster.leader().high_watermark == 2)

    run(story)


def replica_fetch(cluster: Brokers, replica_id: int, broker_epoch: int, offset: int) -> FetchRequest:
    topic = cluster.image.topic("a")
    assert topic is not None
    row = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=0, last_fetched_epoch=0
    )
    return FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id, broker_epoch),
        max_wait_ms=0,
        topics=[FetchRequest.FetchTopic(topic_id=topic.id, partitions=[row])],
    )


def test_no_leader_asks_for_fewer_in_sync_than_the_controller() -> None:
    """It would acknowledge what an eligible leader replica lacks."""

    async def story() -> None:
        async with running(2, min_insync_replicas="2") as cluster:
            cluster.create(replicas=(1, 2))
            await cluster.produce("one")
            await all_alike(cluster, 1, 2)
            own = [(Resource(BROKER_RESOURCE, "1"), [Change("min.insync.replicas", Op.SET, "1")])]
            cluster.run(lambda view: decide_incremental_alter_configs(view.image, own, cluster.settings))
            await cluster.stop(2)
            cluster.fence(2)
            assert cluster.partition().eligible_leader_replicas == (2,)
            acknowledged = (await cluster.produce("two", timeout_ms=300)).error_code == 0
            await cluster.stop(1)
            cluster.fence(1)
            await cluster.start(2)
            await cluster.until(lambda: cluster.leader().is_leader)
            assert values(cluster.leader().log) == [b"one", b"two"] or not acknowledged

    run(story)
