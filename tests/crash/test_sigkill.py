"""SIGKILL during load: nothing that was acknowledged is missing, offsets are dense, groups resume.

The broker runs with its default `flush.mode=ack`. Clients are not told of the crash; their libraries must cope.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients import Confluent, Seen
from tests.crash.committer import Committer
from tests.crash.writers import AiokafkaWriter, ConfluentWriter, KafkaPythonWriter, Writer, number_of
from tests.processes import BrokerProcess
from tests.waiting import eventually

WRITERS = (ConfluentWriter, KafkaPythonWriter, AiokafkaWriter)
TOPIC = "crash"
GROUP = "crash-readers"
RECOVERY_SECONDS = 60.0


@dataclass
class Figures:
    rounds: int = 0
    acknowledged: int = 0
    topics: int = 0
    ready_seconds: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        slowest = max(self.ready_seconds)
        return (
            f"{self.rounds} kills, {self.acknowledged} acknowledged records, {self.topics} acknowledged topics,"
            f" none missing; start after a kill took at most {slowest:.2f} s"
        )


class CrashTest:
    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        self.figures = Figures()
        self.topics: list[str] = []
        self._create(TOPIC, partitions=len(WRITERS))
        self.writers: list[Writer] = [w(broker.bootstrap, TOPIC, index) for index, w in enumerate(WRITERS)]
        self.committer = Committer(broker.bootstrap, GROUP, TOPIC)

    def _create(self, name: str, partitions: int = 1) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        topic = NewTopic(name, partitions, 1, config={"segment.bytes": str(1024 * 1024)})
        admin.create_topics([topic])[name].result(30)
        self.topics.append(name)

    def round(self) -> None:
        """Lets every writer get some way, kills the broker, starts it again."""
        self._wait_for_progress(self.random.randint(50, 1500))
        self._create(f"topic-of-round-{self.figures.rounds}")
        committed = dict(self.committer.acknowledged)
        self.broker.kill()
        started = time.monotonic()
        self.broker.start()
        self.figures.ready_seconds.append(time.monotonic() - started)
        self.figures.rounds += 1
        self._check_commits(committed)
        self._wait_for_progress(50)

    def _wait_for_progress(self, records: int) -> None:
        goals = [(writer, len(writer.acknowledged) + records) for writer in self.writers]

        def reached() -> bool:
            failures = [writer.failures[0] for writer in self.writers if writer.failures]
            assert not failures, failures
            return all(len(writer.acknowledged) >= goal for writer, goal in goals)

        state = [(writer.name, len(writer.acknowledged)) for writer in self.writers]
        eventually(reached, RECOVERY_SECONDS, message=f"stuck at {state}: {self.broker.log()[-2000:]}")

    def _check_commits(self, acknowledged: dict[int, int]) -> None:
        stored = self._committed_offsets()
        for partition, offset in acknowledged.items():
            assert stored[partition] >= offset, f"partition {partition}: commit {offset} was lost, found {stored}"
            assert stored[partition] <= self.committer.attempted[partition]

    def _committed_offsets(self) -> dict[int, int]:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": GROUP})
        try:
            asked = [confluent_kafka.TopicPartition(TOPIC, partition) for partition in range(len(WRITERS))]
            return {found.partition: found.offset for found in consumer.committed(asked, timeout=30)}
        finally:
            consumer.close()

    def finish(self) -> Figures:
        for writer in self.writers:
            writer.stop()
        ends = {writer.partition: max(a.offset for a in writer.acknowledged) + 1 for writer in self.writers}
        eventually(lambda: all(self.committer.next_offset.get(p, 0) >= end for p, end in ends.items()), 60)
        self.committer.stop()
        seen = Confluent().consume(self.broker.bootstrap, TOPIC)
        for writer in self.writers:
            check_partition(writer, [record for record in seen if record.partition == writer.partition])
            self.figures.acknowledged += len(writer.acknowledged)
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        assert set(self.topics) <= set(admin.list_topics(timeout=30).topics)
        self.figures.topics = len(self.topics)
        return self.figures


def check_partition(writer: Writer, records: list[Seen]) -> None:
    assert [record.offset for record in records] == list(range(len(records))), "offsets are dense"
    numbers = [number_of(record.value or b"") for record in records]
    wrong = [ack for ack in writer.acknowledged if ack.offset >= len(numbers) or numbers[ack.offset] != ack.number]
    assert not wrong, f"{writer.name}: {len(wrong)} acknowledged records are not at their offsets: {wrong[:5]}"
    assert numbers == list(range(len(numbers))), f"{writer.name}: duplicates or disorder"


def run(broker: BrokerProcess, rounds: int, seed: int) -> Figures:
    test = CrashTest(broker, seed)
    for _ in range(rounds):
        test.round()
    return test.finish()


SETTINGS = {"group_initial_rebalance_delay_ms": "0"}


def test_three_kills_lose_nothing(broker_process: Callable[..., BrokerProcess]) -> None:
    figures = run(broker_process(**SETTINGS), rounds=3, seed=random.randrange(2**32))
    assert figures.rounds == 3


@pytest.mark.soak
def test_twenty_kills_lose_nothing(broker_process: Callable[..., BrokerProcess]) -> None:
    seed = random.randrange(2**32)
    print(f"\nseed {seed}")
    print(run(broker_process(**SETTINGS), rounds=20, seed=seed))
