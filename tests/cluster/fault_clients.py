"""Clients that go on while a cluster is hurt, and remember: what was acknowledged and when, what groups read and
committed. One by confluent-kafka in threads of this process, one by Kafka's Java client in a JVM of its own.

Both write numbered records to every partition of one topic all the time. Numbers of one producer in one partition
must come out dense, in order and once, and those that were acknowledged at the offsets they were acknowledged with.
"""

import subprocess
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NamedTuple
from zlib import crc32

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.conformance.java import JVM_OPTIONS, LOG_OPTIONS
from tests.external import java_classpath
from tests.waiting import eventually

PAUSE_S = 0.05
COMMIT_S = 0.3  # what was read since is read again by the member that takes over
REQUEST_TIMEOUT_MS = 1_000  # a broker that sleeps never answers; by default it is waited for half a minute
END_S = 60.0


UNKNOWN_OFFSET = -1


class Acknowledged(NamedTuple):
    """The offset is not known where a library concluded from a later answer that an earlier record is in the log."""

    number: int
    offset: int
    sent_at: float
    acknowledged_at: float


def _acknowledged_at(entry: Acknowledged) -> float:
    return entry.acknowledged_at


class Ledger:
    """What one producer was told, by partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: dict[int, list[Acknowledged]] = defaultdict(list)
        self.failures: list[str] = []

    def count(self) -> int:
        return sum(len(entries) for entries in self.acknowledged.values())

    def longest_silence(self, partition: int, since: float, ended: float) -> float | None:
        """The longest time without an acknowledgement from `since` on; None before one came for a record that was
        sent after `ended`."""
        longest, before = 0.0, since
        entries = self.acknowledged[partition]
        for at in range(bisect_left(entries, since, key=_acknowledged_at), len(entries)):
            entry = entries[at]
            longest = max(longest, entry.acknowledged_at - before)
            before = entry.acknowledged_at
            if entry.sent_at >= ended:
                return longest
        return None


class GroupLedger:
    """What one group read and committed. It may read again, but only what it has not committed; it never skips."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.committed: dict[int, int] = {}
        self.next_offset: dict[int, int] = {}
        self.wrong: list[str] = []
        self.read_again = 0
        self.shown: list[tuple[int, int, int, int]] = []
        """Partition, first and last offset of what was received together, and the CRC of its values."""

    def received(self, partition: int, first: int, last: int, crc: int) -> None:
        expected, committed = self.next_offset.get(partition, 0), self.committed.get(partition, 0)
        if not committed <= first <= expected:
            self.wrong.append(f"{self.name}/{partition}: at {expected}, committed {committed}, received {first}")
        self.read_again += expected - first
        self.next_offset[partition] = last + 1
        self.shown.append((partition, first, last, crc))

    def check_values(self, found: Mapping[int, list[bytes]]) -> None:
        """Whatever this group was shown, whenever it was, is what is there in the end."""
        for partition, first, last, crc in self.shown:
            there = crc32(b"".join(found[partition][first : last + 1]))
            assert there == crc, f"{self.name}/{partition}: other records were shown at {first} to {last}"

    def commit_acknowledged(self, partition: int, offset: int) -> None:
        if offset > self.next_offset.get(partition, 0):
            self.wrong.append(f"{self.name}/{partition}: {offset} is committed and was not read")
        self.committed[partition] = offset

    def has_read(self, offsets: Mapping[int, int]) -> bool:
        return all(offset <= self.next_offset.get(partition, 0) for partition, offset in offsets.items())


