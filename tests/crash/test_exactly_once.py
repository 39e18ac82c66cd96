"""Exactly once: consume, transform, produce in transactions, while program and broker are killed.

Every input record must appear once, and only once, in what a `read_committed` reader sees of the output; and the
group's offsets must be at the end of the input.
"""

import itertools
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.java import JVM_OPTIONS, LOG_OPTIONS
from tests.crash.transformers import Job, transform
from tests.external import java_classpath
from tests.processes import BrokerProcess
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
INPUT, OUTPUT, GROUP = "input", "output", "transformers"
PARTITIONS = 2
RECOVERY_SECONDS = 60.0
SETTINGS = {
    "group_initial_rebalance_delay_ms": "0",
    "group_min_session_timeout_ms": "1000",
    "transaction_state_log_num_partitions": "5",
    "offsets_topic_num_partitions": "5",
    "group_consumer_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "2000",
    "group_consumer_min_heartbeat_interval_ms": "100",
    "group_consumer_heartbeat_interval_ms": "300",
}


def python_command(library: str) -> list[str]:
    return [sys.executable, "-m", "tests.crash.transformers", library]


def java_command() -> list[str]:
    return ["java", *JVM_OPTIONS, *LOG_OPTIONS, "-cp", java_classpath(), "penstock.Transformer"]


