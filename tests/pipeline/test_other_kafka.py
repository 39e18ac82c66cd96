"""Our source and sink against Kafka itself: everything is read and written there too, the sink at-least-once.

Run by `make test-differential`: Kafka comes from Maven Central.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow as pa

from penstock.bench.artifacts import Unavailable, obtain_kafka
from penstock.bench.subjects import KafkaSubject, Setup
from penstock.client.sync import Admin
from penstock.pipeline import sink
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.fetching import read_ranges
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.reader import TopicReader
from penstock.pipeline.sink import Attempt, SinkOptions

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(
        os.environ.get("PENSTOCK_DIFFERENTIAL") != "1", reason="runs with `make test-differential` only"
    ),
]


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    try:
        found = obtain_kafka(print)
    except Unavailable as reason:
        pytest.skip(str(reason))
    broker = KafkaSubject(Setup(1, "os"), tmp_path / "kafka", found)
    broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()


def test_rows_are_written_at_least_once_and_read(kafka: str, caplog: pytest.LogCaptureFixture) -> None:
    with Admin(kafka) as admin:
        admin.create_topic("orders", 3)
    options = SinkOptions(kafka, "orders")
    values = [f"v{n}".encode() for n in range(5_000)]
    rows = [pa.RecordBatch.from_arrays([pa.array(values), pa.array(values)], ["key", "value"])]
    with pytest.raises(PipelineError, match="cannot be exactly-once there"):
        sink.write_batches(options._replace(delivery="exactly-once"), Attempt("q", "r", 0, 0, "0"), rows)
    written = sink.write_batches(options, Attempt("q", "r", 0, 0, "0"), rows)
    sink.commit(options, 0, [written])
    assert "this sink is at-least-once there" in caplog.text
    assert sink.write_batches(options, Attempt("q", "r2", 0, 0, "0"), rows).rows == 0  # the batch is known to be done
    source = SourceOptions.parse({"kafka.bootstrap.servers": kafka, "subscribe": "orders", "idleWaitMs": "10"})
    reader = TopicReader(source)
    try:
        ranges = reader.batch_ranges()
        ends = reader.newest_offsets({})
        assert reader.wait_for_news(ends) == ends
        reader.publish("shown", ends)
        assert set(reader.sizes(ends)) == set(ends)
    finally:
        reader.close()
    found = [value for table in read_ranges(source, ranges) for value in table.column("value").to_pylist()]
    assert sorted(found) == sorted(values)
    with Admin(kafka) as admin:
        assert sum(position.offset for position in admin.group_offsets("shown").values()) == 5_000
