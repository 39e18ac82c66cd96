"""The one replica that is left lacks acknowledged records: it leads where the topic allows it, and it is counted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from penstock.metadata.partition import NO_LEADER, PartitionImage
from penstock.testing import Cluster
from tests.cluster.traffic import Writer, read_all
from tests.node.test_metrics import port_of, read
from tests.waiting import eventually

SETTING = "unclean.leader.election.enable"
METRIC = "penstock_cluster_unclean_elections_total"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three that vote, and 4 and 5, which may go both."""
    settings = {"min.insync.replicas": "1", "metrics.listener": "127.0.0.1:0", "flush.mode": "ack"}
    with Cluster(brokers=3, settings=settings) as running:
        running.add_broker()
        running.add_broker()
        yield running


def state_of(cluster: Cluster, topic: str) -> PartitionImage:
    found = cluster.image().topic(topic)
    assert found is not None
    return found.partitions[0]


def leave_only_a_lagging_replica(cluster: Cluster, topic: str, unclean: str, flush_mode: str = "ack") -> None:
    """4 leads and has ten records, five of which 5 never saw; 4 is gone and 5 is there."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(
        topic, num_partitions=1, replica_assignment=[[4, 5]], config={SETTING: unclean, "flush.mode": flush_mode}
    )
    admin.create_topics([new])[topic].result(30)
    cluster.wait_until_in_sync(topic)
    writer = Writer(cluster.bootstrap, topic, partitions=1)
    writer.write(5)
    cluster.kill(5)
    cluster.wait_for(lambda: cluster.in_sync(topic) == {4}, "5 is in sync")
    writer.write(5)
    assert not writer.failures
    cluster.kill(4)
    cluster.wait_for(lambda: state_of(cluster, topic).leader == NO_LEADER, "it has a leader")
    cluster.restart(5)


def elections(cluster: Cluster) -> list[float]:
    return [read(port_of(cluster.brokers[node_id]))[METRIC][""] for node_id in (1, 2, 3)]


def described(cluster: Cluster, output: str) -> str:
    line = [sys.executable, "-m", "penstock", "cluster", "describe", "-o", output, "-b", cluster.brokers[1].bootstrap]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=True).stdout


def test_where_it_is_allowed_it_leads_and_is_counted(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    leave_only_a_lagging_replica(cluster, "t", "true")
    cluster.wait_for(lambda: state_of(cluster, "t").leader == 5, "5 does not lead")
    eventually(lambda: elections(cluster) == [1, 1, 1])
    assert caplog.text.count("led uncleanly, records may be lost: t-0 by 5") == 1, "only the controller tells where"
    assert "1 unclean elections since the broker asked was started: records may be lost" in described(
        cluster, "table"
    )
    shown: dict[str, Any] = json.loads(described(cluster, "json"))
    assert (shown["unclean_elections"], shown["offline"]) == (1, 0)
    writer = Writer(cluster.bootstrap, "t", partitions=1)
    writer.write(1)
    assert writer.acknowledged == [(0, 5, b"record 1")]  # where the sixth one was
    cluster.start()
    cluster.wait_until_in_sync("t")  # the old leader has cut off what nobody else had
    values = [value for _, _, value in read_all(cluster.bootstrap, "t", 6)]
    assert values == [*(f"record {number}".encode() for number in range(1, 6)), b"record 1"]
    assert read(port_of(cluster.brokers[4]))["penstock_truncations_total"][""] == 1
    assert elections(cluster) == [1, 1, 1]


def test_where_it_is_not_nobody_leads_until_the_complete_one_is_back(cluster: Cluster) -> None:
    leave_only_a_lagging_replica(cluster, "t", "false")
    assert not next(broker.fenced for broker in cluster.image().brokers.values() if broker.id == 5)
    # What is decided for this broker is decided in the order in which it is asked for: a topic of its own is led.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("u", num_partitions=1, replica_assignment=[[5]])])["u"].result(30)
    assert cluster.leader_of("u") == 5
    assert state_of(cluster, "t").leader == NO_LEADER
    assert json.loads(described(cluster, "json"))["offline"] == 1
    assert "unclean" not in described(cluster, "table")
    cluster.start()
    cluster.wait_until_in_sync("t")
    assert len(read_all(cluster.bootstrap, "t", 10)) == 10
    assert elections(cluster) == [0, 0, 0]


def test_the_last_leader_is_the_last_resort(cluster: Cluster) -> None:
    """Where a crash may have cost it records: it leads again unasked, nobody else does, and it counts as unclean."""
    leave_only_a_lagging_replica(cluster, "t", "false", flush_mode="os")
    assert state_of(cluster, "t").leader == NO_LEADER
    cluster.start()
    cluster.wait_for(lambda: state_of(cluster, "t").leader == 4, "4 does not lead")
    eventually(lambda: elections(cluster) == [1, 1, 1])
    cluster.wait_until_in_sync("t")
    assert len(read_all(cluster.bootstrap, "t", 10)) == 10


def test_a_setting_that_comes_to_allow_it_is_enough(cluster: Cluster) -> None:
    leave_only_a_lagging_replica(cluster, "t", "false")
    assert state_of(cluster, "t").leader == NO_LEADER
    entry = ConfigEntry(SETTING, "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
    cluster.wait_for(lambda: state_of(cluster, "t").leader == 5, "5 does not lead")
    eventually(lambda: elections(cluster) == [1, 1, 1])
