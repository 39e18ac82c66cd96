"""One Spark session and one broker for all tests of the pipeline; without PySpark or Java they skip and say why."""

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.testing import Broker


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install penstock[pipeline]")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("Spark needs Java 17 or 21, and there is none")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from penstock.pipeline.session import make_session

    scratch = str(tmp_path_factory.mktemp("spark"))
    settings = {
        "spark.sql.shuffle.partitions": "2",
        # A short life: the second compiler would only cost.
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}",
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
    }
    session = make_session("tests", "local[2]", settings, scratch)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running
