"""Members of consumer groups, one per client library, each on a thread of its own.

All of them subscribe, poll, commit what they polled and tell what they own, what was taken from them and what they
received. Heartbeats are quick, so that a rebalance is noticed within a fraction of a second.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import aiokafka
import confluent_kafka
import kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange
from kafka.coordinator.assignors.range import RangePartitionAssignor as KafkaPythonRange

from tests.conformance.java import Jvm, from_base64
from tests.waiting import eventually

HEARTBEAT_MS = 100
SESSION_TIMEOUT_MS = 10_000
REBALANCE_SECONDS = 30.0
POLL_MS = 50
# kafka-python forgets its assignment when a poll times out while it joins (seen with 3.0.12, also against Kafka).
KAFKA_PYTHON_POLL_MS = 2000

JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Membership(NamedTuple):
    bootstrap: str
    group: str
    topic: str
    strategy: str = "range"
    instance_id: str | None = None
    session_timeout_ms: int = SESSION_TIMEOUT_MS
    protocol: str = "classic"  # or "consumer" (KIP-848): the broker sets the times and makes the assignment


class Member(Protocol):
    def owned(self) -> set[int]:
        """Partitions that this member may read now."""

    def revoked(self) -> list[int]:
        """Every partition that was ever taken away while it was running."""

    def received(self) -> list[bytes]: ...

    def error(self) -> str | None: ...

    def end_soon(self) -> None:
        """Tells it to end, and does not wait."""

    def stop(self) -> None:
        """Closes the consumer: it leaves the group, unless it is a static member."""


class _ThreadMember:
    """The part that the Python members have in common."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._lock = threading.Lock()
        self._owned: set[int] = set()
        self._revoked: list[int] = []
        self._received: list[bytes] = []
        self._error: str | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run_guarded, name=f"member {type(self).__name__}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        raise AssertionError("each library has its own")

    def _run_guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # the edge of a thread: told to the test by error()
            self._error = repr(error)

    def _assigned(self, partitions: Iterable[Any]) -> None:
        with self._lock:
            self._owned.update(p.partition for p in partitions)

    def _taken(self, partitions: Iterable[Any]) -> None:
        with self._lock:
            self._owned.difference_update({p.partition for p in partitions})
            self._revoked += [p.partition for p in partitions]

    def _receive(self, values: Iterable[bytes]) -> None:
        with self._lock:
            self._received += values

    def owned(self) -> set[int]:
        with self._lock:
            return set(self._owned)

    def revoked(self) -> list[int]:
        with self._lock:
            return list(self._revoked)

    def received(self) -> list[bytes]:
        with self._lock:
            return list(self._received)

    def error(self) -> str | None:
        return self._error

    def end_soon(self) -> None:
        self._ending.set()

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(REBALANCE_SECONDS)
        assert not self._thread.is_alive(), "consumer does not close"


