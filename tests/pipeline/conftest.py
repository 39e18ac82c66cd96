"""One Spark session and one broker for all tests of the pipeline; without PySpark or Java they skip and say why."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.java import find_java_home
from penstock.testing import Broker

# A short life: the second compiler would only cost.
FAST_START = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def require_spark() -> None:
    """Skips where Spark cannot run."""
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install penstock[pipeline]")
    try:
        find_java_home()
    except PipelineError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    require_spark()
    from penstock.pipeline.session import make_session

    settings = {"spark.sql.shuffle.partitions": "2", **FAST_START}
    session = make_session("tests", "local[2,2]", settings, str(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running
