"""Transactions with every client library: what is seen of them, who is shut out, how they end by themselves."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import confluent_kafka
import kafka
import pytest

from tests.conformance.conftest import NewTopicFunction
from tests.conformance.java import Jvm
from tests.conformance.transactional import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    SECONDS,
    AiokafkaTransactions,
    ConfluentTransactions,
    JavaTransactions,
    KafkaPythonTransactions,
    Reader,
    TransactionalProducer,
    read_with_aiokafka,
    read_with_confluent,
    read_with_java,
    read_with_kafka_python,
    read_with_kcat,
)
from tests.waiting import eventually

PRODUCERS = {
    "confluent-kafka": ConfluentTransactions,
    "kafka-python": KafkaPythonTransactions,
    "aiokafka": AiokafkaTransactions,
}
READERS: dict[str, Reader] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
    "kcat": read_with_kcat,
}
JAVA = pytest.param("java", marks=pytest.mark.java)
Open = Callable[..., TransactionalProducer]


@pytest.fixture(params=[*PRODUCERS, JAVA])
def open_producer(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[Open]:
    """Opens producers by transactional id; all are closed after the test."""
    make: Callable[..., TransactionalProducer]
    if request.param == "java":
        make = partial(JavaTransactions, request.getfixturevalue("jvm"))
    else:
        make = PRODUCERS[request.param]
    opened: list[TransactionalProducer] = []

    def open_one(transactional_id: str, **more: int) -> TransactionalProducer:
        opened.append(make(bootstrap, transactional_id, **more))
        return opened[-1]

    yield open_one
    for producer in opened:
        producer.close()


@pytest.fixture(params=[*READERS, JAVA])
def read(request: pytest.FixtureRequest) -> Reader:
    if request.param == "java":
        return partial(read_with_java, request.getfixturevalue("jvm"))
    return READERS[request.param]


def committed_offset(bootstrap: str, group: str, topic: str) -> int:
    """As a consumer that starts asks for it: waits while the offset is unstable."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        [place] = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], SECONDS)
        return place.offset
    finally:
        consumer.close()


def test_committed_and_aborted(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, open_producer: Open
) -> None:
    topic = new_topic()
    producer = open_producer(f"id-of-{topic}")
    for number, commits in enumerate((True, False, True, False, True)):
        producer.begin()
        producer.send(topic, b"%d-a" % number, b"%d-b" % number)
        (producer.commit if commits else producer.abort)()
    committed = [b"0-a", b"0-b", b"2-a", b"2-b", b"4-a", b"4-b"]
    eventually(lambda: read_with_confluent(bootstrap, topic, READ_COMMITTED) == committed, SECONDS)
    everything = [b"%d-%s" % (number, part) for number in range(5) for part in (b"a", b"b")]
    assert read_with_confluent(bootstrap, topic, READ_UNCOMMITTED) == everything


def test_offsets_in_transactions(
    bootstrap: str, new_topic: NewTopicFunction, new_group: str, open_producer: Open
) -> None:
    topic = new_topic()
    producer = open_producer(f"id-of-{topic}")
    for offset, commits in ((10, True), (20, False), (30, True), (40, False)):
        producer.begin()
        producer.send(topic, b"%d" % offset)
        producer.send_offset(new_group, topic, offset)
        (producer.commit if commits else producer.abort)()
    eventually(lambda: committed_offset(bootstrap, new_group, topic) == 30, SECONDS)
    assert read_with_confluent(bootstrap, topic, READ_COMMITTED) == [b"10", b"30"]


def test_zombies_are_shut_out(bootstrap: str, new_topic: NewTopicFunction, open_producer: Open) -> None:
    topic = new_topic()
    zombie = open_producer(f"id-of-{topic}")
    zombie.begin()
    zombie.send(topic, b"of the zombie")
    successor = open_producer(f"id-of-{topic}")
    successor.begin()
    successor.send(topic, b"of the successor")
    with pytest.raises(zombie.failures):
        zombie.commit()
    successor.commit()
    expected = [b"of the successor"]
    eventually(lambda: read_with_confluent(bootstrap, topic, READ_COMMITTED) == expected, SECONDS)


def test_a_transaction_over_its_time_is_aborted(
    bootstrap: str, new_topic: NewTopicFunction, open_producer: Open
) -> None:
    topic = new_topic()
    slow = open_producer(f"slow-id-of-{topic}", timeout_ms=1_000)
    slow.begin()
    slow.send(topic, b"too slow")
    other = open_producer(f"other-id-of-{topic}")
    other.begin()
    other.send(topic, b"in time")
    other.commit()
    # Behind an open transaction nothing is shown. Kafka looks for expired ones every ten seconds.
    eventually(lambda: read_with_confluent(bootstrap, topic, READ_COMMITTED) == [b"in time"], SECONDS)
    with pytest.raises(slow.failures):
        slow.commit()


