"""The Spark session of a job: the user's master and settings over ours, a Java that is there, and our code with it.

Our settings are the measured ones: Arrow batches small enough to keep the sink's memory flat, filters handed to the
source, checkpoints by rename where the disk is local, temporary files inside the job's own directory.
"""

import os
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.java import find_java_home
from penstock.pipeline.shipping import code_archive, python_script, worker_python

TASK_ATTEMPTS = 4
_SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "1m",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_LOCAL_SETTINGS = {
    # A driver that nobody else talks to needs no name that others can resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's 200 are for clusters: each costs a stateful query a file and a Python task per batch.
    "spark.sql.shuffle.partitions": "8",
    # Rename is atomic on a local disk, and three times as fast as what Spark does for file systems at large.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %m%n%ex{short}
"""
_LOCAL = re.compile(r"local(?:\[([\w*]+)\])?")
_ENVIRONMENT = "environment"  # the name under which an environment archive is unpacked on executors
_PACKED_PYTHON = f"./{_ENVIRONMENT}/bin/python"  # from where an executor runs


def make_session(
    name: str,
    master: str | None,
    settings: Mapping[str, str],
    scratch: str | None = None,
    archives: str | None = None,
) -> Any:
    """Raises `PipelineError` with what is missing. `archives` is an environment that executors run in."""
    _check_libraries()
    from pyspark.sql import SparkSession

    java_home = find_java_home()
    if java_home is not None:
        os.environ["JAVA_HOME"] = java_home
    master = _with_retries(master or settings.get("spark.master") or "local[*]")
    _check_master(master, os.environ)
    values = _settings(master, settings, scratch, archives)
    # PySpark looks only into the environment for the Python of its executors.
    python = _executor_python(master, settings, archives)
    if python is not None:
        os.environ["PYSPARK_PYTHON"] = python
    builder = SparkSession.builder.appName(f"penstock {name}").master(master)
    for key, value in values.items():
        builder = builder.config(key, value)
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        with nullcontext() if master.startswith("local") else _code_on_path():
            if python == _PACKED_PYTHON:
                _launch_java({**values, "spark.master": master})
            session = builder.getOrCreate()
    except Exception as error:  # the edge to Java: anything may come out of a launch
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PipelineError(
            f"Spark does not start with master {master}: {first}",
            hint="what Spark printed above says why; check --master and --conf",
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupted)  # Spark takes Ctrl-C for itself; jobs end in their own way
    if not master.startswith("local"):
        session.sparkContext.addPyFile(code_archive())
    return session


def _check_master(master: str, environment: Mapping[str, str]) -> None:
    """Where Spark's own words would come as a page of Java."""
    if master.startswith("yarn") and not (environment.get("HADOOP_CONF_DIR") or environment.get("YARN_CONF_DIR")):
        raise PipelineError(
            "master yarn says nothing of where the cluster is",
            hint="set HADOOP_CONF_DIR or YARN_CONF_DIR to the directory with its yarn-site.xml",
        )


def _executor_python(master: str, settings: Mapping[str, str], archives: str | None) -> str | None:
    """None: the `python3` of the executors' machines."""
    if master.startswith("local"):
        return worker_python()
    if "spark.pyspark.python" in settings:
        return settings["spark.pyspark.python"]
    return _PACKED_PYTHON if archives is not None else None


def _launch_java(values: Mapping[str, str]) -> None:
    """Java plans sources and sinks with the executors' Python too, and looks for it by the same relative path: it is
    started in a directory where that is this Python."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        directory = python_script("driver", _PACKED_PYTHON)
        conf = SparkConf(loadDefaults=False).setAll(list(values.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"cwd": str(directory)}))


@contextmanager
def _code_on_path() -> Iterator[None]:
    """For the Java that is started inside: it plans sources and sinks on this machine, but with the Python of the
    executors, which need not know Penstock. Other processes must not see the zip: it is not all of Penstock."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, code_archive()]))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _settings(master: str, given: Mapping[str, str], scratch: str | None, archives: str | None) -> dict[str, str]:
    values = dict(_SETTINGS)
    if master.startswith("local"):
        values |= _LOCAL_SETTINGS
    if archives is not None:
        place = archives if "://" in archives else os.path.abspath(archives)
        values["spark.archives"] = f"{place}#{_ENVIRONMENT}"
    if scratch is not None:
        values |= {"spark.local.dir": scratch, "spark.sql.warehouse.dir": f"{scratch}/warehouse"}
        os.makedirs(scratch, exist_ok=True)
        logging = os.path.join(scratch, "log4j2.properties")
        with open(logging, "w") as file:
            file.write(_LOGGING)
        values[_JAVA_OPTIONS] = f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile=file:{logging}"
    for key, value in given.items():
        if key == _JAVA_OPTIONS and key in values:
            values[key] += f" {value}"
        else:
            values[key] = value
    return values


def _with_retries(master: str) -> str:
    """A local Spark gives a task one attempt unless it is told otherwise; a killed worker would end the job."""
    local = _LOCAL.fullmatch(master)
    return f"local[{local[1] or 1},{TASK_ATTEMPTS}]" if local else master


def _check_libraries() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise PipelineError("PySpark is not installed", hint="pip install 'penstock[pipeline]'") from None
    try:
        pandas = version("pandas")
    except PackageNotFoundError:
        return
    if int(pandas.split(".")[0]) >= 3:
        raise PipelineError(f"PySpark does not work with pandas {pandas}", hint="pip install 'pandas<3'")
