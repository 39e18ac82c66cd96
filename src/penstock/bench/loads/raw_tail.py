"""Producers that write and consumers that read what was just written, over plain sockets, from one thread.

One producer and one consumer for each partition. A consumer has one Fetch in flight at any time, which waits at the
broker when there is nothing to read; a latency is that of a batch, from sent (at a rate: due) to consumed.
"""

import select
import time
from collections import deque

from penstock.bench.loads.raw_fetch import Reader
from penstock.bench.loads.raw_produce import Lane, close_lanes, open_lanes

_BUFFER_BYTES = 1 << 18
_ANSWER_SECONDS = 60.0
_NEVER = 1 << 62


class TailRun:
    """May run several times; Fetches that wait at the end of one run are those the next begins with."""

    def __init__(
        self, leaders: dict[int, int], topic: str, batch: bytes, per_batch: int, *, acks: int, window: int
    ) -> None:
        self._window = window
        self._per_batch = per_batch
        self._lanes, self.sent = open_lanes(leaders, topic, batch, acks=acks, connections=len(leaders), window=window)
        self._readers = [
            Reader(leaders[p], topic, p, len(batch), per_batch, _NEVER, first_offset=per_batch)
            for p in range(len(leaders))
        ]
        self._sent_at: list[deque[float]] = [deque() for _ in leaders]
        self._asking = False
        self._buffer = bytearray(_BUFFER_BYTES)

    def run(self, seconds: float, requests: int, rate: float = 0.0) -> list[float]:
        """So many batches per second, or as many as the broker takes, until the last is consumed: so long, and not
        more than so many. Returns the latency of each."""
        latencies: list[float] = []
        poll = select.epoll()
        lanes = {lane.socket.fileno(): number for number, lane in enumerate(self._lanes)}
        readers = {reader.socket.fileno(): number for number, reader in enumerate(self._readers)}
        for fd in (*lanes, *readers):
            poll.register(fd, select.EPOLLIN)
        if not self._asking:
            self._asking = True
            for reader in self._readers:
                reader.ask()
        begun = time.perf_counter()
        wanted = min(requests, int(seconds * rate)) if rate else requests
        sent = answered = 0
        if not rate:
            for number in range(len(self._lanes)):
                sent += self._send(number, min(self._window, wanted - sent), begun)
        heard_at = begun
        while answered < sent or len(latencies) < sent or (rate and sent < wanted):
            now = time.perf_counter()
            if rate:
                for place in range(sent, min(wanted, int((now - begun) * rate))):
                    sent += self._send(place % len(self._lanes), 1, begun + (place + 1) / rate)
            if now - heard_at > _ANSWER_SECONDS:
                raise RuntimeError(f"{sent - len(latencies)} of {sent} batches were not consumed in time")
            for fd, _ in poll.poll(0.001 if rate and sent < wanted else 1.0):
                if fd in lanes:
                    number = lanes[fd]
                    done = self._acknowledged(self._lanes[number])
                    answered += done
                    heard_at = now = time.perf_counter()
                    if not rate and now - begun < seconds:
                        sent += self._send(number, min(done, wanted - sent), now)
                else:
                    number = readers[fd]
                    got = self._consumed(number)
                    if got:
                        heard_at = now = time.perf_counter()
                        sent_at = self._sent_at[number]
                        latencies += [now - sent_at.popleft() for _ in range(got)]
        poll.close()
        self.sent += sent
        return latencies

    def _send(self, number: int, count: int, due: float) -> int:
        if count:
            self._sent_at[number].extend([due] * count)
            self._lanes[number].send(count)
        return count

    def _acknowledged(self, lane: Lane) -> int:
        done = lane.receive(self._buffer)
        for _ in range(done):
            lane.sent_at.popleft()
        return done

    def _consumed(self, number: int) -> int:
        """Batches of an answer that is complete, after which its consumer asks for what comes next."""
        reader = self._readers[number]
        answer = reader.receive()
        if answer is None:
            return 0
        reader.ask()
        return answer[0] // self._per_batch

    def close(self) -> None:
        close_lanes(self._lanes)
        for reader in self._readers:
            reader.socket.close()
