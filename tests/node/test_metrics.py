"""Metrics over HTTP: of a broker alone, of a cluster that loses a member, and the page that explains them."""

import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from penstock.broker.metrics import CATALOGUE
from penstock.broker.metrics_reference import PAGE, main
from penstock.testing import Broker, Cluster
from tests.cluster.traffic import Writer
from tests.processes import BrokerProcess
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


def read(port: int) -> dict[str, dict[str, float]]:
    """Metric → labels → value; every line is what the format allows."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = response.read().decode().splitlines()
    found: dict[str, dict[str, float]] = {}
    for line in lines:
        if not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    assert found.keys() <= CATALOGUE.keys()
    return found


def port_of(broker: Broker) -> int:
    metrics = broker.node.metrics
    assert metrics is not None
    return metrics.port


def test_a_cluster_that_loses_a_member() -> None:
    settings = {"metrics.listener": "127.0.0.1:0", "min.insync.replicas": "2"}
    with Cluster(brokers=3, settings=settings) as cluster:
        topic = cluster.create_topic("t", partitions=3, replication_factor=3)
        writer = Writer(cluster.bootstrap, topic)
        writer.write(10)
        leader = cluster.leader_of(topic)
        before = read(port_of(cluster.brokers[leader]))
        assert before["penstock_partition_isr_size"]['topic="t",partition="0"'] == 3
        assert set(before["penstock_replica_lag_records"].values()) == {0}
        assert sum(read(port_of(each))["penstock_active_controller"][""] for each in cluster.brokers.values()) == 1
        cluster.kill(leader)
        writer.write(10)
        watched = port_of(cluster.brokers[cluster.leader_of(topic)])
        eventually(lambda: read(watched)["penstock_partitions_under_replicated"][""] >= 1)
        now = read(watched)
        assert now["penstock_cluster_elections_total"][""] >= 1
        assert now["penstock_cluster_unclean_elections_total"][""] == 0
        assert now["penstock_partitions_at_min_isr"][""] >= 1
        # The new leader has never seen it caught up: its lag counts from the election on.
        lost = f'topic="t",partition="0",replica="{leader}"'
        assert set(before["penstock_replica_lag_seconds"].values()) == {0}
        assert now["penstock_replica_lag_records"][lost] > 0
        behind_s = now["penstock_replica_lag_seconds"][lost]
        eventually(lambda: read(watched)["penstock_replica_lag_seconds"][lost] > behind_s >= 0)
        assert now["penstock_partition_isr_size"]['topic="t",partition="0"'] == 2


def test_what_is_not_asked_for_properly_is_refused() -> None:
    with Broker({"metrics.listener": "127.0.0.1:0"}) as broker:
        port = port_of(broker)
        for path, method, status in (("/", "GET", 404), ("/metrics", "POST", 405)):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=10)
            assert caught.value.code == status
        assert read(port)["penstock_cluster_partitions"][""] >= 0


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"metrics\.listener=9404 is not host:port"):
        BrokerProcess(tmp_path / "data", {"metrics.listener": "9404"}).start()


def test_the_page_is_what_the_catalogue_says() -> None:
    assert main(["--check", str(ROOT / PAGE)]) == 0, "run: python -m penstock.broker.metrics_reference"
