"""The same records through our source and through Spark's own Kafka connector, from one broker: equal frames.

Run by `make test-differential`: the connector comes from Maven Central. Isolation is said to both, because theirs is
read_uncommitted by default. What is compared is everything that both have: schema, rows, and what a stream gives.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install penstock[pipeline]")

from confluent_kafka import Producer as LibrdkafkaProducer

from penstock.client.sync import Admin, Producer
from penstock.testing import Broker
from tests.external import spark_connector_jars
from tests.pipeline.conftest import FAST_START, require_spark
from tests.waiting import eventually

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(
        os.environ.get("PENSTOCK_DIFFERENTIAL") != "1", reason="runs with `make test-differential` only"
    ),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = ("plain", "compacted", "transactional")
READ_COMMITTED = {"kafka.isolation.level": "read_committed"}
READ_UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of its own: jars are given when it starts."""
    require_spark()
    jars = ",".join(map(str, spark_connector_jars()))
    from penstock.pipeline.session import make_session

    settings = {"spark.jars": jars, "spark.sql.shuffle.partitions": "2", **FAST_START}
    session = make_session("differential", "local[2,2]", settings, str(tmp_path_factory.mktemp("spark")))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def filled() -> Iterator[Broker]:
    with Broker(settings={"log.cleaner.backoff.ms": "100"}) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("plain", 6)  # the last partition stays empty
            compaction = {
                "cleanup.policy": "compact",
                "segment.bytes": "16384",
                "min.cleanable.dirty.ratio": "0.01",
                "min.compaction.lag.ms": "0",
                "delete.retention.ms": "86400000",
            }
            admin.create_topic("compacted", 1, configs=compaction)
            admin.create_topic("transactional", 2)
        fill_plain(broker)
        fill_compacted(broker)
        fill_transactional(broker)
        yield broker


def fill_plain(broker: Broker) -> None:
    """Every codec, nulls and empties, headers of every kind, times before and after each other, small batches."""
    for number, codec in enumerate(CODECS):
        options = {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "linger.ms": 20}
        producer = LibrdkafkaProducer({**options, "batch.num.messages": 50})
        for n in range(400):
            key = (None, b"", f"k{n % 7}".encode())[n % 3]
            value = (None, b"", f"{codec}-{n}-".encode() * (n % 30))[(n // 3) % 3]
            headers: Any = ([], [("a", b"1")], [("a", None), ("b", b""), ("a", "ü".encode()), ("", b"x")])[n % 4 % 3]
            timestamp = 1_700_000_000_000 + (n * 37) % 1000
            producer.produce("plain", value, key, partition=number, timestamp=timestamp, headers=headers)
        producer.flush()


def fill_compacted(broker: Broker) -> None:
    """Overwritten and deleted keys, in several segments; waits until the cleaner has been there."""
    with Producer(broker.bootstrap) as producer:
        for n in range(3_000):
            producer.send("compacted", key=b"k%d" % (n % 40), value=None if n % 11 == 0 else bytes(40))
            if n % 100 == 99:
                producer.flush()  # so that batches fit into segments
    with Admin(broker.bootstrap) as admin:
        # Half of what the values alone took. The cleaner may have been there before the last was written.
        eventually(lambda: next(p.size_bytes for p in _sizes(admin) if p.partition.topic == "compacted") < 60_000, 60)


def _sizes(admin: Admin) -> list[Any]:
    return [part for directory in admin.describe_log_dirs() for part in directory.partitions]


def fill_transactional(broker: Broker) -> None:
    """Committed, aborted, and committed again by two producers side by side."""
    producers = []
    for name in ("t1", "t2"):
        producer = LibrdkafkaProducer(
            {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "linger.ms": 5}
        )
        producer.init_transactions()
        producers.append(producer)
    for number in range(12):
        for producer in producers:
            producer.begin_transaction()
        for n in range(30):
            for who, producer in enumerate(producers):
                producer.produce("transactional", f"{who}-{number}-{n}", partition=n % 2)
        for who, producer in enumerate(producers):
            producer.flush()
            if (number + who) % 3 == 0:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def read(session: Any, source: str, broker: Broker, **options: str) -> Any:
    reader = session.read.format(source).option("kafka.bootstrap.servers", broker.bootstrap)
    return reader.options(**{"includeHeaders": "true", **options}).load()


def rows(frame: Any) -> list[Any]:
    return frame.orderBy("topic", "partition", "offset").collect()  # type: ignore[no-any-return]


def assert_equal(session: Any, broker: Broker, **options: str) -> list[Any]:
    theirs, ours = (read(session, source, broker, **options) for source in ("kafka", "penstock"))
    assert ours.schema == theirs.schema
    expected = rows(theirs)
    assert rows(ours) == expected
    return expected


@pytest.mark.parametrize("isolation", [READ_COMMITTED, READ_UNCOMMITTED], ids=["committed", "uncommitted"])
def test_batches_are_equal(session: Any, filled: Broker, isolation: dict[str, str]) -> None:
    found = assert_equal(session, filled, subscribe=",".join(TOPICS), **isolation)
    counts = {topic: sum(1 for row in found if row.topic == topic) for topic in TOPICS}
    assert counts["plain"] == 400 * len(CODECS)
    assert 40 <= counts["compacted"] < 3_000
    assert counts["transactional"] == (480 if isolation is READ_COMMITTED else 720)


@pytest.mark.parametrize(
    "options",
    [
        {"subscribePattern": "pl.*|trans.*"},
        {"assign": '{"plain":[1,3,5]}'},
        {"subscribe": "plain", "includeHeaders": "false", "minPartitions": "9"},
        {"subscribe": "plain", "startingTimestamp": "1700000000500"},
        {"subscribe": "plain", "startingTimestamp": "1700000000100", "endingTimestamp": "1700000000800"},
        {
            "assign": '{"plain":[0,1]}',
            "startingOffsets": '{"plain":{"0":17,"1":-2}}',
            "endingOffsets": '{"plain":{"0":300,"1":-1}}',
        },
        {
            "assign": '{"plain":[2,5]}',
            "startingOffsetsByTimestamp": '{"plain":{"2":1700000000900,"5":1700000000900}}',
            "startingOffsetsByTimestampStrategy": "latest",
        },
        {"subscribe": "compacted", "startingOffsets": '{"compacted":{"0":1500}}'},
    ],
    ids=str,
)
def test_options_mean_the_same(session: Any, filled: Broker, options: dict[str, str]) -> None:
    """A batch for which theirs refuses the options, ours refuses too."""
    if "startingTimestamp" in options:  # of the empty partition they want a record at that time, too
        options = {**options, "startingOffsetsByTimestampStrategy": "latest"}
    assert_equal(session, filled, **READ_COMMITTED, **options)


@pytest.mark.parametrize("isolation", [READ_COMMITTED, READ_UNCOMMITTED], ids=["committed", "uncommitted"])
def test_streams_are_equal(session: Any, filled: Broker, tmp_path: Path, isolation: dict[str, str]) -> None:
    found = {}
    for source in ("kafka", "penstock"):
        reader = session.readStream.format(source).option("kafka.bootstrap.servers", filled.bootstrap)
        options = {"subscribe": ",".join(TOPICS), "startingOffsets": "earliest", "includeHeaders": "true"}
        frame = reader.options(**options, **isolation, maxOffsetsPerTrigger="2500").load()
        batches: list[list[Any]] = []

        def take(batch: Any, _: int, batches: list[list[Any]] = batches) -> None:
            batches.append(rows(batch))

        writer = frame.writeStream.foreachBatch(take).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / source)).start().awaitTermination()
        found[source] = sorted(
            (row for batch in batches for row in batch), key=lambda r: (r.topic, r.partition, r.offset)
        )
        assert len(batches) > 1
    assert found["penstock"] == found["kafka"]


