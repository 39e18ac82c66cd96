"""What Spark moves through our source, sink, archive and replay, beside Spark's own Kafka connector in the same run.

    make bench-pipeline      # or: python -m bench.pipeline --json --megabytes 200

Both work on the same broker and the same rows, by turns, several times; the medians are compared. The first turn of
each is not counted: it loads classes, libraries and compiled loops. Without Maven only ours is measured.

- source: a topic into Spark's no-op sink; both read committed records.
- sink: rows that Spark keeps in memory into a topic; ours exactly once, theirs at least once, as it always does.
- archive: ours is the job, a topic into a Delta table with positions and files in one commit; theirs is
  `format("kafka")` into Parquet files of the same layout: zstd, partitioned by topic and day, with headers. It has no
  table format (that would need jars), no positions to go on from and no columns of batches: less to do than ours.
- replay: ours is the job, that table into a topic, exactly once and in order; theirs those files into
  `format("kafka")`, to the partitions that rows had, in no order, without their timestamps. Both write lz4.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from tests.external import Unavailable, obtain_spark_connector

from bench.broker_process import MeasuredBroker
from penstock.client.raw import RawClient
from penstock.client.sync import Admin
from penstock.pipeline.archive_job import archive
from penstock.pipeline.job import JobContext
from penstock.pipeline.replay_job import replay
from penstock.pipeline.session import make_session
from penstock.records.batch import parse_header
from penstock.records.builder import build_batch

SIZES = (100, 1024)
PARTITIONS = 4
TURNS = 4
OURS, THEIRS = "penstock", "kafka"
_BATCH_BYTES = 100_000
_DIFFERENT_BATCHES = 40  # more than a compressor looks back


class Setup(NamedTuple):
    spark: Any
    bootstrap: str
    sources: tuple[str, ...]
    directory: Path
    turns: int = TURNS


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


def create_topics(setup: Setup, topics: Iterable[str]) -> None:
    with Admin(setup.bootstrap) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)


def delete_topics(setup: Setup, topics: Iterable[str]) -> None:
    """What was measured must not fill the disk and the page cache of what comes next."""
    with Admin(setup.bootstrap) as admin:
        admin.delete_topics(list(topics))


def make_batches(size: int) -> list[bytes]:
    """Batches of about 100 KB, as producers make them. Values are text that shrinks to half, each another one."""
    count = max(1, _BATCH_BYTES // (size + 24))
    now_ms = time.time_ns() // 1_000_000

    def text(length: int) -> bytes:
        return os.urandom((length + 1) // 2).hex()[:length].encode()

    return [
        bytes(build_batch([(text(16), text(size)) for _ in range(count)], timestamp_ms=now_ms))
        for _ in range(_DIFFERENT_BATCHES)
    ]


def fill(setup: Setup, topic: str, size: int, rows: int) -> int:
    """Returns how many rows there are."""
    create_topics(setup, [topic])
    batches = make_batches(size)
    per_batch = parse_header(batches[0]).record_count
    requests = max(rows // per_batch // PARTITIONS, 1)

    async def produce() -> None:
        async with RawClient(setup.bootstrap) as client:
            for batch in islice(cycle(batches), requests):
                await asyncio.gather(*(client.produce_batch(topic, n, batch) for n in range(PARTITIONS)))

    asyncio.run(produce())
    return requests * per_batch * PARTITIONS


def by_turns(setup: Setup, work: Callable[[str, int], None]) -> dict[str, float]:
    """Seconds of `work(source, turn)`."""
    seconds: dict[str, list[float]] = {source: [] for source in setup.sources}
    for turn in range(setup.turns + 1):
        for source in setup.sources:
            begun = time.perf_counter()
            work(source, turn)
            if turn:
                seconds[source].append(time.perf_counter() - begun)
    return {source: statistics.median(found) for source, found in seconds.items()}


def read(setup: Setup, source: str, topic: str, **options: str) -> Any:
    reader = setup.spark.read.format(source).option("kafka.bootstrap.servers", setup.bootstrap)
    return reader.options(**{"subscribe": topic, "kafka.isolation.level": "read_committed", **options}).load()


def measure_source(setup: Setup, size: int, rows: int) -> Figure:
    topic = f"source-{size}"
    count = fill(setup, topic, size, rows)

    def work(source: str, _: int) -> None:
        read(setup, source, topic).write.format("noop").mode("overwrite").save()

    assert all(read(setup, source, topic).count() == count for source in setup.sources)
    found = Figure("source", size, count, by_turns(setup, work))
    delete_topics(setup, [topic])
    return found


def measure_sink(setup: Setup, size: int, rows: int) -> Figure:
    """Rows that are ready: kept in memory by Spark before the clock runs."""
    key = "cast(id as string)"
    frame = setup.spark.range(0, rows, 1, PARTITIONS).selectExpr(f"{key} key", f"lpad({key}, {size}, 'x') value")
    frame = frame.cache()
    frame.count()
    topics = {source: f"sink-{source}-{size}" for source in setup.sources}
    create_topics(setup, topics.values())

    def work(source: str, _: int) -> None:
        writer = frame.write.format(source).option("kafka.bootstrap.servers", setup.bootstrap)
        writer.option("topic", topics[source]).mode("append").save()

    found = Figure("sink", size, rows, by_turns(setup, work))
    frame.unpersist()
    delete_topics(setup, topics.values())
    return found


def archive_ours(setup: Setup, topic: str, table: str) -> None:
    archive(JobContext(setup.bootstrap, spark=setup.spark), [topic], table=table)


def archive_theirs(setup: Setup, topic: str, table: str) -> None:
    rows = read(setup, THEIRS, topic, includeHeaders="true")
    rows = rows.selectExpr("*", "cast(to_date(timestamp) as string) day")
    rows.write.partitionBy("topic", "day").option("compression", "zstd").parquet(table)


def replay_ours(setup: Setup, topic: str, table: str, target: str, turn: int) -> None:
    context = JobContext(setup.bootstrap, spark=setup.spark)
    done = replay(context, table=table, mapping={topic: target}, replay_name=f"{target}-{turn}")
    assert done.rows_replayed


def replay_theirs(setup: Setup, table: str, target: str) -> None:
    rows = setup.spark.read.parquet(table).selectExpr("key", "value", "headers", "partition", f"'{target}' topic")
    writer = rows.write.format(THEIRS).option("kafka.bootstrap.servers", setup.bootstrap)
    writer.option("includeHeaders", "true").option("kafka.compression.type", "lz4").mode("append").save()


def _archive_by(setup: Setup, source: str, topic: str, table: str) -> None:
    (archive_ours if source == OURS else archive_theirs)(setup, topic, table)


def measure_archive(setup: Setup, size: int, rows: int) -> Figure:
    topic = f"archive-{size}"
    count = fill(setup, topic, size, rows)
    tables = setup.directory / topic

    def work(source: str, turn: int) -> None:
        _archive_by(setup, source, topic, str(tables / f"{source}-{turn}"))

    found = Figure("archive", size, count, by_turns(setup, work))
    for source in setup.sources:
        assert setup.spark.read.parquet(str(tables / f"{source}-0" / f"topic={topic}")).count() == count
    shutil.rmtree(tables)
    delete_topics(setup, [topic])
    return found


def measure_replay(setup: Setup, size: int, rows: int) -> Figure:
    """Each replays what it archived itself."""
    topic = f"replay-{size}"
    count = fill(setup, topic, size, rows)
    tables = {source: str(setup.directory / topic / source) for source in setup.sources}
    targets = {source: f"{topic}-{source}" for source in setup.sources}
    create_topics(setup, targets.values())
    for source, table in tables.items():
        _archive_by(setup, source, topic, table)

    def work(source: str, turn: int) -> None:
        if source == OURS:
            replay_ours(setup, topic, tables[source], targets[source], turn)
        else:
            replay_theirs(setup, tables[source], targets[source])

    found = Figure("replay", size, count, by_turns(setup, work))
    shutil.rmtree(setup.directory / topic)
    delete_topics(setup, [topic, *targets.values()])
    return found


def measure(megabytes: int, master: str, only: set[str], turns: int) -> list[Figure]:
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
                setup = Setup(spark, f"127.0.0.1:{broker.port}", sources, Path(directory, "tables"), turns)
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
JOBS: dict[str, Callable[[Setup, int, int], Figure]] = {
    "source": measure_source,
    "sink": measure_sink,
    "archive": measure_archive,
    "replay": measure_replay,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object per line on stdout")
    parser.add_argument("--megabytes", type=int, default=200, help="of values, per job and size")
    parser.add_argument("--turns", type=int, default=TURNS, help="that are counted, of each side")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", choices=sorted(JOBS), action="append")
    given = parser.parse_args()
    figures = measure(given.megabytes, given.master, set(given.only or JOBS), given.turns)
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
