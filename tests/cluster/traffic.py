"""Clients that remember: what was acknowledged, and what is there."""

from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.waiting import eventually

DELIVERY_S = 30.0


class Writer:
    """An idempotent producer that remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, partitions: int = 3, prefix: str = "record") -> None:
        self.acknowledged: list[tuple[int, int, bytes]] = []
        self.failures: list[KafkaError] = []
        self._topic = topic
        self._partitions = partitions
        self._prefix = prefix
        self._sent = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                # A broker that sleeps never answers: without these, what it was sent is waited for a minute.
                "request.timeout.ms": 1_000,
                "socket.timeout.ms": 1_000,
                "api.version.request.timeout.ms": 1_000,
                "delivery.timeout.ms": int(DELIVERY_S * 1000),
            }
        )

    def write(self, count: int) -> None:
        """Returns when every record is acknowledged or refused."""
        for _ in range(count):
            self._sent += 1
            partition = self._sent % self._partitions
            self._producer.produce(
                self._topic, f"{self._prefix} {self._sent}".encode(), partition=partition, on_delivery=self._delivered
            )
        assert self._producer.flush(DELIVERY_S) == 0, "records are neither acknowledged nor refused"

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged.append((message.partition(), message.offset(), message.value()))


def read_all(bootstrap: str, topic: str, count: int) -> list[tuple[int, int, bytes]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[tuple[int, int, bytes]] = []

    def complete() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append((message.partition(), message.offset(), message.value()))
        return len(found) >= count

    try:
        eventually(complete, 60, interval=0)
    finally:
        consumer.close()
    return found
