"""One broker for the whole room; every test has topics of its own."""

from collections.abc import Iterator
from itertools import count

import pytest

from penstock.testing import Broker

_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def bootstrap(broker: Broker) -> str:
    return broker.bootstrap


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of its own for the topics and groups of a test."""
    return f"{request.node.originalname[:40]}-{next(_numbers)}".replace("[", "-").replace("]", "")
