"""Rows written by Spark: all or nothing, each batch once whoever dies, nothing left open."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.client.cluster import Cluster
from penstock.client.options import ConnectionOptions
from penstock.client.sync import Admin
from penstock.client.transactions import list_open_transactions
from penstock.testing import Broker

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow as pa

from penstock.pipeline import sink
from penstock.pipeline.abandoned import refuse_late_job
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.reader import TopicReader
from penstock.pipeline.sink import Attempt, SinkOptions
from penstock.pipeline.sink_options import new_job
from tests.pipeline.test_source import fill, load


def topic(broker: Broker, name: str, partitions: int = 3) -> SinkOptions:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(name, partitions)
    return SinkOptions(broker.bootstrap, name)


def rows(*values: bytes) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_arrays([pa.array(values, pa.binary()), pa.array(values, pa.binary())], ["key", "value"])
    ]


def visible(broker: Broker, name: str) -> list[bytes]:
    options = SourceOptions.parse({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name})
    reader = TopicReader(options)
    try:
        ranges = reader.batch_ranges()
    finally:
        reader.close()
    return sorted(value for table in read_ranges(options, ranges) for value in table.column("value").to_pylist())


def test_only_winners_are_seen(broker: Broker) -> None:
    """A retried task wrote other rows; the attempt that lost leaves nothing, not even an open transaction."""
    options = topic(broker, "winners")
    loser = sink.write_batches(options, Attempt("q1", "r", 0, 0, "0.0"), rows(b"a", b"lost"))
    winner = sink.write_batches(options, Attempt("q1", "r", 0, 0, "0.1"), rows(b"a", b"b"))
    other = sink.write_batches(options, Attempt("q1", "r", 0, 1, "0.0"), rows(b"c"))
    assert loser.rows == winner.rows == 2
    assert visible(broker, "winners") == []
    sink.commit(options, 0, [winner, other])
    assert visible(broker, "winners") == [b"a", b"b", b"c"]


def test_a_decided_batch_is_finished_and_not_written_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver dies between its decision and the commits; the batch is run again by the next driver."""
    options = topic(broker, "decided")
    first = sink.write_batches(options, Attempt("q2", "run1", 5, 0, "0.0"), rows(b"x"))

    async def die(*_: Any) -> None:
        raise RuntimeError("the driver dies here")

    with monkeypatch.context() as patch:
        patch.setattr(sink, "finish", die)
        with pytest.raises(RuntimeError):
            sink.commit(options, 5, [first])
    again = sink.write_batches(options, Attempt("q2", "run2", 5, 0, "0.0"), rows(b"x", b"different"))
    assert again.prepared is None
    sink.commit(options, 5, [again])
    assert visible(broker, "decided") == [b"x"]
    later = sink.write_batches(options, Attempt("q2", "run2", 6, 0, "0.0"), rows(b"y"))
    sink.commit(options, 6, [later])
    assert visible(broker, "decided") == [b"x", b"y"]


def test_an_undecided_batch_is_written_again(broker: Broker) -> None:
    """The driver dies before it decided: what was prepared is aborted by the next commit."""
    options = topic(broker, "undecided")
    sink.write_batches(options, Attempt("q3", "run1", 0, 0, "0.0"), rows(b"old"))
    new = sink.write_batches(options, Attempt("q3", "run2", 0, 0, "0.0"), rows(b"new"))
    sink.commit(options, 0, [new])
    assert visible(broker, "undecided") == [b"new"]


def open_transactions(broker: Broker) -> list[str]:
    async def look() -> list[str]:
        cluster = Cluster(ConnectionOptions(broker.bootstrap))
        await cluster.start()
        try:
            return await list_open_transactions(cluster, "penstock-sink/")
        finally:
            await cluster.stop()

    return asyncio.run(look())


def test_an_attempt_that_fails_undoes_what_it_wrote(broker: Broker) -> None:
    options = topic(broker, "undone")

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(b"never")
        raise RuntimeError("the rows end here")

    with pytest.raises(RuntimeError, match="end here"):
        sink.write_batches(options, Attempt("q4", "r", 0, 0, "0.0"), failing())
    assert open_transactions(broker) == []


def test_an_attempt_that_is_still_writing_when_others_won_leaves_nothing(broker: Broker) -> None:
    options = topic(broker, "late")
    winner = sink.write_batches(options, Attempt("q5", "r", 0, 0, "0.0"), rows(b"won"))

    def slow() -> Iterator[pa.RecordBatch]:
        with ThreadPoolExecutor(1) as driver:  # decides while this speculative attempt has not written a row
            driver.submit(sink.commit, options, 0, [winner]).result()
        yield from rows(b"late")

    def early_then_slow() -> Iterator[pa.RecordBatch]:
        yield from rows(b"early")
        yield from slow()

    late = sink.write_batches(options, Attempt("q5", "r", 0, 0, "0.1"), early_then_slow())
    assert late.prepared is None
    assert visible(broker, "late") == [b"won"]
    assert open_transactions(broker) == []


