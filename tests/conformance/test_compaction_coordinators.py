"""The coordinators' own topics are compacted, and what clients were promised is there after a kill."""

import re
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java import Jvm
from tests.conformance.test_compaction import check_dump, dump_log
from tests.conformance.transactional import ConfluentTransactions
from tests.processes import BrokerProcess
from tests.waiting import eventually

TOPIC, GROUP = "events", "readers"
TRANSACTIONS = 150
SECONDS = 60.0
SETTINGS = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.segment.bytes": "8000",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": "8000",
    "log.cleaner.backoff.ms": "50",
    "log.cleaner.min.cleanable.ratio": "0.01",
}


class Busy:
    """A broker whose coordinators have had much to write about the same few ids."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        once = ConfluentTransactions(broker.bootstrap, "once")
        self.steady = ConfluentTransactions(broker.bootstrap, "steady")
        for number, producer in enumerate([once] + [self.steady] * TRANSACTIONS):
            producer.begin()
            producer.send(TOPIC, b"%d" % number)
            producer.send_offset(GROUP, TOPIC, number)
            producer.commit()

    def directory(self, topic: str) -> Path:
        return self.broker.data_dir / f"{topic}-0"

    def wait_until_compacted(self, topic: str) -> None:
        """Closed segments were left with little; the active one is never compacted."""

        def is_small() -> bool:
            return sum(path.stat().st_size for path in self.directory(topic).glob("*.log")) < 20_000

        eventually(is_small, SECONDS, interval=0.1)

    def committed_offset(self) -> int:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": GROUP})
        [place] = consumer.committed([confluent_kafka.TopicPartition(TOPIC, 0)], 30)
        consumer.close()
        return place.offset  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    with BrokerProcess(tmp_path_factory.mktemp("coordinators") / "data", SETTINGS) as broker:
        yield Busy(broker)
        assert "Traceback" not in broker.log(), broker.log()


def test_after_a_kill_all_that_was_promised_is_there(busy: Busy) -> None:
    busy.wait_until_compacted("__transaction_state")
    busy.wait_until_compacted("__consumer_offsets")
    busy.broker.kill()
    busy.broker.start()
    assert busy.committed_offset() == TRANSACTIONS
    successor = ConfluentTransactions(busy.broker.bootstrap, "steady")
    busy.steady.begin()
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        busy.steady.send_offset(GROUP, TOPIC, 0)
    assert fenced.value.args[0].code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    )
    successor.begin()
    successor.send(TOPIC, b"more")
    successor.send_offset(GROUP, TOPIC, TRANSACTIONS + 1)
    successor.commit()
    assert busy.committed_offset() == TRANSACTIONS + 1


@pytest.mark.java
def test_dump_log_decodes_what_is_left(busy: Busy, jvm: Jvm) -> None:
    busy.wait_until_compacted("__transaction_state")
    busy.wait_until_compacted("__consumer_offsets")
    assert busy.broker.stop() == 0
    try:
        states, offsets = busy.directory("__transaction_state"), busy.directory("__consumer_offsets")
        check_dump(jvm, states)
        check_dump(jvm, offsets)
        left = dump_log(jvm, states, ".log", "--transaction-log-decoder")
        assert re.findall(r"transactionalId\W+once\b.*?transactionStatus\W+(\w+)", left) == ["4"], "only the last"
        assert 1 <= len(re.findall(r"transactionalId\W+steady\b", left)) < TRANSACTIONS
        left = dump_log(jvm, offsets, ".log", "--offsets-decoder")
        found = [int(offset) for offset in re.findall(r'"offset":(\d+)', left)]
        assert found[-1] in (TRANSACTIONS, TRANSACTIONS + 1)
        assert len(found) < TRANSACTIONS
    finally:
        busy.broker.start()
