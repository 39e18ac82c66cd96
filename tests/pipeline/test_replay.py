"""Archives written back into topics: as they were, once each, also when the job dies on the way."""

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Admin, Consumer, Producer
from penstock.client.types import TopicPartition
from penstock.testing import Broker

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline import sink
from penstock.pipeline.archive_job import archive
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.job import JobContext
from penstock.pipeline.replay_job import replay

NOW_MS = time.time_ns() // 1_000_000
DAY_MS = 86_400_000
Seen = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def produce(broker: Broker, topic: str, count: int, first: int = 0) -> None:
    """Nulls, headers, and timestamps that jump between two days."""
    with Producer(broker.bootstrap) as producer:
        for number in range(first, first + count):
            producer.send(
                topic,
                f"v{number}".encode() if number % 5 else None,
                key=f"k{number % 7}".encode() if number % 3 else None,
                headers=[("n", str(number).encode()), ("null", None)] if number % 2 else [],
                timestamp_ms=NOW_MS - (number % 2) * DAY_MS + number,
                partition=number % 2,
            )
        producer.flush()


def content(broker: Broker, topic: str) -> dict[int, list[Seen]]:
    """What a reader of committed records sees, per partition in order."""
    found: dict[int, list[Seen]] = {0: [], 1: []}
    with Admin(broker.bootstrap) as admin:
        ends = {(topic, p): admin.list_offsets({TopicPartition(topic, p): -1}, isolation_level=1) for p in (0, 1)}
    with Consumer(broker.bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, p) for p in (0, 1)])
        left = {p: next(iter(end.values())).offset for (_, p), end in ends.items()}
        while any(consumer.position(TopicPartition(topic, p)) < left[p] for p in (0, 1)):
            for record in consumer.poll(200):
                seen = (record.key, record.value, tuple(record.headers), record.timestamp_ms)
                found[record.partition].append(seen)
    return found


@pytest.fixture(scope="module")
def archived(spark: Any, broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic of two partitions archived in several rounds."""
    with Admin(broker.bootstrap) as admin:
        for topic in ("orders", "copy", "late", "slow"):
            admin.create_topic(topic, 2)
    produce(broker, "orders", 1_000)
    table = str(tmp_path_factory.mktemp("archive") / "table")
    archive(JobContext(broker.bootstrap, spark=spark), ["orders"], table=table, round_records=150)
    return table


def test_a_replay_is_what_it_was_also_when_it_dies_on_the_way(
    spark: Any, broker: Broker, archived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = JobContext(broker.bootstrap, spark=spark)

    def run() -> int:
        return replay(context, table=archived, mapping={"orders": "copy"}, round_records=300).rows_replayed

    commit, finish = sink.commit, sink.finish

    def dies_before(*_: Any) -> None:
        raise RuntimeError("dies before the decision")

    async def dies_after(*_: Any) -> None:
        raise RuntimeError("dies after the decision")

    with monkeypatch.context() as patch:
        patch.setattr(sink, "commit", dies_before)
        with pytest.raises(RuntimeError, match="before"):
            run()
    with monkeypatch.context() as patch:
        patch.setattr(sink, "finish", dies_after)
        with pytest.raises(RuntimeError, match="after"):
            run()
    assert sink.commit is commit
    assert sink.finish is finish
    assert run() == 700
    assert run() == 0
    assert content(broker, "copy") == content(broker, "orders")
    produce(broker, "orders", 10, first=1_000)
    archive(context, ["orders"], table=archived)
    assert run() == 10
    assert content(broker, "copy") == content(broker, "orders")


def test_only_what_was_asked_for(spark: Any, broker: Broker, archived: str) -> None:
    context = JobContext(broker.bootstrap, spark=spark)
    bounds = {"start_ms": NOW_MS + 100, "end_ms": NOW_MS + 200}
    summary = replay(context, ["orders"], table=archived, mapping={"orders": "late"}, **bounds)
    assert summary.rows_replayed == 50
    assert content(broker, "late") == {0: content(broker, "orders")[0][50:100], 1: []}
    offsets = {
        "start_offsets": {TopicPartition("orders", 0): 500, TopicPartition("orders", 1): 3},
        "end_offsets": {TopicPartition("orders", 1): 7},
    }
    planned = replay(
        JobContext(broker.bootstrap, dry_run=True), table=archived, mapping={"orders": "slow"}, **offsets
    )
    rows = [(row["to"], row["partition"], row["from_offset"], row["end_offset"]) for row in planned.rows]
    assert rows[1] == ("slow", 1, 3, 7)
    began = time.monotonic()
    assert replay(context, table=archived, mapping={"orders": "slow"}, rate=4.0, **offsets).rows_replayed >= 4
    assert time.monotonic() - began > 0.9
    assert content(broker, "slow")[1] == content(broker, "orders")[1][3:7]


def test_what_cannot_be_replayed_is_said(broker: Broker, archived: str, tmp_path: Path) -> None:
    context = JobContext(broker.bootstrap)
    with pytest.raises(PipelineError, match="there is no archive at"):
        replay(context, table=str(tmp_path))
    with pytest.raises(PipelineError, match=r"topic 'other' is not in the archive at .*; it holds orders"):
        replay(context, ["other"], table=archived)
    with pytest.raises(PipelineError, match="'orders' would be replayed into the topic that it was archived from"):
        replay(context, table=archived)
    with pytest.raises(PipelineError, match=r"there is no topic 'new' to replay into.*penstock topic create new"):
        replay(context, table=archived, mapping={"orders": "new"})
    with pytest.raises(PipelineError, match="'typo' is mapped to 'copy', but is not replayed"):
        replay(context, table=archived, mapping={"typo": "copy"})
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("narrow", 1)
        admin.create_topic("stamped", 2, configs={"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(PipelineError, match="'narrow' has 1 partitions, and records of partition 1 are to go there"):
        replay(context, table=archived, mapping={"orders": "narrow"})
    with pytest.raises(PipelineError, match="'stamped' gives records a timestamp of its own"):
        replay(context, table=archived, mapping={"orders": "stamped"})