def test_a_checkpoint_of_theirs_is_gone_on_with(session: Any, filled: Broker, tmp_path: Path) -> None:
    """The format's name changes, the checkpoint stays: positions are written in the same words."""
    with Admin(filled.bootstrap) as admin:
        admin.create_topic("moved", 2)
    seen: list[str] = []

    def run(source: str) -> None:
        reader = session.readStream.format(source).option("kafka.bootstrap.servers", filled.bootstrap)
        frame = reader.options(subscribe="moved", startingOffsets="earliest").load()
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: seen.extend(row.value.decode() for row in batch.select("value").collect())
        )
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    for source in ("kafka", "penstock", "kafka"):
        with Producer(filled.bootstrap) as producer:
            for n in range(10):
                producer.send("moved", value=f"{source}-{n}-{len(seen)}".encode(), partition=n % 2)
            producer.flush()
        run(source)
    assert len(seen) == len(set(seen)) == 30


def test_what_we_write_they_read_and_the_other_way_round(session: Any, filled: Broker) -> None:
    frame = session.range(1_000).selectExpr(
        "if(id % 5 = 0, null, cast(id as string)) key",
        "cast(cast(id as string) as binary) value",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) headers",
    )
    found = {}
    for source in ("kafka", "penstock"):
        with Admin(filled.bootstrap) as admin:
            admin.create_topic(f"by-{source}", 4)
        writer = frame.write.format(source).option("kafka.bootstrap.servers", filled.bootstrap)
        writer.options(topic=f"by-{source}", includeHeaders="true").mode("append").save()
        written = assert_equal(session, filled, subscribe=f"by-{source}", **READ_COMMITTED)
        found[source] = sorted((row.value, row.key, row.headers[0].value) for row in written if row.key)
        places = {row.key: row.partition for row in written if row.key}
        found[f"{source} places"] = sorted(places.items())
    assert found["penstock"] == found["kafka"]
    assert found["penstock places"] == found["kafka places"]
