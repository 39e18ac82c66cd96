"""Topics read by Spark: batches, streams, limits, what is lost, and the lag that everybody sees."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.cli.main import cli
from penstock.client.sync import Admin, Producer
from penstock.client.types import TopicPartition
from penstock.pipeline.errors import DataLost
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.reader import TopicReader
from penstock.testing import Broker
from tests.waiting import eventually

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install penstock[pipeline]")

from pyspark_penstock.progress import ProgressListener, publish_progress


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


def test_filters_on_partition_offset_and_time_read_less(spark: Any, broker: Broker) -> None:
    """Every task reads at most ten offsets here, so the number of tasks says how much is fetched."""
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("filtered", 3)
    now_ms = time.time_ns() // 1_000_000
    with Producer(broker.bootstrap) as producer:
        for number in range(300):  # no two of a partition in one millisecond
            producer.send("filtered", b"value", partition=number % 3, timestamp_ms=now_ms - 300 + number)
        producer.flush()
    frame = load(spark, broker, "filtered", maxRecordsPerPartition="10")
    everything = frame.select("partition", "offset", "timestamp").collect()
    end = 1 + max(row.offset for row in everything if row.partition == 1)
    pivot = sorted((row for row in everything if row.partition == 1), key=lambda row: row.offset)[end // 2]

    def read(condition: str) -> tuple[int, set[tuple[int, int]]]:
        narrowed = frame.where(condition)
        found = {(row.partition, row.offset) for row in narrowed.select("partition", "offset").collect()}
        assert found == {(row.partition, row.offset) for row in frame.where(f"({condition}) or false").collect()}
        return narrowed.rdd.getNumPartitions(), found

    tasks, found = read(f"partition = 1 and offset >= {end - 25} and offset < {end - 5}")
    assert tasks == 2
    assert len(found) == 20
    tasks, found = read(f"partition = 1 and timestamp >= timestamp_millis({int(pivot.timestamp.timestamp() * 1000)})")
    assert tasks < end // 10
    assert (1, pivot.offset) in found
    assert read("topic = 'another'") == (1, set())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert frame.where("partition = 1").rdd.getNumPartitions() == frame.rdd.getNumPartitions()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def stream(spark: Any, broker: Broker, checkpoint: Path, name: str | None = None, **options: str) -> list[list[Any]]:
    """Runs a stream to where its topics end now; the rows of each batch that had any."""
    reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = reader.options(**{"startingOffsets": "earliest", **options}).load().select("topic", "partition", "offset")
    batches: list[list[Any]] = []
    writer = frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    (writer.queryName(name) if name else writer).start().awaitTermination()
    return [batch for batch in batches if batch]


def test_a_stream_goes_on_where_it_was_and_shows_its_lag(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """Under its own name: nothing but the query says which group it is."""
    fill(broker, "stream", 500)
    options = {"subscribe": "stream", "maxOffsetsPerTrigger": "200"}
    assert [len(batch) for batch in stream(spark, broker, tmp_path, "orders", **options)] == [200, 200, 100]
    with Producer(broker.bootstrap) as producer:
        for number in range(50):
            producer.send("stream", value=b"more", key=str(number).encode())
        producer.flush()
    assert [len(batch) for batch in stream(spark, broker, tmp_path, "orders", **options)] == [50]
    with Admin(broker.bootstrap) as admin:
        committed = admin.group_offsets("spark-orders")
        assert sum(position.offset for position in committed.values()) == 550
        with Producer(broker.bootstrap) as producer:
            producer.send_and_wait("stream", b"not yet read", key=b"late")
        told = CliRunner().invoke(cli, ["group", "describe", "spark-orders", "-b", broker.bootstrap, "-o", "json"])
        described = json.loads(told.stdout)
        assert (described["lag"], sum(row["committed"] for row in described["partitions"])) == (1, 550)
        assert [group.group_id for group in admin.list_groups() if "asks" in group.group_id] == []


def test_the_last_batch_of_a_stopped_query_is_shown(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """Spark asks the source for nothing more: the query's next trigger would be in an hour."""
    fill(broker, "stopped", 30)
    listener = ProgressListener(spark)
    spark.streams.addListener(listener)
    try:
        reader = spark.readStream.format("penstock").option("kafka.bootstrap.servers", broker.bootstrap)
        frame = reader.options(subscribe="stopped", startingOffsets="earliest", groupIdPrefix="jobs").load()
        writer = frame.writeStream.foreachBatch(lambda batch, _: batch.count()).trigger(processingTime="1 hour")
        query = writer.option("checkpointLocation", str(tmp_path)).start()
        eventually(lambda: (query.lastProgress or {"numInputRows": 0})["numInputRows"] == 30, 120, interval=0.1)
        with Admin(broker.bootstrap) as admin:
            group = f"jobs-{query.id}"
            assert admin.group_offsets(group) == {}
            publish_progress(query)
            assert sum(position.offset for position in admin.group_offsets(group).values()) == 30
            admin.delete_group(group)
            query.stop()
            eventually(lambda: sum(p.offset for p in admin.group_offsets(group).values()) == 30, 60)
    finally:
        spark.streams.removeListener(listener)