class Program:
    """A transformer process. When it ends by itself it is started again, as an operator's supervisor would."""

    def __init__(self, command: list[str], job: Job, log_path: Path) -> None:
        self._command = [*command, *job]
        self._log_path = log_path
        self.starts = 0
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        self.starts += 1
        with open(self._log_path, "ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def look_after(self) -> None:
        if self._process.poll() is not None:
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")[-3000:]


class Input:
    """Writes numbers without pause, idempotently, until stopped; `count` is how many were acknowledged in the end."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._wanted = threading.Semaphore(0)
        self._ending = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._run, name="input", daemon=True)
        self._thread.start()

    def allow(self, records: int) -> None:
        self._wanted.release(records)

    def _run(self) -> None:
        config = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 1}
        producer = confluent_kafka.Producer(config)
        for number in itertools.count():
            self._wanted.acquire()
            if self._ending.is_set():
                break
            producer.produce(INPUT, b"%06d" % number, partition=number % PARTITIONS)
            producer.poll(0)
            self.count = number + 1
        assert producer.flush(RECOVERY_SECONDS) == 0

    def stop(self) -> None:
        self._ending.set()
        self._wanted.release()
        self._thread.join(RECOVERY_SECONDS)
        assert not self._thread.is_alive()


class Output:
    """Reads what is committed, without pause."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.values: list[bytes] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        config = {
            "bootstrap.servers": self._bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        consumer = confluent_kafka.Consumer(config)
        consumer.assign([confluent_kafka.TopicPartition(OUTPUT, p, 0) for p in range(PARTITIONS)])
        while not self._ending.is_set():
            self.values += [m.value() for m in consumer.consume(500, 0.05) if m.error() is None]
        consumer.close()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(RECOVERY_SECONDS)


class Served(Protocol):
    """What the program talks to."""

    @property
    def bootstrap(self) -> str: ...

    def log(self) -> str: ...


class ExactlyOnce:
    replication_factor = 1

    def __init__(self, broker: Served, command: list[str], protocol: str, log_path: Path, seed: int) -> None:
        self.broker = broker
        self.random = random.Random(seed)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        topics = [NewTopic(name, PARTITIONS, self.replication_factor) for name in (INPUT, OUTPUT)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        self.input = Input(broker.bootstrap)
        self.output = Output(broker.bootstrap)
        job = Job(broker.bootstrap, INPUT, OUTPUT, GROUP, "the-transformer", protocol)
        self.program = Program(command, job, log_path)

    def make_progress(self, records: int) -> None:
        """Waits until so many more output records are committed; input is always ahead."""
        goal = len(self.output.values) + records
        self.input.allow(2 * records)
        self.wait_for(lambda: len(self.output.values) >= goal)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        def look() -> bool:
            self.program.look_after()
            return reached()

        try:
            eventually(look, RECOVERY_SECONDS)
        except AssertionError:
            state = f"{len(self.output.values)} of {self.input.count} after {self.program.starts} starts"
            raise AssertionError(f"stuck at {state}\n{self.program.log()}\n{self.broker.log()[-2000:]}") from None

    def rounds(self, count: int, broker: BrokerProcess) -> None:
        self.make_progress(20)
        for _ in range(count):
            self.make_progress(self.random.randint(10, 80))
            self.program.kill()
            self.make_progress(self.random.randint(10, 80))
            broker.kill()
            broker.start()

    def check(self) -> str:
        self.make_progress(10)
        self.input.stop()
        self.wait_for(lambda: len(self.output.values) >= self.input.count)
        self.wait_for(lambda: self._committed() == self.input.count)
        self.program.kill()
        self.output.stop()
        counted = Counter(self.output.values)
        expected = {transform(b"%06d" % number) for number in range(self.input.count)}
        assert not expected - counted.keys(), "lost"
        assert not {value for value, times in counted.items() if times > 1}, "more than once"
        assert counted.keys() == expected
        return f"{self.input.count} records exactly once, {self.program.starts} starts of the program"

    def _committed(self) -> int:
        config = {"bootstrap.servers": self.broker.bootstrap, "group.id": GROUP, "log_level": 0}
        consumer = confluent_kafka.Consumer(config)
        try:
            places = [confluent_kafka.TopicPartition(INPUT, p) for p in range(PARTITIONS)]
            return sum(max(place.offset, 0) for place in consumer.committed(places, 30))
        finally:
            consumer.close()

    def close(self) -> None:
        self.program.kill()
        self.input.stop()
        self.output.stop()


@contextmanager
def exactly_once(
    broker: BrokerProcess, command: list[str], protocol: str, tmp_path: Path, seed: int
) -> Iterator[ExactlyOnce]:
    test = ExactlyOnce(broker, command, protocol, tmp_path / "program.log", seed)
    try:
        yield test
    finally:
        test.close()


# Each client with one of the two group protocols; the soak runs have the other one too.
PROGRAMS = [
    pytest.param(lambda: python_command("confluent-kafka"), "classic", id="confluent-kafka"),
    pytest.param(lambda: python_command("kafka-python"), "classic", id="kafka-python"),
    pytest.param(lambda: python_command("aiokafka"), "classic", id="aiokafka"),
    pytest.param(java_command, "consumer", id="java-consumer-protocol", marks=pytest.mark.java),
]
MORE_PROGRAMS = [
    pytest.param(lambda: python_command("confluent-kafka"), "consumer", id="confluent-kafka-consumer-protocol"),
    pytest.param(java_command, "classic", id="java", marks=pytest.mark.java),
]


@pytest.mark.parametrize(("command", "protocol"), PROGRAMS)
def test_kills_of_program_and_broker(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path, command: Callable[[], list[str]], protocol: str
) -> None:
    broker = broker_process(**SETTINGS)
    with exactly_once(broker, command(), protocol, tmp_path, random.randrange(2**32)) as test:
        test.rounds(2, broker)
        test.check()


@pytest.mark.soak
@pytest.mark.parametrize(("command", "protocol"), PROGRAMS + MORE_PROGRAMS)
def test_twenty_kills_of_program_and_broker(
    broker_process: Callable[..., BrokerProcess], tmp_path: Path, command: Callable[[], list[str]], protocol: str
) -> None:
    seed = random.randrange(2**32)
    print(f"\nseed {seed}")
    broker = broker_process(**SETTINGS)
    with exactly_once(broker, command(), protocol, tmp_path, seed) as test:
        test.rounds(20, broker)
        print(test.check())
