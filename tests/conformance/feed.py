"""A producer that writes while groups rebalance."""

import threading

import confluent_kafka


class Feed:
    """Writes numbered records, round robin over the partitions, until it is told to stop."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic = topic
        self._partitions = partitions
        self._ending = threading.Event()
        self.acknowledged: list[bytes] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value())

    def _run(self) -> None:
        number = 0
        while not self._ending.wait(0.002):
            partition = number % self._partitions
            self._producer.produce(self._topic, b"%06d" % number, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1

    def stop(self) -> set[bytes]:
        """Everything that was acknowledged."""
        self._ending.set()
        self._thread.join(30)
        assert self._producer.flush(30) == 0
        return set(self.acknowledged)
