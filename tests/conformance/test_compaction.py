"""Compacted topics as clients see them, and as Kafka's own kafka-dump-log does."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients import CODECS, Confluent, Seen, ToWrite
from tests.conformance.conftest import CLIENT_NAMES
from tests.conformance.java import Jvm
from tests.processes import BrokerProcess
from tests.waiting import eventually

KEYS = 40
ROUNDS = 60
SECONDS = 60.0
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "20000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "300",
    "index.interval.bytes": "512",
}
# kafka-dump-log says so of every compacted segment, also of those that Kafka itself has compacted.
GAPS = re.compile(r"Non-consecutive offsets in \S+\n(  -?\d+ is followed by \d+\n)+")


class Compacting:
    """A broker that compacts at once, and a topic in which that has happened."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap

    def create(self, name: str, **config: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(name, 1, 1, config={**CONFIG, **config})])[name].result(30)

    def table(self, topic: str) -> dict[bytes | None, bytes | None]:
        return {seen.key: seen.value for seen in Confluent().consume(self.bootstrap, topic)}

    def update(self, topic: str, rounds: range) -> dict[bytes | None, bytes | None]:
        expected: dict[bytes | None, bytes | None] = {}
        for number in rounds:
            records = [
                ToWrite(b"%d of %d " % (number, at) + b"." * 60, b"key %d" % at, (("round", b"%d" % number),))
                for at in range(KEYS)
            ]
            expected.update((record.key, record.value) for record in records)
            Confluent().produce(self.bootstrap, topic, records, CODECS[number % len(CODECS)])
        return expected

    def when_compacted(self, topic: str, most: int) -> list[Seen]:
        """What a consumer sees once no more than `most` records are left."""

        def few() -> list[Seen]:
            seen = Confluent().consume(self.bootstrap, topic)
            return seen if len(seen) <= most else []

        return eventually(few, SECONDS, interval=0.1)


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compacting]:
    settings = {
        "log.cleaner.backoff.ms": "50",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "100",
        "group.initial.rebalance.delay.ms": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("compaction") / "data", settings) as broker:
        yield Compacting(broker)
        assert "Traceback" not in broker.log(), broker.log()


