"""Load of prepared Produce frames over many connections, from one thread.

Each connection keeps `window` requests in flight and sends the next when an answer comes. Answers to a lane's frames
have all the same size, so they are counted, not decoded; what really arrived is checked by the end offsets.
"""

import select
import socket
import time
from collections import deque
from collections.abc import Sequence

from penstock.bench.loads.connection import RawClient, check_produced, produce_frame

_BUFFER_BYTES = 1 << 18
_ANSWER_SECONDS = 60.0
_NO_LIMIT = 1 << 60


class Lane:
    """A connection and the frames it sends in turn."""

    __slots__ = ("_next", "_pending_bytes", "_repeated", "answer_bytes", "frames", "left", "sent_at", "socket")

    def __init__(self, connection: socket.socket, frames: Sequence[bytes], window: int, answer_bytes: int) -> None:
        self.socket = connection
        self.frames = frames
        self.answer_bytes = answer_bytes
        self.left = _NO_LIMIT
        self.sent_at: deque[float] = deque()
        self._pending_bytes = 0
        self._next = 0
        self._repeated = memoryview(frames[0] * window) if len(frames) == 1 else None

    def send(self, count: int) -> None:
        now = time.perf_counter()
        for _ in range(count):
            self.sent_at.append(now)
        if self._repeated is not None:
            self.socket.sendall(self._repeated[: count * len(self.frames[0])])
            return
        for _ in range(count):
            self.socket.sendall(self.frames[self._next])
            self._next = (self._next + 1) % len(self.frames)

    def receive(self, buffer: bytearray) -> int:
        """How many answers have come to their end."""
        size = self.socket.recv_into(buffer)
        if not size:
            raise ConnectionError("the broker closed the connection")
        done, self._pending_bytes = divmod(self._pending_bytes + size, self.answer_bytes)
        return done


def open_lanes(
    leaders: dict[int, int], topic: str, batch: bytes, *, acks: int, connections: int, window: int
) -> tuple[list[Lane], int]:
    """Spreads the partitions over the connections; sends one request on each. Returns the lanes and that count."""
    lanes = []
    for number in range(connections):
        mine = [p for p in leaders if p % connections == number] or [number % len(leaders)]
        ports = {leaders[partition] for partition in mine}
        if len(ports) != 1:
            raise ValueError("partitions of one connection must have one leader")
        client = RawClient(ports.pop())
        frames = [produce_frame(client, topic, {partition: batch}, acks) for partition in mine]
        client.socket.sendall(frames[0])
        answer = client.receive()
        check_produced(answer)
        client.socket.settimeout(_ANSWER_SECONDS)
        lanes.append(Lane(client.socket, frames, window, len(answer) + 4))
    return lanes, connections


def pump(
    lanes: Sequence[Lane], window: int, *, seconds: float = 0.0, requests: int = 0, rounds: int = 0
) -> tuple[int, list[float]]:
    """For so long, or so many requests, or every frame of every lane so often; until the last answer.

    Returns how many, and the latency of each.
    """
    buffer = bytearray(_BUFFER_BYTES)
    latencies: list[float] = []
    poll = select.epoll()
    by_fd = {lane.socket.fileno(): lane for lane in lanes}
    end = time.perf_counter() + seconds if seconds else float("inf")
    left = requests or _NO_LIMIT
    for lane in lanes:
        lane.left = rounds * len(lane.frames) or _NO_LIMIT
        count = min(window, left, lane.left)
        if count:
            poll.register(lane.socket.fileno(), select.EPOLLIN)
            lane.send(count)
            left -= count
            lane.left -= count
    outstanding = (requests or _NO_LIMIT) - left
    while outstanding:
        events = poll.poll(_ANSWER_SECONDS)
        if not events:
            raise RuntimeError(f"no answer within {_ANSWER_SECONDS:.0f} s")
        for fd, _ in events:
            lane = by_fd[fd]
            done = lane.receive(buffer)
            now = time.perf_counter()
            for _ in range(done):
                latencies.append(now - lane.sent_at.popleft())
            again = min(done, left, lane.left) if now < end else 0
            if again:
                lane.send(again)
                left -= again
                lane.left -= again
            outstanding += again - done
    poll.close()
    return len(latencies), latencies


def close_lanes(lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        lane.socket.close()
