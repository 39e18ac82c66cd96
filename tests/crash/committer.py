"""A consumer group that commits as it reads, and remembers which commits were acknowledged."""

import threading

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

POLL_SECONDS = 0.05


class Committer:
    """Reads a topic as a group of one. `acknowledged` is the last commit that the broker answered, per partition."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._config = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 200,
            "session.timeout.ms": 6000,
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
        self._topic = topic
        self.acknowledged: dict[int, int] = {}
        self.attempted: dict[int, int] = {}
        self.next_offset: dict[int, int] = {}
        self.gaps: list[str] = []
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="committer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        consumer = confluent_kafka.Consumer(self._config)
        consumer.subscribe([self._topic])
        while not self._ending.is_set():
            messages = [m for m in consumer.consume(200, POLL_SECONDS) if m.error() is None]
            for message in messages:
                self._check(message.partition(), message.offset())
            if messages:
                self._commit(consumer, {m.partition(): m.offset() + 1 for m in messages})
        consumer.close()

    def _check(self, partition: int, offset: int) -> None:
        """After a rebalance the group may read again from its last commit; it never skips."""
        expected = self.next_offset.get(partition, 0)
        if not self.acknowledged.get(partition, 0) <= offset <= expected:
            self.gaps.append(f"partition {partition}: expected {expected}, got {offset}")
        self.next_offset[partition] = offset + 1

    def _commit(self, consumer: confluent_kafka.Consumer, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self.attempted[partition] = max(offset, self.attempted.get(partition, 0))
        wanted = [TopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        try:
            committed = consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # the broker is away, or the group has moved on: not acknowledged
        for done in committed:
            if done.error is None:
                self.acknowledged[done.partition] = done.offset

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the committer does not come to an end"
        assert not self.gaps, self.gaps[:5]