def test_a_failed_batch_undoes_every_attempt_but_never_a_decision(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = topic(broker, "failed")
    sink.write_batches(options, Attempt("q6", "r", 0, 0, "0.0"), rows(b"unheard of"))
    sink.abort(options, "q6", [None])
    assert open_transactions(broker) == []
    decided = sink.write_batches(options, Attempt("q6", "r", 1, 0, "0.0"), rows(b"decided"))

    async def die(*_: Any) -> None:
        raise RuntimeError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(sink, "finish", die)
        with pytest.raises(RuntimeError):
            sink.commit(options, 1, [decided])
    sink.abort(options, None, [decided])
    sink.resume(options, "q6")
    assert visible(broker, "failed") == [b"decided"]


def test_what_a_dead_job_left_is_undone_after_a_day(broker: Broker) -> None:
    options = topic(broker, "abandoned")
    day_ms, now_ms = 86_400_000, time.time_ns() // 1_000_000
    dead, alive = new_job(now_ms - day_ms - 60_000), new_job(now_ms)
    for job in (dead, alive):
        sink.write_batches(options, Attempt(job, "r", 0, 0, "0"), rows(job.encode()))
    other = sink.write_batches(options, Attempt("q7", "r", 0, 0, "0.0"), rows(b"other"))
    sink.commit(options, 0, [other])
    (left,) = open_transactions(broker)
    assert alive in left
    with pytest.raises(PipelineError, match="abandoned after a day"):
        refuse_late_job(dead, now_ms)
    sink.abort(options, alive, [])
    assert visible(broker, "abandoned") == [b"other"]


def test_another_kafka_gets_every_row_at_least_once_and_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options = topic(broker, "elsewhere")

    async def never(_: Any) -> bool:
        return False

    monkeypatch.setattr(sink, "speaks_two_phase", never)
    with pytest.raises(PipelineError, match="cannot be exactly-once"):
        sink.write_batches(
            options._replace(delivery="exactly-once"), Attempt("q8", "r", 0, 0, "0.0"), rows(b"refused")
        )
    for attempt in ("0.0", "0.1"):
        written = sink.write_batches(options, Attempt("q8", "r", 0, 0, attempt), rows(b"a", b"b"))
    assert caplog.text.count("this sink is at-least-once there") == 1
    assert written.rows == 2
    sink.commit(options, 0, [written])
    again = sink.write_batches(options, Attempt("q8", "r2", 0, 0, "0.0"), rows(b"a", b"b"))
    assert again.rows == 0  # a batch that is known to be written is not written again, there neither
    assert visible(broker, "elsewhere") == [b"a", b"a", b"b", b"b"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topik": "t"}, "did you mean topic"),
        ({"delivery": "exactly-twice"}, "delivery is auto, exactly-once or at-least-once"),
        ({"compression": "rar"}, "compression is one of"),
        ({"batchId": "4"}, "give queryId with it"),
        ({"kafka.transactional.id": "t"}, "a transaction of its own"),
        ({"maxBatchBytes": "0"}, "at least 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        SinkOptions.parse({"kafka.bootstrap.servers": "h:1", **options})


def test_a_stream_is_written_once_though_a_repeated_task_has_other_rows(
    spark: Any, broker: Broker, tmp_path: Path
) -> None:
    """The first attempt of the first batch's task dies after its rows are written; the second makes other rows."""
    fill(broker, "stream-in", 60, partitions=1)
    for name in ("out-even", "out-odd"):
        topic(broker, name, partitions=2)

    def number_attempts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        attempt = TaskContext.get().attemptNumber()
        for batch in batches:
            mark = pa.array([str(attempt).encode()] * batch.num_rows, pa.binary())
            yield batch.set_column(batch.schema.get_field_index("key"), "key", mark)
        if attempt == 0:
            raise RuntimeError("on purpose")

    columns = [
        "key",
        "value",
        "headers",
        "if(offset % 2 = 0, 'out-even', 'out-odd') topic",
        "1 partition",
        "timestamp",
    ]
    for _ in range(2):
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.options(subscribe="stream-in", startingOffsets="earliest", includeHeaders="true")
        frame = reader.load().selectExpr(*columns)
        frame = frame.mapInArrow(number_attempts, frame.schema)
        writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()
    found = load(spark, broker, "out-even,out-odd", includeHeaders="true").collect()
    assert sorted(int(row.value[1:]) for row in found) == list(range(60))
    assert {row.key for row in found} == {b"1"}
    assert all(row.headers[0].value == row.value[1:] and row.partition == 1 for row in found)
    assert all((row.topic == "out-even") == (int(row.value[1:]) % 2 == 0) for row in found)
    assert open_transactions(broker) == []


def test_spark_writes_and_reads(spark: Any, broker: Broker) -> None:
    topic(broker, "frames")
    frame = spark.range(5_000).selectExpr("cast(id as string) key", "cast(id * 2 as string) value")
    frame.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "frames").mode(
        "append"
    ).save()
    topic(broker, "batches")
    for _ in range(2):  # as `foreachBatch` repeats a batch
        writer = frame.limit(100).write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        writer.options(topic="batches", queryId="by-batch", batchId="7").mode("append").save()
    assert len(visible(broker, "batches")) == 100
    values = visible(broker, "frames")
    assert sorted(map(int, values)) == [n * 2 for n in range(5_000)]


def test_a_failed_job_leaves_nothing(spark: Any, broker: Broker) -> None:
    topic(broker, "failing")
    frame = spark.range(100).selectExpr("if(id = 99, raise_error('on purpose'), cast(id as string)) value")
    writer = frame.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="on purpose"):
        writer.option("topic", "failing").mode("append").save()
    assert visible(broker, "failing") == []
    assert open_transactions(broker) == []