class Traffic:
    """Producers and groups of one library."""

    def __init__(self, name: str) -> None:
        self.ledger = Ledger(name)
        self.groups: dict[str, GroupLedger] = {}

    def stop_producing(self) -> None:
        """Returns when every record is acknowledged or has failed."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def replace_consumer(self) -> None:
        """Another member of each group takes over from what was committed."""
        raise NotImplementedError

    def check(self) -> None:
        assert not self.ledger.failures, f"{self.ledger.name}: {self.ledger.failures[:3]}"
        wrong = [text for group in self.groups.values() for text in group.wrong]
        assert not wrong, wrong[:5]


class ConfluentTraffic(Traffic):
    def __init__(self, bootstrap: str, topic: str, partitions: int, *, default_timeouts: bool = False) -> None:
        super().__init__("confluent")
        self._topic = topic
        self._partitions = partitions
        self._config: dict[str, object] = {"bootstrap.servers": bootstrap, "log_level": 0}
        if not default_timeouts:
            self._config |= {
                "socket.timeout.ms": REQUEST_TIMEOUT_MS,
                "api.version.request.timeout.ms": REQUEST_TIMEOUT_MS,
                "socket.connection.setup.timeout.ms": REQUEST_TIMEOUT_MS,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.max.ms": 200,
            }
        self._quick = not default_timeouts
        self._group = self.groups["confluent-classic"] = GroupLedger("confluent-classic")
        self._producing_ends = threading.Event()
        self._consuming_ends = threading.Event()
        self._replacing = threading.Event()
        self._producing = _thread(self._produce, self.ledger.failures)
        self._consuming = _thread(self._consume, self.ledger.failures)

    def _produce(self) -> None:
        quick = {"request.timeout.ms": REQUEST_TIMEOUT_MS, "delivery.timeout.ms": 120_000} if self._quick else {}
        producer = Producer({**self._config, "enable.idempotence": True, "linger.ms": 2, **quick})
        number = 0
        due = time.monotonic()
        while not self._producing_ends.is_set():
            for partition in range(self._partitions):
                callback = self._delivered(partition, number, time.monotonic())
                producer.produce(self._topic, b"confluent:%d" % number, partition=partition, on_delivery=callback)
            number += 1
            due = max(due + PAUSE_S, time.monotonic() - PAUSE_S)
            while (left_s := due - time.monotonic()) > 0:
                producer.poll(left_s)
        assert producer.flush(END_S) == 0, "records are neither acknowledged nor refused"

    def _delivered(self, partition: int, number: int, sent_at: float) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.ledger.failures.append(str(error))
                return
            offset = message.offset()
            known = offset if offset is not None and offset >= 0 else UNKNOWN_OFFSET
            entry = Acknowledged(number, known, sent_at, time.monotonic())
            self.ledger.acknowledged[partition].append(entry)

        return delivered

    def _consume(self) -> None:
        quick = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500} if self._quick else {}
        group = {"group.id": self._group.name, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = Consumer({**self._config, **group, **quick})
        consumer.subscribe([self._topic])
        read: dict[int, int] = {}
        due = time.monotonic() + COMMIT_S
        # Who takes over must have something to read again: a member leaves with what it has not committed.
        while not self._consuming_ends.is_set() and not (self._replacing.is_set() and read):
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    offset = message.offset()
                    self._group.received(message.partition(), offset, offset, crc32(message.value()))
                    read[message.partition()] = offset + 1
            if read and time.monotonic() >= due:
                self._commit(consumer, [TopicPartition(self._topic, p, offset) for p, offset in read.items()])
                read, due = {}, time.monotonic() + COMMIT_S
        consumer.close()

    def _commit(self, consumer: Consumer, offsets: list[TopicPartition]) -> None:
        try:
            done = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # not acknowledged
        for entry in done or []:
            if entry.error is None:
                self._group.commit_acknowledged(entry.partition, entry.offset)

    def replace_consumer(self) -> None:
        self._replacing.set()
        self._consuming.join(END_S)
        assert not self._consuming.is_alive(), "the consumer does not come to an end"
        self._replacing.clear()
        self._consuming = _thread(self._consume, self.ledger.failures)

    def stop_producing(self) -> None:
        self._producing_ends.set()
        self._producing.join(END_S + 5)
        assert not self._producing.is_alive(), "the producer does not come to an end"

    def stop(self) -> None:
        self._producing_ends.set()
        self._consuming_ends.set()
        self._producing.join(END_S)
        self._consuming.join(END_S)


class JavaTraffic(Traffic):
    def __init__(
        self, bootstrap: str, topic: str, partitions: int, log_path: Path, *, default_timeouts: bool = False
    ) -> None:
        super().__init__("java")
        for name in ("java-classic", "java-consumer"):
            self.groups[name] = GroupLedger(name)
        timeout_ms = 0 if default_timeouts else REQUEST_TIMEOUT_MS
        numbers = [partitions, int(PAUSE_S * 1000), timeout_ms]
        command = ["java", *JVM_OPTIONS, *LOG_OPTIONS, "-cp", java_classpath(), "penstock.Traffic"]
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                [*command, bootstrap, topic, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        self._produced = threading.Event()
        self._listening = threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True)
        self._listening.start()

    def _listen(self, lines: IO[bytes]) -> None:
        for line in lines:
            kind, *words = line.decode().split(maxsplit=1)
            rest = words[0].split() if words else []
            if kind == "A":
                partition, number, offset, sent, acknowledged = map(int, rest)
                entry = Acknowledged(number, offset, sent / 1e9, acknowledged / 1e9)
                self.ledger.acknowledged[partition].append(entry)
            elif kind == "R":
                self.groups[rest[0]].received(*map(int, rest[1:]))
            elif kind == "C":
                self.groups[rest[0]].commit_acknowledged(int(rest[1]), int(rest[2]))
            elif kind == "E":
                self._produced.set()
            else:
                self.ledger.failures.append(line.decode())

    def _tell(self, order: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + b"\n")
        self._process.stdin.flush()

    def replace_consumer(self) -> None:
        self._tell(b"replace")

    def stop_producing(self) -> None:
        self._tell(b"")
        assert self._produced.wait(END_S), "the producer does not come to an end"

    def stop(self) -> None:
        if self._process.poll() is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._listening.join(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _thread(target: Callable[[], None], failures: list[str]) -> threading.Thread:
    def guarded() -> None:
        try:
            target()
        except Exception as error:  # the edge of a thread: told to the test by the ledger
            failures.append(repr(error))

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> dict[int, int]:
    """What the group's coordinator has, of partitions for which it has anything."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    asked = [TopicPartition(topic, partition) for partition in range(partitions)]

    def ask() -> list[TopicPartition] | None:
        try:
            return consumer.committed(asked, timeout=30)
        except KafkaException as error:
            # The coordinator may move between the client's two questions, and librdkafka does not ask again here.
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            return None

    try:
        found = eventually(ask, 30)
    finally:
        consumer.close()
    return {entry.partition: entry.offset for entry in found if entry.offset >= 0}


