"""The cluster for tests: what its faults do, and that they are undone."""

from collections.abc import Iterator

import pytest

from penstock.testing import Cluster
from tests.cluster.traffic import Writer, read_all


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    settings = {"min.insync.replicas": "2", "replica.lag.time.max.ms": "1000"}
    with Cluster(brokers=3, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    running.start()
    yield running
    running.heal()
    running.start()
    running.wait_for(lambda: running.controller_id, "no controller")


def test_a_restart_keeps_ports_and_data_and_hands_over(cluster: Cluster) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), partitions=3, replication_factor=3)
    writer = Writer(cluster.bootstrap, topic)
    for node_id in cluster.brokers:
        before = cluster.brokers[node_id]
        address, epoch = before.bootstrap, cluster.image().brokers[node_id].epoch
        writer.write(30)
        cluster.restart(node_id)
        assert cluster.brokers[node_id].bootstrap == address
        assert cluster.running == [1, 2, 3]
        cluster.wait_for(
            lambda node_id=node_id, epoch=epoch: cluster.image().brokers[node_id].epoch > epoch,  # type: ignore[misc]
            "it is not another incarnation",
        )
        cluster.wait_until_in_sync(topic)
    writer.write(30)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 120)) == sorted(writer.acknowledged)


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_restart_also_brings_back_what_was_killed_or_asleep(cluster: Cluster, fault: str) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    getattr(cluster, fault)(2)
    cluster.restart(2)
    cluster.wait_until_in_sync(topic)
    assert cluster.running == [1, 2, 3]


def test_three_sides_decide_nothing_until_they_are_healed(cluster: Cluster) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    writer = Writer(cluster.bootstrap, topic, partitions=1)
    writer.write(10)
    cluster.partition([1], [2], [3])
    cluster.wait_for(lambda: cluster.controller_id is None, "somebody decides alone")
    cluster.heal()
    cluster.wait_for(lambda: cluster.controller_id, "nobody decides")
    cluster.wait_until_in_sync(topic)
    writer.write(10)
    assert not writer.failures
    assert len(read_all(cluster.bootstrap, topic, 20)) == 20


def test_the_larger_side_goes_on_and_another_cut_replaces_the_first(cluster: Cluster) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    for alone in (1, 2):
        others = {1, 2, 3} - {alone}
        cluster.partition(others, [alone])
        cluster.wait_for(lambda others=others: cluster.in_sync(topic) == others, "it is in sync")  # type: ignore[misc]
        cluster.wait_for(lambda others=others: cluster.controller_id in others, "nobody decides")  # type: ignore[misc]
    cluster.heal()
    cluster.wait_until_in_sync(topic)


def test_who_is_on_no_side_reaches_everybody(cluster: Cluster) -> None:
    """A follower that does not reach its leader falls behind, though both reach the controller."""
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    controller = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    first, second = sorted({1, 2, 3} - {controller})
    cluster.partition([first], [second])
    leader = cluster.leader_of(topic)
    writer = Writer(cluster.brokers[leader].bootstrap, topic, partitions=1)
    writer.write(10)
    assert not writer.failures
    if leader == controller:
        assert cluster.in_sync(topic) == {1, 2, 3}
    else:
        cut_off = second if leader == first else first
        cluster.wait_for(lambda: cluster.in_sync(topic) == {controller, leader}, f"{cut_off} is in sync")
    assert cluster.controller_id == controller
    assert not any(broker.fenced for broker in cluster.image().brokers.values())


def test_a_broker_that_starts_while_it_is_cut_off_stays_cut_off(cluster: Cluster) -> None:
    topic = cluster.create_topic(cluster.unused_topic_name(), replication_factor=3)
    controller = cluster.wait_for(lambda: cluster.controller_id, "no controller")
    late, other = sorted({1, 2, 3} - {controller})
    cluster.kill(late)
    cluster.wait_for(lambda: late not in cluster.in_sync(topic), "it is in sync")
    cluster.partition([late], [other])
    cluster.restart(late)  # the controller lets it in
    leader = cluster.leader_of(topic)
    if leader == controller:
        cluster.wait_until_in_sync(topic)
    peers = cluster.brokers[late].node.peers
    assert peers.is_cut_off is not None
    cluster.heal()
    cluster.wait_for(lambda: peers.is_cut_off is None, "it is still cut off")
    cluster.wait_until_in_sync(topic)


def test_brokers_and_partitions_that_are_not_there_are_told(cluster: Cluster) -> None:
    for call in (cluster.kill, cluster.pause, cluster.resume, cluster.restart, cluster.isolate):
        with pytest.raises(ValueError, match="there is no broker 42; the cluster has 1, 2, 3"):
            call(42)
    topic = cluster.create_topic(cluster.unused_topic_name())
    for name, partition in (("nosuch", 0), (topic, 1)):
        with pytest.raises(ValueError, match=f"there is no partition {name}-{partition}"):
            cluster.leader_of(name, partition)
