"""Jobs on a real Spark cluster: a master and two workers, processes of their own, that know nothing of Penstock.

The executors' Python has the libraries but no Penstock: what they run of it came with the job, as a zip.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.pipeline.java import find_java_home
from penstock.testing import Broker
from tests.pipeline.conftest import require_spark
from tests.pipeline.test_source import fill
from tests.waiting import eventually

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.client.sync import Admin
from tests.pipeline.test_crash import content

ROOT = Path(__file__).parents[2]
START_SECONDS = 120.0


def foreign_python(directory: Path) -> Path:
    """This Python with all its libraries but Penstock."""
    view = directory / "libraries"
    view.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not re.match(r"(__editable__.*|pyspark_)?penstock|.*\.(pth|egg-link)$|__editable__", entry.name):
                (view / entry.name).symlink_to(entry)
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{view}:$PYTHONPATH" exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


@contextmanager
def spark_process(directory: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A process of Spark's own; yields its log."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    environment |= {"SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    java_home = find_java_home()
    if java_home is not None:
        environment["JAVA_HOME"] = java_home
    log = directory / f"{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), *arguments], env=environment, cwd=directory, stdout=out, stderr=out
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


@contextmanager
def spark_cluster(directory: Path) -> Iterator[str]:
    """The address of a master with two workers of one core each."""
    deploy = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        log = running.enter_context(spark_process(directory, "master", f"{deploy}.master.Master", *local))
        found = eventually(lambda: re.search(r"spark://[\d.]+:\d+", log.read_text()), START_SECONDS)
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "600m", "--work-dir", str(directory / f"work-{number}"))
            arguments = (f"{deploy}.worker.Worker", *local, *size, found[0])
            running.enter_context(spark_process(directory, f"worker-{number}", *arguments))
        eventually(lambda: log.read_text().count("Registering worker") == 2, START_SECONDS)
        yield found[0]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_jobs_on_a_standalone_cluster(tmp_path: Path) -> None:
    require_spark()
    python = foreign_python(tmp_path)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    check = [python, "-c", "import pyarrow, msgspec, penstock"]
    unknown = subprocess.run(check, env=environment, capture_output=True, text=True)
    assert "No module named 'penstock'" in unknown.stderr
    with Broker() as broker, spark_cluster(tmp_path) as master:
        fill(broker, "orders", 2_000, partitions=2)
        with Admin(broker.bootstrap) as admin:
            for topic in ("replayed", "sunk"):
                admin.create_topic(topic, 2)
        command = [
            sys.executable,
            "-m",
            "tests.pipeline.cluster_job",
            broker.bootstrap,
            master,
            str(python),
            tmp_path,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, re.sub(r"\n\tat .*", "", done.stderr)[-4000:]
        answer = json.loads(done.stdout.splitlines()[-1])
        expected = content(broker.bootstrap, "orders")
        assert content(broker.bootstrap, "replayed") == expected
        sunk = content(broker.bootstrap, "sunk")
        assert Counter(v for vs in sunk.values() for v in vs) == Counter(v for vs in expected.values() for v in vs)
    assert (answer["archived"], answer["replayed"]) == (2_000, 2_000)
    executors = {re.sub(r".*/(work-\d)/.*", r"\1", place) for place, _, _ in answer["places"]}
    assert executors == {"work-1", "work-2"}
    assert all("penstock.zip/penstock/pipeline/" in source for _, source, _ in answer["places"])