def read_topic(bootstrap: str, topic: str, partitions: int) -> dict[int, list[bytes]]:
    """Every record that the leaders show, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reads-all", "enable.auto.commit": False})
    found: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
    try:
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in found}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found])

        def complete() -> bool:
            for message in consumer.consume(5_000, 0.2):
                assert message.error() is None, message.error()
                values = found[message.partition()]
                assert message.offset() == len(values), "offsets are dense"
                values.append(message.value())
            return all(len(found[p]) >= end for p, end in ends.items())

        eventually(complete, 120, interval=0)
    finally:
        consumer.close()
    return found


def check_records(found: dict[int, list[bytes]], ledger: Ledger) -> None:
    """Everything acknowledged is at its offset and nowhere else; nothing is out of order or twice."""
    for partition, values in found.items():
        prefix = ledger.name.encode() + b":"
        numbers = {at: int(value[len(prefix) :]) for at, value in enumerate(values) if value.startswith(prefix)}
        present = set(numbers.values())
        missing = [
            ack
            for ack in ledger.acknowledged[partition]
            if (numbers.get(ack.offset) != ack.number if ack.offset != UNKNOWN_OFFSET else ack.number not in present)
        ]
        where = f"{ledger.name}, partition {partition}"
        assert not missing, f"{where}: {len(missing)} acknowledged records are not at their offsets: {missing[:3]}"
        assert list(numbers.values()) == list(range(len(numbers))), f"{where}: disorder, duplicates or holes"
