"""Malformed frames: the connection is closed or an error is answered, and the broker stays up, and stays small."""

import contextlib
import socket
import struct
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fuzz.frames import FrameMaker, framed
from tests.processes import BrokerProcess
from tests.waiting import eventually

TOPIC = "fuzzed"
ALLOWED_GROWTH_BYTES = 10 * 1024 * 1024
SETTINGS = {
    "auto.create.topics.enable": "false",
    "socket.send.stall.timeout.ms": "2000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "log.level": "error",
}


class FuzzedBroker:
    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.maker = FrameMaker(seed, TOPIC)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)

    def send(self, count: int) -> None:
        """One frame per connection, or the first bad one would hide the others; it is dealt with when the broker
        closes its side."""
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", self.broker.port), 20)
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(self.maker.make())
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

    def check_alive(self) -> None:
        """A real client can still write and read."""
        assert self.broker.is_running(), self.broker.log()
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        producer.produce(TOPIC, b"alive", partition=0)
        assert producer.flush(20) == 0
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "alive"})
        _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), 20)
        consumer.assign([TopicPartition(TOPIC, 0, high - 1)])
        message = eventually(lambda: consumer.poll(1), 20)
        consumer.close()
        assert message.value() == b"alive"


def fuzz(tmp_path: Path, first: int, total: int, seed: int) -> None:
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        fuzzed = FuzzedBroker(broker, seed)
        fuzzed.send(first)
        fuzzed.check_alive()
        before = broker.rss_bytes()
        fuzzed.send(total - first)
        fuzzed.check_alive()
        growth = broker.rss_bytes() - before
        print(f"{total} frames: RSS grew by {growth / 1e6:.1f} MB between frame {first} and the end")
        assert growth <= ALLOWED_GROWTH_BYTES
        assert "Traceback" not in broker.log(), broker.log()[-4000:]


def test_a_hundred_thousand_malformed_frames(tmp_path: Path):
    fuzz(tmp_path, 10_000, 100_000, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 7))
def test_half_a_million_more(tmp_path: Path, seed: int):
    fuzz(tmp_path, 10_000, 100_000, seed)


def test_clients_that_never_finish_a_frame_are_cut_off(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", SETTINGS) as broker:
        slow = [socket.create_connection(("127.0.0.1", broker.port), 20) for _ in range(200)]
        for connection in slow:
            connection.sendall(struct.pack(">i", 50_000_000) + b"only this much")
        fuzzed = FuzzedBroker(broker, 3)
        fuzzed.check_alive()
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                assert connection.recv(1) == b"", "cut off after the stall timeout"
            connection.close()
        fuzzed.check_alive()


def test_an_oversized_request_is_refused_before_it_is_read(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", {**SETTINGS, "socket.request.max.bytes": "10000"}) as broker:
        connection = socket.create_connection(("127.0.0.1", broker.port), 20)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(framed(bytes(20_000))[:100])
            assert connection.recv(1) == b""
        assert broker.is_running()
