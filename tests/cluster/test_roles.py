"""Nodes that only vote and nodes that only serve; what each listener tells of them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.peers import Peers
from penstock.net.free_ports import free_ports
from penstock.testing import Broker
from penstock.wire.generated.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from tests.cluster.traffic import Writer, read_all
from tests.waiting import eventually

NODES = tuple[Broker, Broker, Broker]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NODES]:
    """Node 1 votes, nodes 2 and 3 serve."""
    controller, first, second = free_ports(3)
    common = {"controller.quorum.voters": f"1@127.0.0.1:{controller}"}
    made = (
        Broker(
            {
                **common,
                "node.id": "1",
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{controller}",
            },
            data_dir=tmp_path / "1",
        ),
        *(
            Broker(
                {
                    **common,
                    "node.id": str(n),
                    "process.roles": "broker",
                    "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                },
                data_dir=tmp_path / str(n),
            )
            for n, port in ((2, first), (3, second))
        ),
    )
    for node in made:
        node.begin_start()
    for node in made:
        node.finish_start()
    yield made  # type: ignore[misc]
    for node in reversed(made):
        node.close()


def describe(port: int, endpoint_type: int) -> DescribeClusterResponse:
    async def ask() -> DescribeClusterResponse:
        peers = Peers("test")
        try:
            request = DescribeClusterRequest(endpoint_type=endpoint_type)
            return await peers.request(("127.0.0.1", port), request, DescribeClusterResponse, 5_000)
        finally:
            await peers.stop()

    return asyncio.run(ask())


def test_a_controller_apart(nodes: NODES) -> None:
    _, first, second = nodes
    assert len({node.node.broker.cluster_id for node in nodes}) == 1, "the same voters make the same cluster"
    first.create_topic("t", 3, replication_factor=2)
    bootstrap = f"{first.bootstrap},{second.bootstrap}"
    writer = Writer(bootstrap, "t")
    writer.write(60)
    assert not writer.failures
    assert sorted(read_all(bootstrap, "t", 60)) == sorted(writer.acknowledged)
    second.restart()
    writer.write(60)
    assert not writer.failures


def with_both(told: DescribeClusterResponse) -> DescribeClusterResponse | None:
    """A broker that is ready itself may hear of the other only then."""
    return told if [row.broker_id for row in told.brokers] == [2, 3] else None


def test_each_listener_tells_of_its_own_kind(nodes: NODES) -> None:
    voter, first, second = nodes
    brokers = eventually(lambda: with_both(describe(first.port, 1)), message="one broker never hears of the other")
    assert brokers.controller_id in (2, 3), "clients cannot reach a controller that is not a broker"
    assert describe(first.port, 2).error_code == 114
    controllers = describe(voter.node.ports[0], 2)
    assert [row.broker_id for row in controllers.brokers] == [1]
    assert controllers.controller_id == 1
    assert second.node.broker.driver.leader_id == 1