@pytest.fixture(scope="module")
def updates(compacting: Compacting) -> dict[bytes | None, bytes | None]:
    """A topic `updates` in which every key was written many times, and compacted."""
    compacting.create("updates")
    expected = compacting.update("updates", range(ROUNDS))
    compacting.when_compacted("updates", ROUNDS * KEYS // 3)
    return expected


@pytest.fixture(scope="module")
def deleting(compacting: Compacting) -> dict[bytes | None, bytes | None]:
    """A topic `deleting` in which every other key was deleted, behind which another segment begins."""
    compacting.create("deleting")
    expected = compacting.update("deleting", range(5))
    gone = [b"key %d" % at for at in range(0, KEYS, 2)]
    Confluent().produce(compacting.bootstrap, "deleting", [ToWrite(None, key) for key in gone])
    for key in gone:
        del expected[key]
    for _ in range(3):  # closes the segment with the tombstones
        Confluent().produce(compacting.bootstrap, "deleting", [ToWrite(b"x" * 500, b"filler")] * 20)
    expected[b"filler"] = b"x" * 500
    return expected


@pytest.fixture(scope="module")
def transactions(compacting: Compacting) -> dict[bytes, bytes]:
    """A topic `transactions` of which a third was aborted."""
    compacting.create("transactions")
    producer = confluent_kafka.Producer({"bootstrap.servers": compacting.bootstrap, "transactional.id": "compacted"})
    producer.init_transactions(30)
    expected = {}
    for number in range(30):
        producer.begin_transaction()
        for at in range(10):
            producer.produce("transactions", b"%d " % number + b"." * 100, b"key %d" % at)
        if number % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            expected = {b"key %d" % at: b"%d " % number + b"." * 100 for at in range(10)}
    return expected


@pytest.mark.parametrize("name", CLIENT_NAMES)
def test_every_client_sees_the_last_value_of_each_key(
    compacting: Compacting, updates: dict[bytes, bytes], get_client: Callable[..., object], name: str
) -> None:
    seen = get_client(name).consume(compacting.bootstrap, "updates")  # type: ignore[attr-defined]
    assert len(seen) < ROUNDS * KEYS // 2
    assert {record.key: record.value for record in seen} == updates
    for record in seen:
        number = int(record.value.split()[0])
        assert record.headers == (("round", b"%d" % number),)
        assert record.offset == number * KEYS + int(record.key.split()[1]), "offsets never change"


def test_deleted_keys_vanish(compacting: Compacting, deleting: dict[bytes, bytes]) -> None:
    def none_left() -> list[Seen]:
        seen = Confluent().consume(compacting.bootstrap, "deleting")
        visible = {record.key: record.value for record in seen if record.value is not None}
        later = {record.key for record in seen if record.value is None}
        assert later.isdisjoint(deleting)
        return seen if visible == deleting and not later else []

    eventually(none_left, SECONDS, interval=0.1)


def test_records_without_key_are_refused(compacting: Compacting) -> None:
    compacting.create("keyed")
    producer = confluent_kafka.Producer({"bootstrap.servers": compacting.bootstrap})
    errors: list[confluent_kafka.KafkaError] = []
    producer.produce("keyed", b"value", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.code() for error in errors] == [confluent_kafka.KafkaError.INVALID_RECORD]


def test_both_policies_at_once(compacting: Compacting) -> None:
    """What is too old goes as a whole, of what is left only the last record of each key stays."""
    compacting.create("both", **{"cleanup.policy": "compact,delete", "retention.ms": "3600000"})
    long_ago_ms = int(time.time() * 1000) - 2 * 3_600_000
    old = [ToWrite(b"." * 60, b"old %d" % at, timestamp_ms=long_ago_ms) for at in range(1500)]
    for start in range(0, len(old), 100):  # batches smaller than a segment
        Confluent().produce(compacting.bootstrap, "both", old[start : start + 100])
    expected = compacting.update("both", range(ROUNDS))

    def is_clean() -> bool:
        seen = Confluent().consume(compacting.bootstrap, "both")
        fresh = [record for record in seen if record.key in expected]
        assert {record.key: record.value for record in fresh} == expected, "the last of each key is always there"
        return seen[0].offset > 500 and len(fresh) < ROUNDS * KEYS // 2

    eventually(is_clean, SECONDS, interval=0.1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": compacting.bootstrap, "group.id": "unused"})
    low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("both", 0), 30)
    consumer.close()
    assert (low > 500, high) == (True, 1500 + ROUNDS * KEYS)


def test_aborted_transactions_leave_nothing(compacting: Compacting, transactions: dict[bytes, bytes]) -> None:
    left = compacting.when_compacted("transactions", 200)  # confluent-kafka reads only what was committed
    assert {record.key: record.value for record in left} == transactions
    assert all(int(record.value.split()[0]) % 3 != 2 for record in left if record.value)
    compacting.update("transactions", range(2))


@pytest.mark.java
@pytest.mark.usefixtures("deleting", "transactions")
def test_dump_log_reads_compacted_segments(compacting: Compacting, updates: dict[bytes, bytes], jvm: Jvm) -> None:
    assert compacting.broker.stop() == 0
    try:
        for topic in ("updates", "deleting", "transactions"):
            check_dump(jvm, compacting.broker.data_dir / f"{topic}-0")
        checkpoint = (compacting.broker.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
        assert checkpoint[:2] == ["0", str(len(checkpoint) - 2)]
        assert any(re.fullmatch(r"updates 0 \d+", line) for line in checkpoint)
    finally:
        compacting.broker.start()
    assert compacting.table("updates") == updates, "and after a restart it is all there"


def check_dump(jvm: Jvm, directory: Path) -> None:
    dump_log(jvm, directory, ".log", "--deep-iteration", "--print-data-log")
    for suffix in (".index", ".timeindex"):
        dump_log(jvm, directory, suffix)
        dump_log(jvm, directory, suffix, "--index-sanity-check")
    for suffix in (".txnindex", ".snapshot"):
        if any(directory.glob(f"*{suffix}")):
            dump_log(jvm, directory, suffix)


def dump_log(jvm: Jvm, directory: Path, suffix: str, *options: str) -> str:
    files = ",".join(str(path) for path in sorted(directory.glob(f"*{suffix}")))
    run = jvm.tool("kafka-dump-log", "--files", files, *options)
    assert run.exit == 0, run
    assert GAPS.sub("", run.err) == "", run.err
    complaints = re.findall(r"(?i).*(?:mismatch|corrupt|invalid|not match|isvalid: false).*", run.out)
    assert not complaints, complaints
    return run.out
