"""A cluster of processes: `penstock broker` three times, killed, stopped and put to sleep; `penstock cluster up`."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.net.free_ports import free_ports_in_a_row
from tests.cluster.processes import ClusterProcesses
from tests.cluster.traffic import Writer, read_all
from tests.waiting import eventually

FAILOVER_S = 5.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {"min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "0"}
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 3, settings) as running:
        yield running


def create(cluster: ClusterProcesses, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(30)
    eventually(lambda: all(len(isr) == 3 for isr in in_sync(cluster, name).values()), 30)
    return name


def described(cluster: ClusterProcesses, name: str) -> dict[int, object]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return dict(admin.list_topics(name, timeout=30).topics[name].partitions)


def in_sync(cluster: ClusterProcesses, name: str) -> dict[int, list[int]]:
    return {number: p.isrs for number, p in described(cluster, name).items()}  # type: ignore[attr-defined]


def leader(cluster: ClusterProcesses, name: str, partition: int = 0) -> int:
    return int(described(cluster, name)[partition].leader)  # type: ignore[attr-defined]


@pytest.mark.parametrize("fault", ["kill", "stop", "pause"])
def test_the_leader_is_lost(cluster: ClusterProcesses, fault: str) -> None:
    topic = create(cluster, f"leader-{fault}")
    writer = Writer(cluster.bootstrap, topic)
    writer.write(300)
    lost = cluster.members[leader(cluster, topic)]
    getattr(lost, fault)()
    began = time.monotonic()
    writer.write(30)
    took_s = time.monotonic() - began
    print(f"{fault}: all partitions acknowledged {took_s:.2f} s after the signal")
    lost.resume()
    if not lost.is_running:
        cluster.start()
    eventually(lambda: all(len(isr) == 3 for isr in in_sync(cluster, topic).values()), 60)
    writer.write(30)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 360)) == sorted(writer.acknowledged)
    if fault == "kill":
        assert took_s < FAILOVER_S


def test_rolling_restart(cluster: ClusterProcesses) -> None:
    topic = create(cluster, "rolling")
    writer = Writer(cluster.bootstrap, topic)
    for node_id in cluster.members:
        writer.write(50)
        cluster.restart(node_id)
        eventually(lambda: all(len(isr) == 3 for isr in in_sync(cluster, topic).values()), 60)
    writer.write(50)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 200)) == sorted(writer.acknowledged)


def test_one_command_runs_a_cluster(tmp_path: Path) -> None:
    port = free_ports_in_a_row(6)
    command = [sys.executable, "-m", "penstock", "cluster", "up", "--port", str(port), "--data", str(tmp_path / "d")]
    log = tmp_path / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=output, stdout=output)
    try:
        eventually(lambda: "cluster ready" in log.read_text(), 60, message="not ready")
        bootstrap = ",".join(f"127.0.0.1:{port + 2 * i}" for i in range(3))
        assert bootstrap in log.read_text()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(30)
        writer = Writer(bootstrap, "t")
        writer.write(30)
        assert not writer.failures
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
