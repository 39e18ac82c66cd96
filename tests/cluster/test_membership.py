"""Brokers join, get their share, are drained and removed; one is replaced by an empty disk."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing import Cluster
from tests.cluster.traffic import Writer, read_all


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings={"min.insync.replicas": "2"}) as running:
        yield running


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "penstock", "cluster", *words, "--bootstrap", cluster.bootstrap]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def described(cluster: Cluster) -> dict[str, Any]:
    result = command(cluster, "describe", "--output", "json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_broker_joins_and_leaves(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", partitions=12, replication_factor=3)
    writer = Writer(cluster.bootstrap, topic)
    writer.write(120)
    fourth = cluster.add_broker()
    assert command(cluster, "balance", "--dry-run").returncode == 0
    result = command(cluster, "balance")
    assert result.returncode == 0, result.stderr
    brokers = {row["id"]: row for row in described(cluster)["brokers"]}
    assert brokers[fourth]["replicas"] >= 8
    assert brokers[fourth]["leads"] >= 2
    writer.write(120)

    refused = command(cluster, "remove", str(fourth))
    assert refused.returncode == 1
    assert "running" in refused.stderr
    result = command(cluster, "drain", str(fourth))
    assert result.returncode == 0, result.stderr
    assert "holds no replicas" in result.stderr
    writer.write(120)
    cluster.brokers[fourth].stop()
    result = command(cluster, "remove", str(fourth))
    assert result.returncode == 0, result.stderr
    assert [row["id"] for row in described(cluster)["brokers"]] == [1, 2, 3]
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 360)) == sorted(writer.acknowledged)


def test_no_room_to_drain(cluster: Cluster) -> None:
    cluster.create_topic("t", replication_factor=3)
    result = command(cluster, "drain", "1")
    assert result.returncode == 1
    assert "nowhere to go" in result.stderr
    assert command(cluster, "drain", "9").returncode == 1


def test_an_empty_disk_takes_the_place_of_a_dead_broker(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", partitions=3, replication_factor=3)
    fourth = cluster.add_broker()
    assert command(cluster, "balance").returncode == 0
    writer = Writer(cluster.bootstrap, topic)
    writer.write(300)
    cluster.kill(fourth)
    shutil.rmtree(cluster.data_dir / f"broker-{fourth}")
    writer.write(30)
    cluster.start()
    cluster.wait_until_in_sync(topic)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 330)) == sorted(writer.acknowledged)
