"""pytest fixtures, there as soon as Penstock is installed.

    def test_orders(penstock_broker, penstock_topic):
        producer = confluent_kafka.Producer({"bootstrap.servers": penstock_broker.bootstrap})

`penstock_broker` is one broker for the whole run (start-up is milliseconds, but topics are cheaper still);
`penstock_topic` is a fresh topic for each test; `penstock_cluster` is three brokers, to be killed and cut off.
Nothing of Penstock is imported before a fixture is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing.broker import Broker
    from penstock.testing.cluster import Cluster


@pytest.fixture(scope="session")
def penstock_broker() -> Iterator[Broker]:
    from penstock.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_fresh_broker() -> Iterator[Broker]:
    """A broker of its own for tests that change settings, restart it or count everything."""
    from penstock.testing.broker import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def penstock_cluster() -> Iterator[Cluster]:
    """Three brokers of its own, for tests of what happens when one is missing."""
    from penstock.testing.cluster import Cluster

    with Cluster(brokers=3) as cluster:
        yield cluster


@pytest.fixture
def penstock_topic(penstock_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a new, empty topic with three partitions."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:100]
    return penstock_broker.create_topic(penstock_broker.unused_topic_name(stem), partitions=3)
