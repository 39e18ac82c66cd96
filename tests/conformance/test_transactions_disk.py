"""Kafka's own kafka-dump-log reads what transactions leave on disk: their log, markers, indexes and offsets."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java import Jvm
from tests.conformance.test_disk_format import dump, files
from tests.conformance.transactional import ConfluentTransactions, JavaTransactions, TransactionalProducer
from tests.processes import BrokerProcess

pytestmark = pytest.mark.java
TOPIC, GROUP = "events", "readers"


@pytest.fixture
def data_dir(broker_process: Callable[..., BrokerProcess], jvm: Jvm) -> Path:
    """The directory of a stopped broker after transactions of both versions, one of them still open."""
    broker = broker_process(transaction_state_log_num_partitions="1", offsets_topic_num_partitions="1")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
    java: Callable[[str, str], TransactionalProducer] = partial(JavaTransactions, jvm)
    for name, make in (("version-1", ConfluentTransactions), ("version-2", java)):
        producer = make(broker.bootstrap, name)
        for offset, commits in ((1, True), (2, False)):
            producer.begin()
            producer.send(TOPIC, b"v", b"w")
            producer.send_offset(GROUP, TOPIC, offset)
            (producer.commit if commits else producer.abort)()
        producer.close()
    left_open = ConfluentTransactions(broker.bootstrap, "open")
    left_open.begin()
    left_open.send(TOPIC, b"open")
    assert broker.stop() == 0
    left_open.close()
    del admin  # it would try to reconnect
    return broker.data_dir


def test_dump_log_reads_transactions(jvm: Jvm, data_dir: Path) -> None:
    state = dump(
        jvm,
        *files(data_dir, "__transaction_state-0", ".log"),
        options=("--deep-iteration", "--transaction-log-decoder"),
    )
    for name in ("version-1", "version-2"):
        states = re.findall(rf"transactionalId\W+{name}\b.*?transactionStatus\W+(\w+)", state)
        assert states == ["0", "1", "1", "2", "4", "1", "1", "3", "5"], "empty, ongoing, prepared and complete, twice"

    data = dump(jvm, *files(data_dir, f"{TOPIC}-0", ".log"), options=("--deep-iteration", "--print-data-log"))
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: 0", data) == ["COMMIT", "ABORT"] * 2
    assert "isTransactional: false" not in data
    aborted = dump(jvm, *files(data_dir, f"{TOPIC}-0", ".txnindex"))
    assert re.findall(r"firstOffset: (\d+) lastOffset: (\d+)", aborted) == [("3", "5"), ("9", "11")]
    snapshot = dump(jvm, *files(data_dir, f"{TOPIC}-0", ".snapshot"))
    assert len(re.findall(r"currentTxnFirstOffset: OptionalLong\[12\]", snapshot)) == 1

    offsets = dump(
        jvm, *files(data_dir, "__consumer_offsets-0", ".log"), options=("--deep-iteration", "--offsets-decoder")
    )
    assert re.findall(r"endTxnMarker: (\w+)", offsets) == ["COMMIT", "ABORT"] * 2
    assert re.findall(r'"offset":(\d+)', offsets) == ["1", "2"] * 2
