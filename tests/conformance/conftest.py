"""One broker process for the whole conformance suite, and every client against it.

`PENSTOCK_TEST_BOOTSTRAP=host:port` runs the suite against that address instead: a test that does not pass against
Apache Kafka itself is a wrong test.
"""

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.conformance.clients import Aiokafka, Client, Confluent, Java, KafkaPython, Kcat
from tests.conformance.java import Jvm
from tests.conformance.members import Member
from tests.external import java_classpath, kcat
from tests.processes import BrokerProcess
from tests.waiting import eventually

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
CLIENT_NAMES = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", "java")
NewTopicFunction = Callable[..., str]


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with BrokerProcess(tmp_path_factory.mktemp("conformance") / "data", SETTINGS) as process:
        yield process.bootstrap
        assert "Traceback" not in process.log(), process.log()


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    running = Jvm(tmp_path_factory.mktemp("jvm") / "jvm.log")
    yield running
    running.close()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def new_topic(bootstrap: str, admin: AdminClient) -> NewTopicFunction:
    """Creates topics with names of their own."""

    def create(partitions: int = 1, **config: str) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        # Tests write records of long ago: retention must not take them away. An empty value is the default.
        named = {key.replace("_", "."): value for key, value in {"retention_ms": "-1", **config}.items()}
        config = {key: value for key, value in named.items() if value}
        topic = NewTopic(name, partitions, 1, config=config)
        admin.create_topics([topic])[name].result(30)
        eventually(lambda: _is_served(admin, name, partitions), 30)
        return name

    return create


def _is_served(admin: AdminClient, name: str, partitions: int) -> bool:
    topic = admin.list_topics(name, timeout=30).topics[name]
    if topic.error is not None or sum(p.leader >= 0 for p in topic.partitions.values()) < partitions:
        return False
    # Kafka announces a leader a little before that broker knows that it is one.
    latest = {TopicPartition(name, p): OffsetSpec.latest() for p in range(partitions)}
    return all(future.exception(30) is None for future in admin.list_offsets(latest).values())


@pytest.fixture
def new_group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def get_client(request: pytest.FixtureRequest) -> Callable[[str], Client]:
    """A client by its name; Java's starts the JVM when it is first asked for."""
    plain: dict[str, Callable[[], Client]] = {
        "confluent-kafka": Confluent,
        "kafka-python": KafkaPython,
        "aiokafka": Aiokafka,
        "kcat": Kcat,
    }

    def get(name: str) -> Client:
        if name == "java":
            return Java(request.getfixturevalue("jvm"))
        return plain[name]()

    return get


@pytest.fixture
def readers(get_client: Callable[[str], Client]) -> list[Client]:
    """Every client that can be had on this machine."""
    obtain: dict[str, Callable[[], str]] = {"kcat": kcat, "java": java_classpath}
    found = []
    for name in CLIENT_NAMES:
        with contextlib.suppress(pytest.skip.Exception):
            if name in obtain:
                obtain[name]()
            found.append(get_client(name))
    return found


@pytest.fixture
def full_readers(readers: list[Client]) -> list[Client]:
    """Those that show headers and take any bytes."""
    return [reader for reader in readers if reader.name != "kcat"]


@pytest.fixture(params=CLIENT_NAMES)
def client(request: pytest.FixtureRequest, get_client: Callable[[str], Client]) -> Client:
    return get_client(request.param)


@pytest.fixture
def running() -> Iterator[Callable[[Member], Member]]:
    """Keeps track of members so that none outlives its test."""
    members: list[Member] = []

    def keep(member: Member) -> Member:
        members.append(member)
        return member

    yield keep
    for member in members:
        member.end_soon()
    for member in members:
        member.stop()
