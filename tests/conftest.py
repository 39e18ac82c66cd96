"""Fixtures that several suites share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import BrokerProcess


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts real broker processes with the given settings; they are stopped after the test."""
    with ExitStack() as running:

        def start(**settings: str) -> BrokerProcess:
            names = {name.replace("_", "."): value for name, value in settings.items()}
            process = BrokerProcess(tmp_path / f"broker-{len(list(tmp_path.iterdir()))}", names)
            return running.enter_context(process)

        yield start
