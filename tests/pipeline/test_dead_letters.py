"""Dead letters of every writer are understood, and go back once, with their retries counted."""

from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Admin, Consumer, Producer
from penstock.client.types import ConsumerRecord, TopicPartition
from penstock.model.dead_letters import CONNECT, REDRIVEN_FROM, RETRIES, SHARE_GROUP, STREAMS
from penstock.testing import Broker

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline import JobContext, sink
from penstock.pipeline.dead_letters_frames import Selection
from penstock.pipeline.dead_letters_job import dead_letters
from penstock.pipeline.errors import PipelineError

Headers = list[tuple[str, bytes | None]]


def share(offset: int, message: str, retries: int | None = None) -> Headers:
    headers: Headers = [("own", b"1"), (SHARE_GROUP.topic, b"orders"), (SHARE_GROUP.partition, b"1")]
    headers += [(SHARE_GROUP.offset, b"%d" % offset), (SHARE_GROUP.origin, b"billing")]
    headers += [(SHARE_GROUP.message, message.encode()), (SHARE_GROUP.delivery_count, b"5")]
    return headers + ([(RETRIES, b"%d" % retries)] if retries is not None else [])


def read(broker: Broker, topic: str, partition: int, count: int) -> list[ConsumerRecord]:
    with Consumer(broker.bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek(TopicPartition(topic, partition), 0)
        found: list[ConsumerRecord] = []
        while len(found) < count:
            found += consumer.poll(timeout_ms=2_000)
        return found + consumer.poll(timeout_ms=200)


@pytest.fixture(scope="module")
def filled(broker: Broker) -> Broker:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("orders", 2)
        admin.create_topic("elsewhere", 1)
        admin.create_topic("orders.dlq", 1)
    with Producer(broker.bootstrap) as producer:
        for number in range(3):
            producer.send("orders", f"order {number}", key=f"k{number}", partition=1, headers=[("trace", b"t")])
        producer.flush()
        connect: Headers = [
            (CONNECT.topic, b"orders"), (CONNECT.partition, b"0"), (CONNECT.offset, b"7"), (CONNECT.origin, b"s3"),
            (CONNECT.error_class, b"java.lang.Bad"), (CONNECT.message, b"no field 17\n\tat somewhere"),
        ]  # fmt: skip
        streams: Headers = [(STREAMS.topic, b"nowhere"), (STREAMS.error_class, b"java.lang.Worse")]
        letters: list[tuple[str | None, str | None, Headers]] = [
            ("k0", "order 0", share(0, "Offset rejected by client.")),
            (None, None, share(1, "Delivery count 5 exceeded.")),  # only a note of the record
            (None, None, share(99, "Delivery count 6 exceeded.")),  # whose record is gone
            ("k2", "order 2", share(2, "Delivery count 7 exceeded.", retries=5)),
            ("c", "connect", connect),
            ("s", "streams", streams),
            ("x", "nobody says why", []),
        ]
        for key, value, headers in letters:
            producer.send("orders.dlq", value, key=key, headers=headers)
    return broker


def test_listed_and_counted_by_reason(spark: Any, filled: Broker) -> None:
    context = JobContext(filled.bootstrap, spark=spark)
    found = {row["offset"]: row for row in dead_letters(context, "orders.dlq").rows}
    assert found[0]["source"] == "orders-1@0"
    assert (found[0]["deliveries"], found[0]["origin"]) == (5, "billing")
    assert found[3]["retries"] == 5
    assert found[4]["reason"] == "java.lang.Bad: no field 17"
    assert found[6]["reason"] == "not said"
    counted = dead_letters(context, "orders.dlq", group_by_reason=True).rows
    assert (counted[0]["records"], counted[0]["reason"]) == (3, "Delivery count # exceeded.")
    some = Selection(reason="exceeded|Bad", key="^[kc]", first_offset=1)
    assert sorted(row["offset"] for row in dead_letters(context, "orders.dlq", selection=some).rows) == [3, 4]


def test_driven_back_once_with_their_retries(
    spark: Any, filled: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = JobContext(filled.bootstrap, spark=spark)
    dry = dead_letters(JobContext(filled.bootstrap, spark=spark, dry_run=True), "orders.dlq", redrive=True)
    assert dry.facts["would_be_redriven"] == 3
    # The driver dies when the decision is made and nothing is committed yet.
    finish = sink.finish

    async def die(*_: Any) -> None:
        raise RuntimeError("the driver dies here")

    exceeded = Selection(reason="count")
    monkeypatch.setattr(sink, "finish", die)
    with pytest.raises(RuntimeError, match="dies here"):
        dead_letters(context, "orders.dlq", redrive=True, selection=exceeded)
    monkeypatch.setattr(sink, "finish", finish)
    summary = dead_letters(context, "orders.dlq", redrive=True)
    assert summary.redriven == 2  # the one that was decided before is driven back, and not again
    assert summary.facts["skipped"] == {
        "the original record is gone": 1,
        "retried too often": 1,
        "the source topic does not exist": 1,
        "no source topic in the headers": 1,
    }
    assert dead_letters(context, "orders.dlq", redrive=True).redriven == 0
    back = read(filled, "orders", 1, 5)[3:]
    assert sorted((record.key, record.value) for record in back) == [(b"k0", b"order 0"), (b"k1", b"order 1")]
    headers = {record.key: list(record.headers) for record in back}
    assert headers[b"k0"] == [("own", b"1"), (RETRIES, b"1"), (REDRIVEN_FROM, b"orders.dlq-0@0")]
    assert headers[b"k1"][:2] == [("trace", b"t"), ("own", b"1")]
    [connect] = read(filled, "orders", 0, 1)
    assert (connect.key, dict(connect.headers)[RETRIES]) == (b"c", b"1")


def test_driven_to_another_topic_and_further(spark: Any, filled: Broker) -> None:
    context = JobContext(filled.bootstrap, spark=spark)
    again = Selection(source="nowhere")
    assert dead_letters(context, "orders.dlq", redrive=True, selection=again, to="elsewhere").redriven == 1
    [moved] = read(filled, "elsewhere", 0, 1)
    assert moved.value == b"streams"
    with pytest.raises(PipelineError, match="dead-letter topic itself"):
        dead_letters(context, "orders.dlq", redrive=True, to="orders.dlq")
    with pytest.raises(PipelineError, match="no regular expression"):
        dead_letters(context, "orders.dlq", selection=Selection(key="("))
    with pytest.raises(PipelineError, match="there is no topic 'nope'"):
        dead_letters(context, "nope")
