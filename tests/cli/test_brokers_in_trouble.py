"""What commands say of brokers that do not answer as they should."""

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.cli.exits import OK, UNREACHABLE
from penstock.testing import Broker, Cluster
from tests.cli.conftest import Invoke


@pytest.fixture
def hangs_up() -> Iterator[str]:
    """The address of somebody who lets everybody in and nobody stay."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_broker_that_turns_clients_away_is_not_told_to_be_started(penstock: Invoke, hangs_up: str) -> None:
    result = penstock("topic", "list", bootstrap=f"127.0.0.1:1,{hangs_up},localhost:1")
    assert result.exit_code == UNREACHABLE
    assert f"{hangs_up} accepted the connection and closed it" in result.stderr
    assert "hint: a broker turns clients away when it has lost the majority of its controllers" in result.stderr


def test_a_controllers_port_is_recognised(penstock: Invoke) -> None:
    with Broker({"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"}) as both:
        address = f"127.0.0.1:{both.node.ports[1]}"
        result = penstock("cluster", "describe", bootstrap=address)
    assert result.exit_code == UNREACHABLE
    assert f"{address} is a controller's listener" in result.stderr
    assert "hint: name the broker's port" in result.stderr


def test_a_broker_that_hangs_is_told_from_one_that_is_not_there(penstock: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        result = penstock("topic", "list", bootstrap=f"127.0.0.1:{hangs.getsockname()[1]}")
    assert result.exit_code == UNREACHABLE
    assert "did not answer ApiVersions in time" in result.stderr
    assert "name another one with --bootstrap" in result.stderr
    assert "raise the timeout" not in result.stderr


def test_a_topic_is_described_though_a_leader_is_silent(penstock: Invoke) -> None:
    with Cluster(3, {"broker.session.timeout.ms": "60000"}) as cluster:
        name = cluster.create_topic("t", partitions=3, replication_factor=3)
        leaders = [cluster.leader_of(name, partition) for partition in range(3)]
        silent = next(node_id for node_id in leaders if node_id != cluster.controller_id)
        asked = next(node_id for node_id in cluster.running if node_id != silent)
        cluster.pause(silent)
        try:
            began = time.monotonic()
            bootstrap = cluster.brokers[asked].bootstrap
            result = penstock("topic", "describe", name, "--output", "json", bootstrap=bootstrap)
            assert time.monotonic() - began < 9
        finally:
            cluster.resume(silent)
    assert result.exit_code == OK, result.stderr
    ends = [row["end_offset"] for row in json.loads(result.stdout)[0]["partitions"]]
    assert ends == [None if leader == silent else 0 for leader in leaders]
    assert "do not tell their offsets" in result.stderr


def test_a_cluster_without_a_controller_is_described_as_far_as_it_is_known(penstock: Invoke) -> None:
    with Cluster(3, {"broker.session.timeout.ms": "60000"}) as cluster:
        cluster.create_topic("t", partitions=3, replication_factor=3)
        asked = next(node_id for node_id in cluster.running if node_id != cluster.controller_id)
        bootstrap = cluster.brokers[asked].bootstrap
        others = [node_id for node_id in cluster.running if node_id != asked]
        for other in others:
            cluster.pause(other)
        try:
            began = time.monotonic()
            result = penstock("cluster", "describe", bootstrap=bootstrap)
            took_s = time.monotonic() - began
            as_json = penstock("cluster", "describe", "--output", "json", bootstrap=bootstrap)
        finally:
            for other in others:
                cluster.resume(other)
    assert result.exit_code == as_json.exit_code == UNREACHABLE
    assert took_s < 20, "not for as long as a broker waits for a controller"
    assert "3 partitions, 0 under-replicated" in result.stdout
    assert "error: no active controller answers" in result.stderr
    assert "hint: a majority of the nodes of controller.quorum.voters has to run" in result.stderr
    told = json.loads(as_json.stdout)
    assert (told["controller_id"], told["quorum"], told["partitions"]) == (None, [], 3)
