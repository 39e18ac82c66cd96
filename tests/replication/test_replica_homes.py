"""In which log directory of its broker a replica is, when one failed or the replica has to be fetched anew."""

import asyncio
import errno
from typing import Any

from penstock.broker.replica_repair import DAMAGED
from penstock.controller.directories import AssignedReplica, decide_assign_replicas_to_dirs
from penstock.log.errors import CorruptSegment
from penstock.metadata.image import TopicImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.wire.generated.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.controller.cluster import directory
from tests.replication.brokers import Brokers, running
from tests.replication.test_brokers import all_alike, run

FIRST, SECOND = directory(20), directory(21)


def topic_of(cluster: Brokers, name: str) -> TopicImage:
    found = cluster.image.topic(name)
    assert found is not None
    return found


async def with_two_disks(cluster: Brokers) -> dict[str, str]:
    """Broker 2 starts anew with two log directories; a topic in each, by the directory's path."""
    await cluster.stop(2)
    cluster.paths[2] = {"/d0": FIRST, "/d1": SECOND}
    await cluster.start(2)
    homes: dict[str, str] = {}
    for topic in ("a", "b"):
        cluster.create(topic)
        assert (await cluster.produce("payload", topic=topic)).error_code == 0
        await all_alike(cluster, 1, 2, 3, topic=topic)
        homes[cluster.replica(2, topic).log.directory.path] = topic
    return homes


def test_a_damaged_replica_is_fetched_anew_into_a_directory_that_works() -> None:
    """Where it was is told nobody while it is damaged, and the first of the directories is as dead as any other."""

    async def story() -> None:
        async with running() as cluster:
            homes = await with_two_disks(cluster)
            topic, broker = homes["/d1"], cluster.brokers[2]
            broker.logs.directories[0].fail(OSError(errno.EIO, "broken"))
            cluster.beat(2, offline_directories=(FIRST,))
            broker.replicas.repairs.damaged(topic_of(cluster, topic), 0, None, "unreadable")
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3, topic=topic)
            assert cluster.partition(topic).directory_of(2) == SECOND

    run(story)


def test_damaged_replicas_are_not_all_fetched_into_the_first_directory() -> None:
    async def story() -> None:
        async with running() as cluster:
            homes = await with_two_disks(cluster)
            broker = cluster.brokers[2]
            broker.replicas.repairs.damaged(topic_of(cluster, homes["/d1"]), 0, None, "unreadable")
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            assert [len(home.logs) for home in broker.logs.directories] == [1, 1]

    run(story)


def test_a_replica_in_a_failed_directory_is_not_begun_anew_in_another() -> None:
    """The controller may not have heard of the failure: an empty log would be taken for the one that it knows."""

    async def story() -> None:
        async with running() as cluster:
            await with_two_disks(cluster)
            cluster.create("alone", replicas=(2,))
            told, broker = cluster.partition("alone").directory_of(2), cluster.brokers[2]
            broker.logs.directories[(FIRST, SECOND).index(told)].fail(OSError(errno.EIO, "broken"))
            assert isinstance(await broker.partitions.open("alone", 0), Refusal)

    run(story)


def spoil(cluster: Brokers, number: int, topic: str = "a") -> None:
    """The log of a replica turns out to be unreadable while it is in use."""
    log = cluster.replica(number, topic).log
    log.fault = CorruptSegment(log.path, 0, "rotten")
    log.offline = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, "rotten")


def damage_payload(frame: bytearray) -> None:
    at = frame.find(b"payload")
    if at >= 0:
        frame[at] ^= 1


def test_a_replica_damaged_while_it_catches_up_on_another_disk_is_fetched_anew() -> None:
    """The disk that it was on is away, and an empty log took its place."""

    async def story() -> None:
        async with running() as cluster:
            homes = await with_two_disks(cluster)
            topic = homes["/d0"]
            await cluster.stop(2)
            cluster.fence(2)
            cluster.paths[2] = {"/d1": SECOND}
            broker = await cluster.start(2, clean=False)
            broker.peers.damage = damage_payload  # type: ignore[attr-defined]
            await cluster.until(lambda: broker.replicas.counters.corrupt_batches)
            spoil(cluster, 2, topic)
            broker.peers.damage = None  # type: ignore[attr-defined]
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3, topic=topic)
            await all_alike(cluster, 1, 2, 3, topic=topic)

    run(story)


def test_a_replica_damaged_while_it_is_fetched_anew_is_fetched_once_more() -> None:
    async def story() -> None:
        async with running() as cluster:
            cluster.create()
            await cluster.produce("payload")
            await all_alike(cluster, 1, 2, 3)
            broker = cluster.brokers[2]
            broker.peers.damage = damage_payload  # type: ignore[attr-defined]
            broker.replicas.repairs.damaged(topic_of(cluster, "a"), 0, None, "unreadable")
            await cluster.until(lambda: broker.replicas.counters.corrupt_batches)
            spoil(cluster, 2)
            broker.peers.damage = None  # type: ignore[attr-defined]
            await cluster.until_in_sync(1, 2, 3)
            await all_alike(cluster, 1, 2, 3)
            assert broker.replicas.repairs.damaged_count == 2

    run(story)


def test_a_replica_damaged_while_the_controller_is_told_where_it_is_counts_no_more() -> None:
    async def story() -> None:
        async with running() as cluster:
            homes = await with_two_disks(cluster)
            topic, broker = homes["/d1"], cluster.brokers[2]
            broker.channel.is_cut = True  # type: ignore[attr-defined]
            said = AssignedReplica(FIRST, topic_of(cluster, topic).id, 0)
            epoch = cluster.image.brokers[2].epoch
            cluster.run(lambda v: decide_assign_replicas_to_dirs(v.image, 2, epoch, [said], cluster.settings))
            broker.replicas.repairs.damaged(topic_of(cluster, topic), 0, None, "unreadable")
            broker.channel.is_cut = False  # type: ignore[attr-defined]
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3, topic=topic)
            assert cluster.partition(topic).directory_of(2) == SECOND

    run(story)


def test_word_that_a_replica_is_home_does_not_come_behind_word_of_its_damage() -> None:
    """Damaged it was before, so the second word of damage changes nothing by which the first word could be old."""

    async def story() -> None:
        async with running() as cluster:
            cluster.create()
            await cluster.produce("payload")
            await all_alike(cluster, 1, 2, 3)
            broker, topic = cluster.brokers[2], topic_of(cluster, "a")
            send, may_go, said = broker.channel.send, asyncio.Event(), list[bytes]()

            async def held(request: Any, *args: Any, **options: Any) -> Any:
                if isinstance(request, AssignReplicasToDirsRequest):
                    said.append(request.directories[0].id)
                    if said[-1] != DAMAGED:
                        await may_go.wait()
                return await send(request, *args, **options)

            broker.channel.send = held  # type: ignore[method-assign]
            home = cluster.partition().directory_of(2)
            broker.replicas.repairs.damaged(topic, 0, None, "unreadable")
            await cluster.until(lambda: home in said)
            broker.replicas.repairs.damaged(topic, 0, None, "unreadable again")
            await cluster.until(lambda: broker.partitions.is_offline(topic.id, 0))
            assert said == [DAMAGED, home]
            may_go.set()
            await cluster.until(lambda: broker.replicas.repairs.repaired == 1)
            await cluster.until_in_sync(1, 2, 3)
            assert list(dict.fromkeys(said[2:])) == [DAMAGED, home]

    run(story)
