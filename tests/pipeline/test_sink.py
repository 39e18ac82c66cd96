"""Rows written by Spark: all or nothing, each batch once whoever dies, nothing left open."""

from typing import Any

import pytest

from penstock.client.sync import Admin
from penstock.testing import Broker

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow as pa

from penstock.pipeline import sink
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.reader import TopicReader
from penstock.pipeline.sink import Attempt, SinkOptions


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


def test_spark_writes_and_reads(spark: Any, broker: Broker) -> None:
    topic(broker, "frames")
    frame = spark.range(5_000).selectExpr("cast(id as string) key", "cast(id * 2 as string) value")
    frame.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "frames").mode(
        "append"
    ).save()
    values = visible(broker, "frames")
    assert sorted(map(int, values)) == [n * 2 for n in range(5_000)]


def test_a_failed_job_leaves_nothing(spark: Any, broker: Broker) -> None:
    topic(broker, "failing")
    frame = spark.range(100).selectExpr("if(id = 99, raise_error('on purpose'), cast(id as string)) value")
    writer = frame.write.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    with pytest.raises(Exception, match="on purpose"):
        writer.option("topic", "failing").mode("append").save()
    assert visible(broker, "failing") == []