class ConfluentMember(_ThreadMember):
    def _run(self) -> None:
        m = self.membership
        config: dict[str, Any] = {
            "bootstrap.servers": m.bootstrap,
            "group.id": m.group,
            "group.protocol": m.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": POLL_MS,
        }
        if m.protocol == "consumer":
            config["group.remote.assignor"] = m.strategy
        else:
            config["partition.assignment.strategy"] = m.strategy
            config["heartbeat.interval.ms"] = HEARTBEAT_MS
            config["session.timeout.ms"] = m.session_timeout_ms
        if m.instance_id is not None:
            config["group.instance.id"] = m.instance_id
        consumer = confluent_kafka.Consumer(config)
        try:
            consumer.subscribe(
                [m.topic],
                on_assign=lambda _, partitions: self._assigned(partitions),
                on_revoke=lambda _, partitions: self._taken(partitions),
                on_lost=lambda _, partitions: self._taken(partitions),
            )
            while not self._ending.is_set():
                self._poll(consumer)
        finally:
            consumer.close()

    def _failed(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal() or error.code() == confluent_kafka.KafkaError._FATAL:
            self._error = error.str()

    def _poll(self, consumer: confluent_kafka.Consumer) -> None:
        wait_seconds = POLL_MS / 1000
        polled = 0
        while polled < 500 and (message := consumer.poll(wait_seconds)) is not None:
            if message.error() is not None:
                self._failed(message.error())
            else:
                self._receive([message.value()])
                polled += 1
            wait_seconds = 0
        if polled:
            self._commit(consumer)

    @staticmethod
    def _commit(consumer: confluent_kafka.Consumer) -> None:
        """Waits for the answer: commits sent without end would hold up the heartbeats behind them."""
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException:
            return  # a rebalance or a restart came between: the records come again


class _Listener(kafka.ConsumerRebalanceListener, aiokafka.ConsumerRebalanceListener):
    """kafka-python's and aiokafka's listeners have the same two methods."""

    def __init__(self, assigned: Callable[[Iterable[Any]], None], taken: Callable[[Iterable[Any]], None]) -> None:
        self._assigned = assigned
        self._taken = taken

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._assigned(assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._taken(revoked)


class KafkaPythonMember(_ThreadMember):
    def _run(self) -> None:
        m = self.membership
        assert m.strategy == "range"
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=m.bootstrap,
            group_id=m.group,
            group_instance_id=m.instance_id,
            partition_assignment_strategy=(KafkaPythonRange,),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=m.session_timeout_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=POLL_MS,
        )
        try:
            consumer.subscribe([m.topic], listener=_Listener(self._assigned, self._taken))
            while not self._ending.is_set():
                try:
                    polled = consumer.poll(timeout_ms=KAFKA_PYTHON_POLL_MS)
                except kafka.errors.KafkaConnectionError:
                    self._ending.wait(POLL_MS / 1000)  # it gives up at once while the broker is away
                    continue
                self._receive(record.value for records in polled.values() for record in records)
                if polled:
                    self._commit(consumer)
        finally:
            consumer.close()

    @staticmethod
    def _commit(consumer: kafka.KafkaConsumer) -> None:
        try:
            consumer.commit(timeout_ms=5000)
        except kafka.errors.KafkaError:
            return  # a rebalance or a restart came between: the records come again


class AiokafkaMember(_ThreadMember):
    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        m = self.membership
        assert m.strategy == "range"
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=m.bootstrap,
            group_id=m.group,
            group_instance_id=m.instance_id,
            partition_assignment_strategy=(AiokafkaRange,),
            heartbeat_interval_ms=HEARTBEAT_MS,
            session_timeout_ms=m.session_timeout_ms,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=POLL_MS,
        )
        consumer.subscribe([m.topic], listener=_Listener(self._assigned, self._taken))
        await consumer.start()
        try:
            while not self._ending.is_set():
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                self._receive(record.value for records in polled.values() for record in records)
                if polled:
                    await self._commit(consumer)
        finally:
            await consumer.stop()

    @staticmethod
    async def _commit(consumer: aiokafka.AIOKafkaConsumer) -> None:
        try:
            await consumer.commit()
        except aiokafka.errors.KafkaError:
            return  # a rebalance or a restart came between: the records come again


class JavaMember:
    def __init__(self, membership: Membership, jvm: Jvm) -> None:
        self._jvm = jvm
        self._name = f"member-{id(self)}"
        self._received: list[bytes] = []
        config = {
            "group.id": membership.group,
            "group.protocol": membership.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "fetch.max.wait.ms": POLL_MS,
        }
        if membership.protocol == "consumer":
            config["group.remote.assignor"] = membership.strategy
        else:
            config["partition.assignment.strategy"] = JAVA_ASSIGNORS[membership.strategy]
            config["heartbeat.interval.ms"] = HEARTBEAT_MS
            config["session.timeout.ms"] = membership.session_timeout_ms
        if membership.instance_id is not None:
            config["group.instance.id"] = membership.instance_id
        jvm.call(
            "member_start", name=self._name, bootstrap=membership.bootstrap, topic=membership.topic, config=config
        )

    def _state(self) -> dict[str, Any]:
        """What it received comes in portions."""
        while True:
            state = self._jvm.call("member_state", name=self._name, since=len(self._received))
            self._received += [from_base64(value) or b"" for value in state["received"]]
            if not state["received"]:
                return state

    def owned(self) -> set[int]:
        return set(self._state()["owned"])

    def revoked(self) -> list[int]:
        return list(self._state()["revoked"])

    def received(self) -> list[bytes]:
        self._state()
        return list(self._received)

    def error(self) -> str | None:
        error: str | None = self._state()["error"]
        return error

    def end_soon(self) -> None:
        """The JVM takes one command at a time; `stop` is quick."""

    def stop(self) -> None:
        self._jvm.call("member_stop", name=self._name)


def wait_until_shared(members: list[Member], partitions: int) -> None:
    """Waits until every partition is owned by exactly one member and every member owns its fair share."""

    def is_shared() -> bool:
        errors = [member.error() for member in members if member.error() is not None]
        assert not errors, errors
        owned = [member.owned() for member in members]
        fair = partitions // len(members)
        everything = sorted(p for part in owned for p in part)
        return everything == list(range(partitions)) and all(len(part) >= fair for part in owned)

    try:
        eventually(is_shared, REBALANCE_SECONDS, interval=0.05)
    except AssertionError as error:
        raise AssertionError(f"{error}: {[(type(m).__name__, m.owned(), m.error()) for m in members]}") from None


def received_by(members: list[Member]) -> set[bytes]:
    return {value for member in members for value in member.received()}
