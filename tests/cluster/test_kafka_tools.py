"""Kafka's own tools for operators of clusters work against one of ours: reassignment, elections, the quorum."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.testing import Cluster
from tests.conformance.java import Jvm
from tests.waiting import eventually

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    running = Jvm(tmp_path_factory.mktemp("jvm") / "jvm.log")
    yield running
    running.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # What tools are asked for here the controller would do by itself a few seconds after its election.
    with Cluster(brokers=4, settings={"auto.leader.rebalance.enable": "false"}) as running:
        yield running


class Tools:
    def __init__(self, jvm: Jvm, cluster: Cluster, directory: Path) -> None:
        self._jvm = jvm
        self._server = ("--bootstrap-server", cluster.bootstrap)
        self._directory = directory

    def run(self, name: str, *words: str) -> str:
        return self._jvm.checked_tool(name, *self._server, *words)

    def reassign(self, action: str, plan: str, *words: str) -> str:
        file = self._directory / "plan.json"
        file.write_text(plan)
        return self.run("kafka-reassign-partitions", action, "--reassignment-json-file", str(file), *words)

    def replicas(self, topic: str) -> dict[int, list[int]]:
        told = self.run("kafka-topics", "--describe", "--topic", topic)
        found = re.findall(r"Partition: (\d+)\s+Leader: \d+\s+Replicas: ([\d,]+)", told)
        return {int(partition): [int(each) for each in replicas.split(",")] for partition, replicas in found}


@pytest.fixture
def tools(jvm: Jvm, cluster: Cluster, tmp_path: Path) -> Tools:
    return Tools(jvm, cluster, tmp_path)


def plan(topic: str, replicas: list[int], partitions: int) -> str:
    moves = [{"topic": topic, "partition": index, "replicas": replicas} for index in range(partitions)]
    return json.dumps({"version": 1, "partitions": moves})


def is_completed(tools: Tools, wanted: str) -> bool:
    told = tools.reassign("--verify", wanted)
    return "still in progress" not in told and "is completed" in told


def test_a_reassignment_with_throttle_and_the_way_back(tools: Tools, cluster: Cluster) -> None:
    topic = cluster.create_topic("moved", partitions=4, replication_factor=3)
    before = tools.replicas(topic)
    wanted = plan(topic, [2, 3, 4], 4)
    told = tools.reassign("--execute", wanted, "--throttle", "10000000")
    assert "Successfully started partition reassignments" in told
    eventually(lambda: is_completed(tools, wanted), 30)
    assert set(map(tuple, tools.replicas(topic).values())) == {(2, 3, 4)}
    configs = tools.run("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    assert "throttled" not in configs, "--verify takes the throttle away"

    # What the tool printed to go back by names directories, too.
    back = next(line for line in told.splitlines() if line.startswith("{"))
    assert "log_dirs" in back
    tools.reassign("--execute", back)
    eventually(lambda: is_completed(tools, back), 30)
    assert tools.replicas(topic) == before


def test_a_reassignment_under_way_is_cancelled(tools: Tools, cluster: Cluster) -> None:
    topic = cluster.create_topic("cancelled", partitions=1, replication_factor=1)
    writer = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(400):
        writer.produce(topic, bytes(10_000))
    assert writer.flush(30) == 0
    before = tools.replicas(topic)
    home = before[0][0]
    wanted = plan(topic, [home, home % len(cluster.brokers) + 1], 1)
    tools.reassign("--execute", wanted, "--throttle", "1000")
    assert f"{topic}-0: replicas: " in tools.run("kafka-reassign-partitions", "--list")
    tools.reassign("--cancel", wanted)
    assert "No partition reassignments found" in tools.run("kafka-reassign-partitions", "--list")
    assert tools.replicas(topic) == before


def test_the_preferred_leader_is_elected(tools: Tools, cluster: Cluster) -> None:
    topic = cluster.create_topic("elected", partitions=1, replication_factor=3)
    first = tools.replicas(topic)[0][0]
    turned = tools.replicas(topic)[0][::-1]
    wanted = plan(topic, turned, 1)
    tools.reassign("--execute", wanted)
    eventually(lambda: is_completed(tools, wanted), 30)
    assert f"Leader: {first}" in tools.run("kafka-topics", "--describe", "--topic", topic)
    election = ["--election-type", "preferred", "--topic", topic, "--partition", "0"]
    assert "Successfully completed leader election" in tools.run("kafka-leader-election", *election)
    eventually(lambda: f"Leader: {turned[0]}" in tools.run("kafka-topics", "--describe", "--topic", topic), 10)


def test_hanging_transactions_are_looked_for_on_a_broker(tools: Tools, cluster: Cluster) -> None:
    cluster.create_topic("followed", partitions=4, replication_factor=3)
    for node_id in cluster.brokers:
        told = tools.run("kafka-transactions", "find-hanging", "--broker-id", str(node_id))
        assert told.split()[0] == "Topic"
        assert len(told.splitlines()) == 1, "there are none"


def test_a_controller_leaves_the_quorum_and_comes_back(tools: Tools, cluster: Cluster, tmp_path: Path) -> None:
    status = tools.run("kafka-metadata-quorum", "describe", "--status")
    voters = json.loads(re.search(r"CurrentVoters:\s+(.*)", status)[1])  # type: ignore[index]
    leader = int(re.search(r"LeaderId:\s+(\d+)", status)[1])  # type: ignore[index]
    chosen = next(voter for voter in voters if voter["id"] != leader)
    directory = ["--controller-directory-id", chosen["directoryId"]]
    tools.run("kafka-metadata-quorum", "remove-controller", "--controller-id", str(chosen["id"]), *directory)
    eventually(lambda: role_of(tools, chosen["id"]) == "Observer", 10)

    config = tmp_path / "controller.properties"
    config.write_text(
        f"process.roles=controller\nnode.id={chosen['id']}\ncontroller.listener.names=CONTROLLER\n"
        f"listeners={chosen['endpoints'][0]}\nlog.dirs={cluster.brokers[chosen['id']].data_dir}\n"
        "controller.quorum.bootstrap.servers=127.0.0.1:1\n"
    )
    tools.run("kafka-metadata-quorum", "--command-config", str(config), "add-controller")
    eventually(lambda: role_of(tools, chosen["id"]) == "Follower", 10)


def role_of(tools: Tools, node_id: int) -> str:
    told = tools.run("kafka-metadata-quorum", "describe", "--replication")
    (row,) = (line.split() for line in told.splitlines() if line.split()[0] == str(node_id))
    return row[-1]
