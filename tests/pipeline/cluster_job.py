"""A driver on a Spark cluster: archive, replay, and a stream into the sink, in one session; what came out as JSON.

`python -m tests.pipeline.cluster_job BOOTSTRAP MASTER PYTHON DIRECTORY [ARCHIVE]`: executors run PYTHON, or if it
is empty what is in an environment archive.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from penstock.pipeline.archive_job import archive
from penstock.pipeline.job import JobContext
from penstock.pipeline.replay_job import replay
from penstock.pipeline.tasks import TaskAttempt, run_tasks
from tests.pipeline.conftest import FAST_START


def where(_: int, attempt: TaskAttempt) -> tuple[str, str, str]:
    """In which executor's directory, and where its Penstock and its libraries come from. Travels by value, being of
    `__main__`."""
    import pyarrow

    import penstock.pipeline.fetching

    return os.getcwd(), str(penstock.pipeline.fetching.__file__), os.path.abspath(pyarrow.__file__)


def stream(spark: Any, bootstrap: str, directory: str) -> None:
    source = spark.readStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    frame = source.option("subscribe", "orders").option("startingOffsets", "earliest").load()
    sink = frame.select("key", "value").writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    sink = sink.option("topic", "sunk").option("checkpointLocation", f"{directory}/checkpoint")
    for attempts_left in (2, 1, 0):
        try:
            sink.trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            # Spark gives the Python of a stream ten seconds to start, which a busy machine may need for less.
            if "failed to connect back" not in str(error) or not attempts_left:
                raise


def main() -> None:
    bootstrap, master, python, directory, *archives = sys.argv[1:]
    conf = {"spark.executor.memory": "512m", **FAST_START}
    if python:
        conf["spark.pyspark.python"] = python
    conf["spark.executor.extraJavaOptions"] = FAST_START["spark.driver.extraJavaOptions"]
    with JobContext(bootstrap, master=master, conf=conf, archives=archives[0] if archives else None) as context:
        places = run_tasks(context.spark, where, list(range(8)))
        table = str(Path(directory) / "table")
        archived = archive(context, ["orders"], table=table, round_records=500).rows_archived
        replayed = replay(context, table=table, mapping={"orders": "replayed"}).rows_replayed
        stream(context.spark, bootstrap, directory)
    print(json.dumps({"places": places, "archived": archived, "replayed": replayed}))


if __name__ == "__main__":
    main()
