"""One broker for the whole room, and the command in this process."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import cli
from penstock.testing import Broker

Invoke = Callable[..., Result]
_numbers = count()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker({"auto.create.topics.enable": "false"}) as running:
        yield running


@pytest.fixture
def penstock(broker: Broker) -> Invoke:
    """`penstock("topic", "list")` against the broker; anything unexpected fails the test with its traceback."""

    def invoke(*arguments: str, stdin: bytes | str | None = None, bootstrap: str | None = None) -> Result:
        env = {"PENSTOCK_BOOTSTRAP": bootstrap or broker.bootstrap}
        result = CliRunner(env=env).invoke(cli, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname[:40]}-{next(_numbers)}"
