"""One answer of a new leader cuts the logs of many partitions, each with fsyncs on the loop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from penstock.replication.partition import Partition
from tests.log.logs import values
from tests.replication.brokers import Brokers, produce_to, running
from tests.replication.test_brokers import all_alike, run

TOPICS = [f"t{number}" for number in range(20)]


@asynccontextmanager
async def about_to_cut() -> AsyncIterator[Brokers]:
    """Broker 1 has led all of them, and has in each what nobody else has; it has not heard of its successor yet."""
    async with running(2) as cluster:
        for topic in TOPICS:
            cluster.create(topic, replicas=(1, 2))
            await cluster.produce("one", topic=topic)
            await all_alike(cluster, 1, 2, topic=topic)
        cluster.deaf.add(1)
        cluster.fence(1)
        for topic in TOPICS:
            await cluster.until(lambda topic=topic: cluster.replica(2, topic).is_leader)
            await produce_to(cluster.brokers[1], "lost", topic=topic, acks=1)
        yield cluster


def hear_again(cluster: Brokers, on_cut: Callable[[str], None]) -> None:
    """`on_cut` is called in every cut."""

    def before_sync(path: str) -> None:
        if path.endswith(".log") and threading.current_thread() is threading.main_thread():
            on_cut(path)

    cluster.disks[1].before_sync = before_sync
    cluster.deaf.clear()
    cluster.beat(1)
    cluster.publish()


def test_others_have_their_turn_between_two_cuts() -> None:
    async def story() -> None:
        async with about_to_cut() as cluster:
            turns = 0
            cuts: list[int] = []

            async def heartbeats() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            beating = asyncio.create_task(heartbeats())
            peers = cluster.brokers[1].peers
            before = len(peers.requests)  # type: ignore[attr-defined]
            hear_again(cluster, lambda _: cuts.append(turns))
            for topic in TOPICS:
                await cluster.until_in_sync(1, 2, topic=topic)
                await all_alike(cluster, 1, 2, topic=topic)
            beating.cancel()
            assert len(peers.requests[before].topics) == len(cuts) == len(TOPICS)  # type: ignore[attr-defined]
            assert len(set(cuts)) == len(cuts), "two cuts in one turn"

    run(story)


def forgotten(cluster: Brokers, partition: Partition) -> None:
    cluster.brokers[1].replicas.fetchers.forget(partition)


def in_a_later_epoch(cluster: Brokers, partition: Partition) -> None:
    assert partition.follower is not None
    partition.become_follower(2, partition.follower.leader_epoch + 1)


@pytest.mark.parametrize("change", [forgotten, in_a_later_epoch])
def test_a_partition_that_changes_meanwhile_is_not_cut(change: Callable[[Brokers, Partition], None]) -> None:
    async def story() -> None:
        async with about_to_cut() as cluster:
            changed: list[str] = []

            def on_cut(path: str) -> None:
                if not changed:
                    topic = next(topic for topic in reversed(TOPICS) if f"/{topic}-0/" not in path)
                    changed.append(topic)
                    asyncio.get_running_loop().call_soon(change, cluster, cluster.replica(1, topic))

            hear_again(cluster, on_cut)
            await cluster.until(lambda: changed)
            for topic in set(TOPICS) - set(changed):
                await cluster.until_in_sync(1, 2, topic=topic)
                assert values(cluster.replica(1, topic).log) == [b"one"]
            assert values(cluster.replica(1, changed[0]).log) == [b"one", b"lost"]

    run(story)


def test_a_broker_may_stop_between_two_cuts() -> None:
    """And goes on with the rest when it is back."""

    async def story() -> None:
        async with about_to_cut() as cluster:
            stopping: list[asyncio.Task[None]] = []
            loop = asyncio.get_running_loop()

            def on_cut(_: str) -> None:
                if not stopping:
                    stopping.append(loop.create_task(cluster.stop(1, power_loss=True)))

            hear_again(cluster, on_cut)
            await cluster.until(lambda: stopping and stopping[0].done())
            cluster.disks[1].before_sync = None
            cluster.fence(1)
            await cluster.start(1, clean=False)
            for topic in TOPICS:
                await cluster.until_in_sync(1, 2, topic=topic)
                await all_alike(cluster, 1, 2, topic=topic)

    run(story)
