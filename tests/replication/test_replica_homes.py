"""In which log directory of its broker a replica is, when one failed or the replica has to be fetched anew."""

import errno

from penstock.metadata.image import TopicImage
from penstock.model.errors import Refusal
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
        assert (await cluster.produce("one", topic=topic)).error_code == 0
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
