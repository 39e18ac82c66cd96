"""The Spark session of a job: the user's master and settings over ours, and a Java that is there.

Our settings are the measured ones: Arrow batches small enough to keep the sink's memory flat, filters handed to the
source, temporary files inside the job's own directory.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from penstock.pipeline.errors import PipelineError

_SETTINGS = {
    "spark.sql.execution.arrow.maxBytesPerBatch": "1m",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def make_session(name: str, master: str | None, settings: Mapping[str, str], scratch: str | None = None) -> Any:
    """Raises `PipelineError` with what is missing."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise PipelineError("PySpark is not installed: pip install 'penstock[pipeline]'") from None
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"penstock {name}").master(master or "local[*]")
    values = {**_SETTINGS, **settings}
    if scratch is not None:
        values.setdefault("spark.local.dir", scratch)
    for key, value in values.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _find_java() -> None:
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return
    raise PipelineError("Spark needs Java 17 or 21: install one, or point JAVA_HOME to it")