def test_partitions_and_topics_come_and_go(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "come.a", 10, partitions=1)
    fill(broker, "come.gone", 10, partitions=1)
    options = {"subscribePattern": r"come\..*"}
    assert sum(map(len, stream(spark, broker, tmp_path, **options))) == 20
    fill(broker, "come.b", 10, partitions=2)
    with Admin(broker.bootstrap) as admin:
        admin.create_partitions("come.a", 2)
        with Producer(broker.bootstrap) as producer:
            producer.send("come.a", value=b"new", partition=1)
            producer.flush()
        (rows,) = stream(spark, broker, tmp_path, **options)
        assert sorted(row.topic for row in rows) == ["come.a", *["come.b"] * 10]
        admin.delete_topic("come.gone")
    with pytest.raises(Exception, match=r"deleted: come\.gone-0 from offset 10"):
        stream(spark, broker, tmp_path, **options)
    fill(broker, "come.c", 3, partitions=1)
    (rows,) = stream(spark, broker, tmp_path, failOnDataLoss="false", **options)
    assert {row.topic for row in rows} == {"come.c"}


def test_an_idle_stream_waits_at_the_broker(broker: Broker) -> None:
    """One question that is parked, not many; and the answer comes when the record does."""
    fill(broker, "idle", 5, partitions=2)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "idle", "idleWaitMs": "20000"}
    reader = TopicReader(SourceOptions.parse(given))
    asked = []
    ask = reader.newest_offsets

    def counted(start: Any) -> Any:
        asked.append(start)
        return ask(start)

    reader.newest_offsets = counted  # type: ignore[method-assign]
    try:
        start = ask({})
        with Producer(broker.bootstrap) as producer, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(reader.wait_for_news, start)
            eventually(lambda: bool(asked), 10)
            producer.send("idle", value=b"x", partition=0)
            producer.flush()
            newest = waiting.result(15)
    finally:
        reader.close()
    assert sum(newest.values()) == sum(start.values()) + 1
    assert len(asked) <= 4


def test_a_topic_made_anew_is_noticed_though_it_has_grown_past_the_old_one(broker: Broker) -> None:
    fill(broker, "anew", 5, partitions=1)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "anew"}
    strict, lax = (TopicReader(SourceOptions.parse({**given, "failOnDataLoss": flag})) for flag in ("true", "false"))
    try:
        start = {TopicPartition("anew", 0): 3}
        for reader in (strict, lax):
            assert reader.newest_offsets(start) == {TopicPartition("anew", 0): 5}
        with Admin(broker.bootstrap) as admin:
            admin.delete_topic("anew")
        fill(broker, "anew", 9, partitions=1)
        with pytest.raises(DataLost, match=r"'anew' was deleted and created again.* anew-0 from offset 3"):
            strict.newest_offsets(start)
        end = lax.newest_offsets(start)
        assert end == {TopicPartition("anew", 0): 9}
        assert lax.with_new_partitions(start, end) == {TopicPartition("anew", 0): 0}
    finally:
        strict.close()
        lax.close()


def test_bytes_limit_a_batch(spark: Any, broker: Broker, tmp_path: Path) -> None:
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer:
        admin.create_topic("large", 1)
        for _ in range(100):
            producer.send("large", value=bytes(1_000))
        producer.flush()
    batches = stream(spark, broker, tmp_path, subscribe="large", maxBytesPerTrigger="40000")
    assert sum(map(len, batches)) == 100
    assert len(batches) == 3


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
