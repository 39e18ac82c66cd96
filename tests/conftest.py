"""Fixtures that several suites share; how the suites are spread over processes; the figures at the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.processes import BrokerProcess

TOGETHER = ("cluster", "pipeline", "conformance", "crash", "sim")
"""Suites that one process runs as a whole, longest first: they share a broker, a JVM or Spark, or they take times."""
APART = ("pipeline/test_crash.py",)
"""Long files of theirs that share nothing with the others: they start what they need themselves."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks for the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """For `pytest -n N`: a suite of `TOGETHER` stays together, elsewhere a file does. Long ones begin first."""
    here = Path(__file__).parent

    def suite(item: pytest.Item) -> str:
        return item.path.relative_to(here).parts[0]

    for item in items:
        file = item.path.relative_to(here).as_posix()
        group = suite(item) if suite(item) in TOGETHER and file not in APART else file
        item.add_marker(pytest.mark.xdist_group(group))
    order = {name: place for place, name in enumerate(TOGETHER)}
    items.sort(key=lambda item: order.get(suite(item), len(order)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests marked `figures` printed is shown although they passed."""
    for report in terminalreporter.stats.get("passed", []):
        if "figures" in report.keywords and report.capstdout:
            terminalreporter.section(report.nodeid, sep="-")
            terminalreporter.write(report.capstdout.strip() + "\n")


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts real broker processes with the given settings; they are stopped after the test."""
    with ExitStack() as running:

        def start(**settings: str) -> BrokerProcess:
            names = {name.replace("_", "."): value for name, value in settings.items()}
            process = BrokerProcess(tmp_path / f"broker-{len(list(tmp_path.iterdir()))}", names)
            return running.enter_context(process)

        yield start
