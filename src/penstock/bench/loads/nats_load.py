"""Load of prepared bytes for JetStream: publish with acknowledgements, from one connection or many, pull, and publish
and consume together, at a fixed rate or as fast as it goes.

Counts what marks an acknowledgement or the end of a payload in the bytes that come, and parses nothing else.
"""

import os
import select
import socket
import time
from collections import deque

from penstock.bench.loads.connection import HOST
from penstock.bench.nats import GREETING, NatsClient

_BUFFER_BYTES = 1 << 18
_ANSWER_SECONDS = 60.0
_ACK = b'"seq":'
_MARKER = b"\x00\xfeJSBENCH\xff\r\n"
"""Ends each payload; random bytes do not contain it."""
_PULL = 500
_PULLS = 4
_PULL_SECONDS = 1.0
_PULL_PATIENCE_SECONDS = 30.0


class Stream:
    """A connection of the load: sends blocks, and counts a mark in what comes."""

    def __init__(self, port: int, subject: str, mark: bytes) -> None:
        self.socket = socket.create_connection((HOST, port))
        self.socket.settimeout(_ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._mark = mark
        self._tail = b""
        self._buffer = bytearray(_BUFFER_BYTES)
        self._greet(GREETING)
        self._greet(f"SUB {subject} 1\r\nPING\r\n".encode())

    def _greet(self, command: bytes) -> None:
        self.socket.sendall(command)
        said = b""
        while not said.endswith(b"PONG\r\n"):
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError(f"the server closed the connection: {said[-300:]!r}")
            said += more

    def receive(self) -> int:
        """How many marks came."""
        size = self.socket.recv_into(self._buffer)
        if not size:
            raise ConnectionError("the server closed the connection")
        chunk = self._tail + self._buffer[:size]
        if b'"error"' in chunk or b"-ERR" in chunk:
            raise RuntimeError(f"refused: {bytes(chunk[-300:])!r}")
        if chunk.startswith(b"PING\r\n") or b"\r\nPING\r\n" in chunk:
            self.socket.sendall(b"PONG\r\n")
        self._tail = bytes(chunk[-len(self._mark) + 1 :])
        return chunk.count(self._mark)

    def close(self) -> None:
        self.socket.close()


def publish_command(stream: str, record_bytes: int, inbox: str) -> bytes:
    payload = os.urandom(max(0, record_bytes - len(_MARKER) + 2)) + _MARKER
    return f"PUB {stream}.s {inbox} {len(payload) - 2}\r\n".encode() + payload


def publish(
    port: int, stream: str, record_bytes: int, window: int, *, seconds: float = 0.0, messages: int = 0
) -> tuple[int, list[float]]:
    """For so long, or so many messages; until the last is acknowledged. Returns how many, and each latency."""
    inbox = "_INBOX.bench.acks"
    connection = Stream(port, inbox, _ACK)
    command = publish_command(stream, record_bytes, inbox)
    block = memoryview(command * window)
    latencies: list[float] = []
    sent_at: deque[float] = deque()
    end = time.perf_counter() + seconds if seconds else float("inf")
    wanted = messages or 1 << 60
    sent = again = min(window, wanted)
    while True:
        if again:
            now = time.perf_counter()
            sent_at.extend([now] * again)
            connection.socket.sendall(block[: again * len(command)])
        done = connection.receive()
        now = time.perf_counter()
        for _ in range(done):
            latencies.append(now - sent_at.popleft())
        again = min(done, wanted - sent) if now < end else 0
        sent += again
        if not sent_at and not again:
            connection.close()
            return len(latencies), latencies


class Publishers:
    """Many connections with one message in flight on each."""

    def __init__(self, port: int, stream: str, record_bytes: int, connections: int) -> None:
        self._commands: list[bytes] = []
        self._streams: list[Stream] = []
        for number in range(connections):
            inbox = f"_INBOX.bench.acks.{number}"
            self._streams.append(Stream(port, inbox, _ACK))
            self._commands.append(publish_command(stream, record_bytes, inbox))

    def run(self, *, seconds: float, messages: int) -> tuple[int, list[float]]:
        """So long, and not more than so many; until the last is acknowledged. Returns how many, and each latency."""
        latencies: list[float] = []
        sent_at: dict[int, float] = {}
        numbers = {stream.socket.fileno(): number for number, stream in enumerate(self._streams)}
        end = time.perf_counter() + seconds
        left = messages
        with select.epoll() as poll:
            for fd, number in numbers.items():
                poll.register(fd, select.EPOLLIN)
                if left:
                    left -= 1
                    sent_at[fd] = time.perf_counter()
                    self._streams[number].socket.sendall(self._commands[number])
            while sent_at:
                events = poll.poll(_ANSWER_SECONDS)
                if not events:
                    raise RuntimeError(f"no answer within {_ANSWER_SECONDS:.0f} s")
                for fd, _ in events:
                    number = numbers[fd]
                    if not self._streams[number].receive():
                        continue
                    now = time.perf_counter()
                    latencies.append(now - sent_at.pop(fd))
                    if left and now < end:
                        left -= 1
                        sent_at[fd] = now
                        self._streams[number].socket.sendall(self._commands[number])
        return len(latencies), latencies

    def close(self) -> None:
        for stream in self._streams:
            stream.close()


def pull(port: int, stream: str, messages: int) -> None:
    """From the beginning until so many came."""
    client = NatsClient(port)
    consumer = client.create_consumer(stream)
    inbox = "_INBOX.bench.pull"
    connection = Stream(port, inbox, _MARKER)
    connection.socket.settimeout(_PULL_SECONDS)
    body = f'{{"batch":{_PULL}}}'
    ask = f"PUB $JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer} {inbox} {len(body)}\r\n{body}\r\n".encode()
    got = asked = 0
    progress_at = time.monotonic()
    while got < messages:
        while asked - got <= _PULL * (_PULLS - 1) and asked < messages:
            connection.socket.sendall(ask)
            asked += _PULL
        try:
            more = connection.receive()
        except TimeoutError:
            # A consumer on another server that does not listen yet, or whose leader changed, drops what it is asked.
            # None of it will come, so none of it counts: a request that still counted would never be made again.
            more, asked = 0, got
        got += more
        now = time.monotonic()
        if more:
            progress_at = now
        elif now - progress_at > _PULL_PATIENCE_SECONDS:
            raise RuntimeError(f"{got} of {messages} messages came, and none for {_PULL_PATIENCE_SECONDS:.0f} s")
    client.api(f"CONSUMER.DELETE.{stream}.{consumer}")
    connection.close()
    client.close()


class Followed:
    """A publisher, and a consumer to which the server pushes what was just published."""

    def __init__(self, port: int, stream: str, record_bytes: int) -> None:
        self._stream = stream
        self._client = NatsClient(port)
        self._consumer = Stream(port, "bench.pushed", _MARKER)
        self._pushed = self._client.create_consumer(stream, "bench.pushed")
        skipped, before = 0, self._client.count_messages(stream)
        while skipped < before:
            skipped += self._consumer.receive()
        self._producer = Stream(port, "_INBOX.bench.rate", _ACK)
        self._command = publish_command(stream, record_bytes, "_INBOX.bench.rate")

    def run_at_rate(self, rate: int, seconds: float) -> tuple[list[float], list[float]]:
        """Latencies of the acknowledgements, and from due to consumed; as `raw_rate` does for Kafka's protocol."""
        total = int(rate * seconds)
        acks: list[float] = []
        ends: list[float] = []
        producer, consumer = self._producer, self._consumer
        lists = {producer.socket.fileno(): (producer, acks), consumer.socket.fileno(): (consumer, ends)}
        sent = 0
        begun = time.perf_counter()
        with select.epoll() as poll:
            for fd in lists:
                poll.register(fd, select.EPOLLIN)
            while len(acks) < total or len(ends) < total:
                now = time.perf_counter()
                due = min(total, int((now - begun) * rate))
                if due > sent:
                    producer.socket.sendall(self._command * (due - sent))
                    sent = due
                if now > begun + seconds + _ANSWER_SECONDS:
                    raise RuntimeError(f"{total - len(ends)} of {total} messages were not consumed in time")
                for fd, _ in poll.poll(0.001 if sent < total else 0.1):
                    connection, latencies = lists[fd]
                    first = len(latencies) + 1
                    count = connection.receive()
                    elapsed = time.perf_counter() - begun
                    latencies.extend([elapsed - number / rate for number in range(first, first + count)])
        return acks, ends

    def run(self, window: int, *, seconds: float, messages: int) -> list[float]:
        """So many unacknowledged at any time, so long, and not more than so many; until the last is consumed. Returns
        the latency of each from sent to consumed; as `raw_tail` does for Kafka's protocol."""
        block = memoryview(self._command * window)
        latencies: list[float] = []
        sent_at: deque[float] = deque()
        producer = self._producer.socket.fileno()
        begun = heard_at = time.perf_counter()
        sent = again = min(window, messages)
        acked = 0
        with select.epoll() as poll:
            for fd in (producer, self._consumer.socket.fileno()):
                poll.register(fd, select.EPOLLIN)
            while acked < sent or len(latencies) < sent:
                if again:
                    sent_at.extend([time.perf_counter()] * again)
                    self._producer.socket.sendall(block[: again * len(self._command)])
                    again = 0
                for fd, _ in poll.poll(1.0):
                    if fd == producer:
                        done = self._producer.receive()
                        acked += done
                        heard_at = time.perf_counter()
                        if heard_at - begun < seconds:
                            again = min(done, messages - sent)
                            sent += again
                    else:
                        count = self._consumer.receive()
                        heard_at = time.perf_counter()
                        latencies += [heard_at - sent_at.popleft() for _ in range(count)]
                if time.perf_counter() - heard_at > _ANSWER_SECONDS:
                    raise RuntimeError(f"{sent - len(latencies)} of {sent} messages were not consumed in time")
        return latencies

    def close(self) -> None:
        self._client.api(f"CONSUMER.DELETE.{self._stream}.{self._pushed}")
        for each in (self._producer, self._consumer, self._client):
            each.close()
