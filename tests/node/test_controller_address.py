"""What a node that is the only voter writes down of where others reach it."""

import asyncio
import socket

import pytest

from penstock.metadata.settings import BrokerSettings
from penstock.node.node import Node
from penstock.sim.disk import CrashingDisk


@pytest.mark.parametrize(
    ("advertised", "host"),
    [
        (None, socket.gethostname()),
        ("PLAINTEXT://one.example.org:9092", "one.example.org"),
        ("PLAINTEXT://one.example.org:9092,CONTROLLER://two.example.org:9093", "two.example.org"),
    ],
)
def test_a_controller_on_all_addresses_is_not_at_localhost(advertised: str | None, host: str) -> None:
    values = {"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://0.0.0.0:0", "log.dirs": "/data"}
    if advertised is not None:
        values["advertised.listeners"] = advertised

    async def story() -> None:
        node = Node(BrokerSettings.from_mapping(values), disk=CrashingDisk())
        await node.start()
        quorum = node.broker.driver.quorum
        assert quorum is not None
        (endpoint,) = quorum.core.voters.by_id[node.settings.node_id].endpoints
        assert endpoint.host == host
        await node.stop()

    asyncio.run(story())
