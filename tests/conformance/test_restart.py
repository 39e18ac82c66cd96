"""A restart in the middle: the broker stops cleanly and comes back, and every client goes on without being told."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients import Confluent, Seen
from tests.conformance.java import JVM_OPTIONS, LOG_OPTIONS, TOOLS, Jvm
from tests.conformance.members import (
    AiokafkaMember,
    ConfluentMember,
    JavaMember,
    KafkaPythonMember,
    Member,
    Membership,
)
from tests.crash.writers import AiokafkaWriter, ConfluentWriter, KafkaPythonWriter, Writer, number_of
from tests.external import java_classpath, kcat
from tests.processes import BrokerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.java
TOPIC, JAVA_TOPIC, KCAT_TOPIC = "events", "events-of-java", "events-of-kcat"
WRITERS = (ConfluentWriter, KafkaPythonWriter, AiokafkaWriter)
JAVA_COUNT = 3000
SECONDS = 60.0


@pytest.fixture
def broker(broker_process: Callable[..., BrokerProcess]) -> BrokerProcess:
    started = broker_process(group_initial_rebalance_delay_ms="0")
    admin = AdminClient({"bootstrap.servers": started.bootstrap, "log_level": 0})
    topics = [NewTopic(TOPIC, len(WRITERS), 1), NewTopic(JAVA_TOPIC, 1, 1), NewTopic(KCAT_TOPIC, 1, 1)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    return started


@pytest.fixture
def members(broker: BrokerProcess, jvm: Jvm) -> Iterator[list[Member]]:
    """One group per library, each reading everything."""
    with ExitStack() as stack:
        joined: list[Member] = [
            ConfluentMember(Membership(broker.bootstrap, "of-confluent", TOPIC)),
            KafkaPythonMember(Membership(broker.bootstrap, "of-kafka-python", TOPIC)),
            AiokafkaMember(Membership(broker.bootstrap, "of-aiokafka", TOPIC)),
            JavaMember(Membership(broker.bootstrap, "of-java", TOPIC), jvm),
        ]
        for member in joined:
            stack.callback(member.stop)
        yield joined


def start_java_producer(bootstrap: str) -> "subprocess.Popen[str]":
    """Paced, so that the restart falls into the middle of it."""
    arguments = ["--topic", JAVA_TOPIC, "--num-records", str(JAVA_COUNT), "--record-size", "50"]
    arguments += ["--throughput", "1000", "--command-property", f"bootstrap.servers={bootstrap}"]
    command = ["java", *JVM_OPTIONS, *LOG_OPTIONS, "-cp", java_classpath(), TOOLS["kafka-producer-perf-test"]]
    return subprocess.Popen(command + arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def start_kcat(bootstrap: str, count: int) -> "subprocess.Popen[str]":
    # -E: kcat would end when all brokers are down.
    arguments = ["-C", "-E", "-b", bootstrap, "-t", KCAT_TOPIC, "-o", "beginning", "-c", str(count), "-q", "-u"]
    return subprocess.Popen([kcat(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def wait_for_records(writers: list[Writer], count: int) -> None:
    goals = [(writer, len(writer.acknowledged) + count) for writer in writers]
    eventually(lambda: all(len(writer.acknowledged) >= goal for writer, goal in goals), SECONDS)


def test_all_clients_go_on_after_a_restart(broker: BrokerProcess, members: list[Member]) -> None:
    writers: list[Writer] = [
        writer(broker.bootstrap, TOPIC, index, in_flight=5) for index, writer in enumerate(WRITERS)
    ]
    java_producer = start_java_producer(broker.bootstrap)
    kcat_consumer = start_kcat(broker.bootstrap, count=40)
    write_lines(broker.bootstrap, 20)
    wait_for_records(writers, 300)
    for member in members:
        wait_for_member(member, lambda received: len(received) > 0)
    eventually(lambda: offsets_of(broker.bootstrap, JAVA_TOPIC) > 0, SECONDS)

    broker.restart()

    write_lines(broker.bootstrap, 20)
    wait_for_records(writers, 300)
    for writer in writers:
        writer.stop()
    output, _ = java_producer.communicate(timeout=SECONDS)
    assert f"{JAVA_COUNT} records sent" in output
    assert offsets_of(broker.bootstrap, JAVA_TOPIC) == JAVA_COUNT, "idempotent: each once"
    assert len(kcat_consumer.communicate(timeout=SECONDS)[0].splitlines()) == 40

    seen = Confluent().consume(broker.bootstrap, TOPIC)
    for writer in writers:
        assert_acknowledged(writer, [record for record in seen if record.partition == writer.partition])
    everything = {record.value for record in seen}
    for member in members:
        wait_for_member(member, lambda received: everything <= set(received))


def wait_for_member(member: Member, is_enough: Callable[[list[bytes]], bool]) -> None:
    try:
        eventually(lambda: is_enough(member.received()), SECONDS, interval=0.1)
    except AssertionError:
        story = f"owns {member.owned()}, received {len(member.received())}, error {member.error()}"
        raise AssertionError(f"{type(member).__name__} does not get on: {story}") from None


def write_lines(bootstrap: str, count: int) -> None:
    lines = "".join(f"line {number}\n" for number in range(count))
    command = [kcat(), "-P", "-b", bootstrap, "-t", KCAT_TOPIC, "-q"]
    subprocess.run(command, input=lines, text=True, check=True, timeout=SECONDS)


def offsets_of(bootstrap: str, topic: str) -> int:
    return len(Confluent().consume(bootstrap, topic))


def assert_acknowledged(writer: Writer, records: list[Seen]) -> None:
    numbers = [number_of(record.value or b"") for record in records]
    assert numbers == list(range(len(writer.acknowledged))), f"{writer.name}: each record once and in order"
    assert [a for a in writer.acknowledged if numbers[a.offset] != a.number] == []
