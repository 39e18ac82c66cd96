"""Load of prepared Fetch requests, one connection per partition, from one thread.

All batches of a topic that is read here are alike, so the next offset follows from the bytes that came (a broker may
cut the last batch short), and nothing is parsed but the response's own frame.
"""

import select
import struct
import time
from collections.abc import Sequence

from penstock.bench.loads.connection import RawClient, fetch_frame, fetched_bytes

MAX_BYTES = 1 << 20
"""As consumers ask by default: `max.partition.fetch.bytes`."""
_MARK = 0x0123456789ABCDEF
_OFFSET = struct.Struct(">q")
_ROOM_BYTES = 16 << 20
_ANSWER_SECONDS = 60.0


class Reader:
    """One partition from its beginning to its end, and again if wanted; or on from an offset."""

    def __init__(
        self,
        port: int,
        topic: str,
        partition: int,
        batch_bytes: int,
        batch_records: int,
        end: int,
        first_offset: int = 0,
    ) -> None:
        client = RawClient(port)
        self.socket = client.socket
        self.socket.settimeout(_ANSWER_SECONDS)
        self._frame = bytearray(fetch_frame(client, topic, partition, _MARK, MAX_BYTES))
        self._offset_at = self._frame.index(_OFFSET.pack(_MARK))
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._end_offset = end
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._have = 0
        self._offset = first_offset
        self._sent_at = 0.0
        self.passes = 0

    def ask(self) -> None:
        _OFFSET.pack_into(self._frame, self._offset_at, self._offset)
        self._sent_at = time.perf_counter()
        self.socket.sendall(self._frame)

    def receive(self) -> tuple[int, float] | None:
        """Records and latency of an answer that is complete; None while it is not."""
        size = self.socket.recv_into(self._room[self._have :])
        if not size:
            raise ConnectionError("the broker closed the connection")
        self._have += size
        if self._have < 4 or self._have < (wanted := int.from_bytes(self._room[:4], "big") + 4):
            return None
        self._have = 0
        records = fetched_bytes(self._room[4:wanted]) // self._batch_bytes * self._batch_records
        self._offset += records
        if self._offset >= self._end_offset:
            self._offset = 0
            self.passes += 1
        return records, time.perf_counter() - self._sent_at


def read(readers: Sequence[Reader], *, seconds: float = 0.0) -> tuple[int, list[float]]:
    """For so long, or every partition once. Returns how many records, and the latency of each request."""
    records = 0
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    poll = select.epoll()
    by_fd = {reader.socket.fileno(): reader for reader in readers}
    for fd, reader in by_fd.items():
        poll.register(fd, select.EPOLLIN)
        reader.ask()
    reading = len(readers)
    while reading:
        events = poll.poll(_ANSWER_SECONDS)
        if not events:
            raise RuntimeError(f"no answer within {_ANSWER_SECONDS:.0f} s")
        for fd, _ in events:
            reader = by_fd[fd]
            answer = reader.receive()
            if answer is None:
                continue
            records += answer[0]
            latencies.append(answer[1])
            if time.perf_counter() < end if seconds else not reader.passes:
                reader.ask()
            else:
                reading -= 1
    poll.close()
    return records, latencies