def test_every_reader_sees_what_its_isolation_level_allows(
    bootstrap: str, new_topic: NewTopicFunction, read: Reader
) -> None:
    topic = new_topic()
    producers = [ConfluentTransactions(bootstrap, f"id-{n}-of-{topic}") for n in range(3)]
    for producer in producers:
        producer.begin()
    for number in range(4):
        for name, producer in zip(("commits late", "aborts", "commits"), producers, strict=True):
            producer.send(topic, f"{name} {number}".encode())
    producers[2].commit()
    producers[1].abort()
    assert read(bootstrap, topic, READ_COMMITTED) == [], "an open transaction is before all of it"
    producers[0].commit()
    rows = [(f"commits late {n}".encode(), f"aborts {n}".encode(), f"commits {n}".encode()) for n in range(4)]
    eventually(
        lambda: read(bootstrap, topic, READ_COMMITTED) == [v for row in rows for v in (row[0], row[2])], SECONDS
    )
    assert read(bootstrap, topic, READ_UNCOMMITTED) == [value for row in rows for value in row]


def test_epochs_tell_the_transaction_version(
    bootstrap: str, new_topic: NewTopicFunction, open_producer: Open
) -> None:
    """Version 1 keeps its epoch over transactions, version 2 has a new one for each (KIP-890)."""
    topic = new_topic()
    producer = open_producer(f"id-of-{topic}")
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)

    def epoch() -> int:
        return int(admin.describe_transactions([f"id-of-{topic}"])[f"id-of-{topic}"].producer_epoch)

    epochs = []
    for _ in range(3):
        producer.begin()
        producer.send(topic, b"v")
        producer.commit()
        epochs.append(epoch())
    step = 1 if producer.transaction_version == 2 else 0
    assert [after - before for before, after in pairwise(epochs)] == [step, step]
    admin.close()


def test_admin_of_kafka_python(bootstrap: str, new_topic: NewTopicFunction) -> None:
    topic = new_topic()
    name = f"id-of-{topic}"
    producer = ConfluentTransactions(bootstrap, name)
    producer.begin()
    producer.send(topic, b"v")
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    listed = admin.list_transactions()
    assert name in str(listed)
    described = admin.describe_transactions([name])[name]
    assert described.state == kafka.admin.TransactionState.ONGOING
    producers = admin.describe_producers([kafka.TopicPartition(topic, 0)])
    assert str(described.producer_id) in str(producers)
    producer.abort()
    admin.close()


def rows_of(table: str) -> list[dict[str, str]]:
    """A table of Kafka's tools, by its header."""
    lines = [line.split("\t") for line in table.splitlines() if "\t" in line]
    header = [name.strip() for name in lines[0]]
    return [dict(zip(header, (cell.strip() for cell in line), strict=False)) for line in lines[1:]]


@pytest.mark.java
def test_the_transactions_tool(bootstrap: str, new_topic: NewTopicFunction, jvm: Jvm) -> None:
    topic = new_topic()
    name = f"id-of-{topic}"
    producer = JavaTransactions(jvm, bootstrap, name)
    producer.begin()
    producer.send(topic, b"v", b"w")

    def tool(*arguments: str) -> list[dict[str, str]]:
        return rows_of(jvm.checked_tool("kafka-transactions", "--bootstrap-server", bootstrap, *arguments))

    [listed] = [row for row in tool("list") if row["TransactionalId"] == name]
    assert listed["TransactionState"] == "Ongoing"
    [matched] = tool("list", "--transactional-id-pattern", f"{name}|nobody")
    assert matched == listed
    assert tool("list", "--duration-filter", "600000") == []
    [described] = tool("describe", "--transactional-id", name)
    assert described["TopicPartitions"] == f"{topic}-0"
    assert described["ProducerId"] == listed["ProducerId"]
    [state] = tool("describe-producers", "--topic", topic, "--partition", "0")
    assert state["ProducerId"] == listed["ProducerId"]
    assert state["CurrentTransactionStartOffset"] == "0"
    assert tool("find-hanging", "--topic", topic, "--max-transaction-timeout", "0") == []
    aborted = ["abort", "--topic", topic, "--partition", "0", "--start-offset", "0"]
    jvm.checked_tool("kafka-transactions", "--bootstrap-server", bootstrap, *aborted)
    assert read_with_confluent(bootstrap, topic, READ_COMMITTED) == []
    assert (
        tool("describe-producers", "--topic", topic, "--partition", "0")[0]["CurrentTransactionStartOffset"] == "None"
    )
    producer.close()


@pytest.mark.java
def test_fencing_by_an_administrator(bootstrap: str, new_topic: NewTopicFunction, jvm: Jvm) -> None:
    topic = new_topic()
    name = f"id-of-{topic}"
    producer = JavaTransactions(jvm, bootstrap, name)
    producer.begin()
    producer.send(topic, b"v")
    jvm.call("transaction", step="fence", bootstrap=bootstrap, id=name)
    with pytest.raises(producer.failures, match=r"Fenced|InvalidProducerEpoch"):
        producer.commit()
    eventually(lambda: read_with_confluent(bootstrap, topic, READ_UNCOMMITTED) == [b"v"], SECONDS)
    assert read_with_confluent(bootstrap, topic, READ_COMMITTED) == []
    producer.close()
