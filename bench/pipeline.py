"""What Spark moves through our source and sink, beside Spark's own Kafka connector in the same run.

    make bench-pipeline      # or: python -m bench.pipeline --json --megabytes 200

Both read the same topic of the same broker and write the same rows to it, by turns, several times; the medians are
compared. Reading ends in Spark's no-op sink. Ours reads committed records and writes exactly once; theirs is given
read_committed too, and writes at least once, as it always does. The first turn of each is not counted: it loads
classes, libraries and compiled loops. Without Maven only ours is measured.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.external import Unavailable, obtain_spark_connector

from bench.broker_process import MeasuredBroker
from bench.load import make_batch
from penstock.client.raw import RawClient
from penstock.client.sync import Admin
from penstock.pipeline.session import make_session
from penstock.records.batch import parse_header

SIZES = (100, 1024)
PARTITIONS = 4
TURNS = 5
OURS, THEIRS = "penstock", "kafka"


class Setup(NamedTuple):
    spark: Any
    bootstrap: str
    sources: tuple[str, ...]


class Figure(NamedTuple):
    """Of one job at one size of values, by source."""

    job: str
    size: int
    rows: int
    seconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        said: dict[str, Any] = {"job": self.job, "value_bytes": self.size}
        for source, seconds in self.seconds.items():
            said[f"{source}_rows_per_s"] = round(self.rows / seconds)
            said[f"{source}_mb_per_s"] = round(self.rows * self.size / seconds / 1e6, 1)
        if THEIRS in self.seconds:
            said["ratio"] = round(self.seconds[THEIRS] / self.seconds[OURS], 2)
        return said


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def create_topic(setup: Setup, topic: str) -> None:
    with Admin(setup.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS)


def fill(setup: Setup, topic: str, size: int, rows: int) -> int:
    """Batches of about 100 KB, as producers make them; returns how many rows there are."""
    create_topic(setup, topic)
    batch = make_batch(size, 100_000)
    per_batch = parse_header(batch).record_count
    requests = max(rows // per_batch // PARTITIONS, 1)

    async def produce() -> None:
        async with RawClient(setup.bootstrap) as client:
            for _ in range(requests):
                await asyncio.gather(*(client.produce_batch(topic, n, batch) for n in range(PARTITIONS)))

    asyncio.run(produce())
    return requests * per_batch * PARTITIONS


def by_turns(setup: Setup, work: Callable[[str], None]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {source: [] for source in setup.sources}
    for turn in range(TURNS + 1):
        for source in setup.sources:
            begun = time.perf_counter()
            work(source)
            if turn:
                seconds[source].append(time.perf_counter() - begun)
    return {source: statistics.median(found) for source, found in seconds.items()}


def read(setup: Setup, source: str, topic: str) -> Any:
    reader = setup.spark.read.format(source).option("kafka.bootstrap.servers", setup.bootstrap)
    return reader.options(**{"subscribe": topic, "kafka.isolation.level": "read_committed"}).load()


def measure_source(setup: Setup, size: int, rows: int) -> Figure:
    topic = f"source-{size}"
    count = fill(setup, topic, size, rows)

    def work(source: str) -> None:
        read(setup, source, topic).write.format("noop").mode("overwrite").save()

    assert all(read(setup, source, topic).count() == count for source in setup.sources)
    return Figure("source", size, count, by_turns(setup, work))


def measure_sink(setup: Setup, size: int, rows: int) -> Figure:
    """Rows that are ready: kept in memory by Spark before the clock runs."""
    key = "cast(id as string)"
    frame = setup.spark.range(0, rows, 1, PARTITIONS).selectExpr(f"{key} key", f"lpad({key}, {size}, 'x') value")
    frame = frame.cache()
    frame.count()
    for source in setup.sources:
        create_topic(setup, f"sink-{source}-{size}")

    def work(source: str) -> None:
        writer = frame.write.format(source).option("kafka.bootstrap.servers", setup.bootstrap)
        writer.option("topic", f"sink-{source}-{size}").mode("append").save()

    found = Figure("sink", size, rows, by_turns(setup, work))
    frame.unpersist()
    return found


def measure(megabytes: int, master: str, only: set[str]) -> list[Figure]:
    settings: dict[str, str] = {"spark.sql.shuffle.partitions": "2"}
    sources: tuple[str, ...] = (OURS,)
    try:
        jars = sorted(obtain_spark_connector().glob("*.jar"))
        settings["spark.jars"] = ",".join(map(str, jars))
        sources = (OURS, THEIRS)
    except Unavailable as reason:
        say(f"only ours is measured: {reason}")
    figures = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        spark = make_session("bench", master, settings, f"{directory}/spark")
        try:
            with MeasuredBroker(Path(directory, "broker"), {"flush.mode": "os"}) as broker:
                setup = Setup(spark, f"127.0.0.1:{broker.port}", sources)
                for size in SIZES:
                    rows = megabytes * 1_000_000 // size
                    for job, work in JOBS.items():
                        if job in only:
                            figures.append(work(setup, size, rows))
                            say(json.dumps(figures[-1].as_dict()))
        finally:
            spark.stop()
    return figures


# A job more is a function more: (setup, bytes per value, rows) -> Figure.
JOBS: dict[str, Callable[[Setup, int, int], Figure]] = {"source": measure_source, "sink": measure_sink}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object per line on stdout")
    parser.add_argument("--megabytes", type=int, default=200, help="of values, per job and size")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=sorted(JOBS), action="append")
    given = parser.parse_args()
    figures = measure(given.megabytes, given.master, set(given.only or JOBS))
    if given.json:
        for figure in figures:
            print(json.dumps(figure.as_dict()))
        return
    print(f"{'job':<8}{'bytes':>7}{'ours rows/s':>14}{'MB/s':>8}{'theirs rows/s':>16}{'MB/s':>8}{'ratio':>8}")
    for figure in figures:
        row = figure.as_dict()
        print(
            f"{figure.job:<8}{figure.size:>7}{row['penstock_rows_per_s']:>14,}{row['penstock_mb_per_s']:>8}"
            f"{row.get('kafka_rows_per_s', 0):>16,}{row.get('kafka_mb_per_s', 0):>8}{row.get('ratio', 0):>8}"
        )


if __name__ == "__main__":
    main()
