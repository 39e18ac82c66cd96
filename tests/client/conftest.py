"""One broker for the whole room; every test has topics of its own.

`PENSTOCK_TEST_BOOTSTRAP=host:port` runs the tests of the client against that broker instead, such as Apache Kafka.
"""

import os
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
def bootstrap(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if given:
        return given
    running: Broker = request.getfixturevalue("broker")
    return running.bootstrap


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of its own for the topics and groups of a test."""
    return f"{request.node.originalname[:40]}-{next(_numbers)}".replace("[", "-").replace("]", "")
