"""Topics read by Spark: batches, streams, limits, what is lost, and the lag that everybody sees."""

from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Admin, Producer
from penstock.testing import Broker


def fill(broker: Broker, topic: str, count: int, partitions: int = 3) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic(topic, partitions)
    with Producer(broker.bootstrap) as producer:
        for number in range(count):
            key = f"k{number % 17}".encode()
            producer.send(topic, value=f"v{number}".encode(), key=key, headers=[("n", str(number).encode())])
        producer.flush()


def load(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    for name, value in {"subscribe": topic, **options}.items():
        reader = reader.option(name, value)
    return reader.load()


def test_a_batch_reads_every_record_once(spark: Any, broker: Broker) -> None:
    fill(broker, "batch", 2_000)
    frame = load(spark, broker, "batch", includeHeaders="true")
    rows = frame.selectExpr("cast(value as string) v", "partition", "offset", "headers[0].value h").collect()
    assert sorted(int(row.v[1:]) for row in rows) == list(range(2_000))
    assert all(row.h.decode() == row.v[1:] for row in rows)
    assert len({(row.partition, row.offset) for row in rows}) == 2_000
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_offsets_bound_a_batch(spark: Any, broker: Broker) -> None:
    fill(broker, "bounded", 100, partitions=1)
    frame = load(
        spark, broker, "bounded", startingOffsets='{"bounded":{"0":10}}', endingOffsets='{"bounded":{"0":13}}'
    )
    assert [row.offset for row in frame.select("offset").collect()] == [10, 11, 12]
    parts = load(spark, broker, "bounded", minPartitions="5").rdd.getNumPartitions()
    assert parts == 5


def test_a_stream_goes_on_where_it_was_and_shows_its_lag(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "stream", 500)

    def run() -> list[int]:
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = reader.option("subscribe", "stream").option("startingOffsets", "earliest").option("groupId", "lag")
        stream = reader.option("maxOffsetsPerTrigger", "200").load()
        sizes: list[int] = []
        running = stream.writeStream.foreachBatch(lambda frame, _: sizes.append(frame.count()))
        running = running.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        running.start().awaitTermination()
        return [size for size in sizes if size]

    assert run() == [200, 200, 100]
    with Producer(broker.bootstrap) as producer:
        for number in range(50):
            producer.send("stream", value=b"more", key=str(number).encode())
        producer.flush()
    assert run() == [50]
    with Admin(broker.bootstrap) as admin:
        committed = admin.group_offsets("lag")
    assert sum(position.offset for position in committed.values()) == 550


def test_a_repeated_first_batch_starts_where_the_first_did(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """`latest` is decided once. What comes between a crash in the first batch and its repetition is not skipped."""
    fill(broker, "latest", 10, partitions=1)
    seen: list[int] = []

    def run(fail: bool) -> None:
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        stream = reader.option("subscribe", "latest").option("startingOffsets", "latest").load()

        def take(frame: Any, _: int) -> None:
            if fail:
                raise RuntimeError("on purpose")
            seen.extend(row.offset for row in frame.select("offset").collect())

        running = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        running.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    with pytest.raises(Exception, match="on purpose"):
        run(fail=True)
    with Producer(broker.bootstrap) as producer:
        producer.send("latest", value=b"while it was down")
        producer.flush()
    run(fail=False)
    assert seen == [10]


def test_lost_records_are_named(spark: Any, broker: Broker) -> None:
    fill(broker, "lossy", 100, partitions=1)
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({("lossy", 0): 40})
    options = {"startingOffsets": '{"lossy":{"0":10}}'}
    with pytest.raises(Exception, match="offsets 10 to 39 of lossy-0 are gone"):
        load(spark, broker, "lossy", **options).count()
    assert load(spark, broker, "lossy", failOnDataLoss="false", **options).count() == 60


def test_wrong_options_are_refused_with_a_sentence(spark: Any, broker: Broker) -> None:
    with pytest.raises(Exception, match="no option 'startingofsets'; did you mean startingOffsets"):
        load(spark, broker, "batch", startingOfsets="earliest").count()
    with pytest.raises(Exception, match="cannot read topic 'nowhere'"):
        load(spark, broker, "nowhere").count()
