"""Produce and consume together, over plain sockets, from one thread: at a rate, or as fast as the broker takes it.

One record per request. At a rate every request is sent when it is due whether or not earlier ones were answered; a
latency counts from the moment the record was due, so a broker that stalls is charged for all that waited meanwhile.
"""

import select
import time

from penstock.bench.loads.connection import (
    RawClient,
    check_produced,
    fetch_frame,
    fetched_bytes,
    make_batch,
    produce_frame,
)

_BUFFER_BYTES = 1 << 18
_DRAIN_SECONDS = 30.0
_FETCH_BYTES = 1 << 20


class RateRun:
    """Offsets of the one partition are the numbers of the records: that is how a record is found again."""

    def __init__(self, port: int, topic: str, record_bytes: int, rate: int, acks: int) -> None:
        self._topic = topic
        self.rate = rate
        self._producer = RawClient(port)
        self._consumer = RawClient(port)
        batch, _ = make_batch(record_bytes, 1)
        self._batch_bytes = len(batch)
        self._frame = produce_frame(self._producer, topic, {0: batch}, acks)
        self._producer.socket.sendall(self._frame)
        answer = self._producer.receive()
        check_produced(answer)
        self._answer_bytes = len(answer) + 4
        self._room = memoryview(bytearray(4 * _FETCH_BYTES))
        self._have = 0
        self._consumed = 0
        self.begun = 0.0
        """When the last run at a rate began, by `time.perf_counter`."""

    def peak(self, seconds: float, in_flight: int) -> float:
        """Records per second, produced and consumed, with so many requests unanswered at any time."""
        self._skip_to_end()
        begun = time.perf_counter()
        sent = acked = consumed = pending_bytes = 0
        buffer = bytearray(_BUFFER_BYTES)
        producer = self._producer.socket.fileno()
        with select.epoll() as poll:
            poll.register(producer, select.EPOLLIN)
            poll.register(self._consumer.socket.fileno(), select.EPOLLIN)
            self._ask()
            while (now := time.perf_counter() - begun) < seconds or consumed < sent:
                if now > seconds + _DRAIN_SECONDS:
                    raise RuntimeError(f"{sent - consumed} of {sent} records were not consumed in time")
                if now < seconds and acked + in_flight > sent:
                    self._producer.socket.sendall(self._frame * (acked + in_flight - sent))
                    sent = acked + in_flight
                for fd, _ in poll.poll(0.1):
                    if fd == producer:
                        pending_bytes += self._producer.socket.recv_into(buffer)
                        done, pending_bytes = divmod(pending_bytes, self._answer_bytes)
                        acked += done
                    else:
                        consumed += self._receive()
        self._await_fetch()
        return sent / now

    def run(self, seconds: float) -> tuple[list[float], list[float]]:
        """Latencies of the answers to Produce, and from due to consumed."""
        self._skip_to_end()
        total = int(self.rate * seconds)
        begun = self.begun = time.perf_counter() + 0.01
        acks: list[float] = []
        ends: list[float] = []
        sent = pending_bytes = 0
        buffer = bytearray(_BUFFER_BYTES)
        poll = select.epoll()
        producer, consumer = self._producer.socket.fileno(), self._consumer.socket.fileno()
        poll.register(producer, select.EPOLLIN)
        poll.register(consumer, select.EPOLLIN)
        self._ask()
        while len(acks) < total or len(ends) < total:
            now = time.perf_counter()
            due = min(total, int((now - begun) * self.rate))
            if due > sent:
                self._producer.socket.sendall(self._frame * (due - sent))
                sent = due
            if now > begun + seconds + _DRAIN_SECONDS:
                raise RuntimeError(f"{total - len(ends)} of {total} records were not consumed in time")
            for fd, _ in poll.poll(0.001 if sent < total else 0.1):
                if fd == producer:
                    pending_bytes += self._producer.socket.recv_into(buffer)
                    done, pending_bytes = divmod(pending_bytes, self._answer_bytes)
                    self._note(acks, done, begun)
                else:
                    self._note(ends, self._receive(), begun)
        self._await_fetch()
        poll.close()
        return acks, ends

    def _note(self, latencies: list[float], count: int, begun: float) -> None:
        """Record n was due at the beginning + (n + 1) / rate."""
        elapsed, first = time.perf_counter() - begun, len(latencies) + 1
        for number in range(first, first + count):
            latencies.append(elapsed - number / self.rate)

    def _ask(self) -> None:
        frame = fetch_frame(self._consumer, self._topic, 0, self._consumed, _FETCH_BYTES)
        self._consumer.socket.sendall(frame)

    def _receive(self) -> int:
        """Records of a Fetch response that is complete, after which the next is asked for; else 0."""
        size = self._consumer.socket.recv_into(self._room[self._have :])
        if not size:
            raise ConnectionError("the broker closed the connection")
        self._have += size
        if self._have < 4 or self._have < (wanted := int.from_bytes(self._room[:4], "big") + 4):
            return 0
        records = fetched_bytes(self._room[4:wanted]) // self._batch_bytes
        self._have = 0
        self._consumed += records
        self._ask()
        return records

    def _skip_to_end(self) -> None:
        while True:
            frame = fetch_frame(self._consumer, self._topic, 0, self._consumed, _FETCH_BYTES, max_wait_ms=0)
            self._consumer.socket.sendall(frame)
            records = fetched_bytes(self._consumer.receive()) // self._batch_bytes
            if not records:
                return
            self._consumed += records

    def _await_fetch(self) -> None:
        """The last Fetch is answered when its wait is over; the next run starts with a clean connection."""
        if self._have:
            raise RuntimeError("records came that nobody produced")
        self._consumer.receive()

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()
