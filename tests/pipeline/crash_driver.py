"""A driver to be killed: an archive, a replay and a streaming query into the sink, side by side in one session.

`python -m tests.pipeline.crash_driver BOOTSTRAP DIRECTORY` runs until DIRECTORY/finish exists, then up to the end of
everything, and ends with 0. How far each job is goes to DIRECTORY/progress, a line each.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

from penstock.pipeline.archive_job import archive
from penstock.pipeline.errors import BrokerAway
from penstock.pipeline.explain import explain
from penstock.pipeline.job import JobContext
from penstock.pipeline.replay_job import replay

SOURCE, REPLAYED, SUNK = "source", "replayed", "sunk"
ROUND_RECORDS = 150


class Jobs:
    def __init__(self, bootstrap: str, directory: Path, spark: Any) -> None:
        self._bootstrap = bootstrap
        self._directory = directory
        self._spark = spark
        self._context = JobContext(bootstrap, spark=spark)
        self._table = str(directory / "table")
        self._lock = threading.Lock()
        self.failed: list[str] = []
        self.archived_some = threading.Event()
        self.archived_all = threading.Event()

    @property
    def finishing(self) -> bool:
        return (self._directory / "finish").exists()

    @property
    def round_records(self) -> int:
        """Small, so that there are many to be killed in; nobody kills the last ones."""
        return 100_000 if self.finishing else ROUND_RECORDS

    def tell(self, job: str, done: int) -> None:
        with self._lock, open(self._directory / "progress", "a") as file:
            file.write(f"{job} {done}\n")

    def archive(self) -> None:
        last = False
        while not last:
            last = self.finishing
            self._archive_once()
        self.archived_all.set()

    def _archive_once(self) -> None:
        def progress(stage: str, done: int, total: int | None = None, unit: str = "records") -> None:
            self.tell("archive", done)
            self.archived_some.set()

        context = JobContext(self._bootstrap, spark=self._spark, progress=progress)
        archive(context, [SOURCE], table=self._table, round_records=self.round_records)

    def replay(self) -> None:
        last = False
        while not last:
            last = self.archived_all.wait(0.2)
            if not self.archived_some.is_set() and not last:
                continue
            context = JobContext(self._bootstrap, spark=self._spark)
            context.progress = lambda stage, done, total=None, unit="": self.tell("replay", done) if done else None
            replay(context, table=self._table, mapping={SOURCE: REPLAYED}, round_records=self.round_records)

    def stream(self) -> None:
        source = (
            self._spark.readStream.format("penstock")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("subscribe", SOURCE)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(ROUND_RECORDS))
            .load()
            .select("key", "value")
        )
        writer = (
            source.writeStream.format("penstock")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("topic", SUNK)
            .option("checkpointLocation", str(self._directory / "checkpoint"))
        )
        while not self.finishing:
            self._run_query(writer.trigger(processingTime="0 seconds").start())
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()

    def _run_query(self, query: Any) -> None:
        """Until it is told to end, or fails: a broker that is away ends a query, and it is started again."""
        seen = -1
        try:
            while not self.finishing and not query.awaitTermination(0.2):
                progress = query.lastProgress
                if progress is not None and progress["batchId"] != seen and progress["numInputRows"]:
                    seen = progress["batchId"]
                    self.tell("sink", seen)
        except Exception as error:  # whatever ended the query, the next one goes on
            self.tell(f"query-ended-{type(error).__name__}", 0)
            print(f"query: {explain(error)}", file=sys.stderr, flush=True)
        query.stop()

    def run(self) -> None:
        """Spark finds a sink's package only in the thread that made the session."""
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self.archive, self.replay)]
        for thread in threads:
            thread.start()
        self._guarded(self.stream)
        for thread in threads:
            thread.join()

    def _guarded(self, work: Any) -> None:
        """A job that failed because of the broker is run again, as its user would."""
        while True:
            try:
                work()
                return
            except Exception as error:  # told to the test by the exit code
                explained = explain(error) or error
                self.tell(f"{work.__name__}-failed-{type(explained).__name__}", 0)
                print(f"{work.__name__}: {explained}", file=sys.stderr, flush=True)
                if not isinstance(explained, BrokerAway) and not getattr(explained, "retriable", False):
                    self.failed.append(f"{work.__name__}: {explained!r}")
                    self.archived_all.set()
                    return


def main() -> int:
    from penstock.pipeline.session import make_session
    from tests.pipeline.conftest import FAST_START

    bootstrap, directory = sys.argv[1], Path(sys.argv[2])
    spark = make_session("crash", "local[2]", FAST_START, str(directory / f"scratch-{os.getpid()}"))
    jobs = Jobs(bootstrap, directory, spark)
    jobs.tell("started", os.getpid())
    jobs.run()
    for failure in jobs.failed:
        print(failure, file=sys.stderr)
    return 1 if jobs.failed else 0


if __name__ == "__main__":
    os._exit(main())
