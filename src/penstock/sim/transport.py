"""One end of a simulated TCP connection: an asyncio transport whose wire is a list of timers.

Bytes of one direction arrive in order; nothing is lost while both ends live, it may only take long. A window of bytes
is on the way at a time; what is above it waits in the sender's buffer, so that `pause_writing` is real. Serves
`Protocol` and `BufferedProtocol`.
"""

import asyncio
import contextvars
import zlib
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.sim.process import Process
from penstock.sim.wiretap import describe_requests

if TYPE_CHECKING:
    from penstock.sim.network import Link, Network

WINDOW_BYTES = 256 * 1024
_HIGH_BYTES = 64 * 1024

Address = tuple[str, int]


class Wire:
    """One direction of one connection: what arrives later was sent later."""

    __slots__ = ("last_arrival", "link")

    def __init__(self, link: "Link") -> None:
        self.link = link
        self.last_arrival = 0.0


class Endpoint(asyncio.Transport):
    """Everything it calls on its protocol runs in the context of the process that opened or accepted it."""

    def __init__(
        self,
        network: "Network",
        process: Process,
        context: contextvars.Context,
        number: int,
        wire: Wire,
        here: Address,
        there: Address,
    ) -> None:
        super().__init__({"peername": there, "sockname": here, "socket": None})
        self.network = network
        self.process = process
        self.context = context
        self.number = number
        self.wire = wire
        self.here = here
        self.there = there
        self.is_accepted = False
        self.peer: Endpoint | None = None
        self.protocol: asyncio.BaseProtocol | None = None
        self.sent_bytes = 0
        self.received_bytes = 0  # what its protocol has taken
        self._buffer: deque[bytes] = deque()
        self._buffer_bytes = 0
        self._inbox: deque[bytes | None] = deque()  # None is the end
        self._reading = True
        self._writer_paused = False
        self._high_bytes = _HIGH_BYTES
        self._low_bytes = _HIGH_BYTES // 4
        self._ending = False  # no more writes; the end is sent behind what is buffered
        self._ended = False
        self._closing = False
        self.is_gone = False
        process.closers[self] = self.process_died

    def __repr__(self) -> str:
        return f"<#{self.number} {self.here[0]}:{self.here[1]} to {self.there[0]}:{self.there[1]}>"

    def __hash__(self) -> int:
        return self.number

    # -- asyncio's side -------------------------------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing or self.is_gone

    def is_reading(self) -> bool:
        return self._reading and not self.is_closing()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if self._inbox:
                self.network.loop.call_soon(self._empty_inbox, context=self.context)

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_bytes, self._high_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = high if high is not None else (4 * low if low is not None else _HIGH_BYTES)
        self._low_bytes = low if low is not None else self._high_bytes // 4

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing() or self._ending or self.process.is_dead or not data:
            return
        self._buffer.append(bytes(data))
        self._buffer_bytes += len(data)
        self.pump()
        if self._buffer_bytes > self._high_bytes and not self._writer_paused:
            self._writer_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ending and not self.is_gone:
            self._ending = True
            self.pump()

    def close(self) -> None:
        """What was written still goes out; nothing is read any more."""
        if self.is_closing() or self.process.is_dead:
            return
        self._closing = self._ending = True
        self.pump()

    def abort(self) -> None:
        if self.is_gone or self.process.is_dead:
            return
        self._closing = True
        self.network.send_reset(self)
        self.gone(None)

    # -- sending --------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Puts on the wire what the window allows; called again when the peer has taken some."""
        if self.is_gone or self.process.is_dead:
            return
        assert self.peer is not None
        while self._buffer and self.sent_bytes - self.peer.received_bytes < WINDOW_BYTES:
            data = self._buffer.popleft()
            rest = self.network.split(data)
            if rest:
                data = data[: len(data) - len(rest)]
                self._buffer.appendleft(rest)
            self._buffer_bytes -= len(data)
            self.sent_bytes += len(data)
            self.network.send_data(self, data)
        if self._writer_paused and self._buffer_bytes <= self._low_bytes:
            self._writer_paused = False
            self.network.loop.call_soon(self.get_protocol().resume_writing, context=self.context)
        if self._ending and not self._buffer:
            if not self._ended:
                self._ended = True
                self.network.send_end(self)
            if self._closing:
                self.gone(None)

    # -- receiving: called in the context of this end's process ------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        if self.is_closing():
            if data:
                self.received_bytes += len(data)
            return
        self._inbox.append(data)
        self._empty_inbox()

    def _empty_inbox(self) -> None:
        while self._inbox and self._reading and not self.is_closing():
            data = self._inbox.popleft()
            if data is None:
                if not self.get_protocol().eof_received():  # type: ignore[attr-defined]
                    self.close()
            else:
                self._feed(data)

    def _feed(self, data: bytes) -> None:
        trace = self.network.trace
        trace.mark(self.number, zlib.crc32(data))
        if trace.wire:
            self._tell(data)
        protocol = self.protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            view = memoryview(data)
            while view and not self.is_gone:
                if not self._reading:
                    self._inbox.appendleft(bytes(view))
                    break
                into = memoryview(protocol.get_buffer(-1))
                count = min(len(into), len(view))
                into[:count] = view[:count]
                protocol.buffer_updated(count)
                view = view[count:]
            taken = len(data) - len(view)
        else:
            protocol.data_received(data)  # type: ignore[union-attr]
            taken = len(data)
        self.received_bytes += taken
        self.network.taken(self)

    def _tell(self, data: bytes) -> None:
        assert self.peer is not None
        what = describe_requests(data) if self.is_accepted else [f"{len(data)} B of answers"]
        for each in what:
            self.network.trace.say(self.process.name, f"<- {self.peer.process.name}: {each}")

    def reset(self) -> None:
        """The peer, or the network, cut the connection."""
        if not self.is_gone:
            self.gone(ConnectionResetError(104, "Connection reset by peer"))

    # -- the end --------------------------------------------------------------------------------------------------

    def gone(self, error: Exception | None) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._inbox.clear()
        self.process.closers.pop(self, None)
        self.network.forget(self)
        if self.protocol is not None:
            self.network.loop.call_soon(self.protocol.connection_lost, error, context=self.context)

    def process_died(self) -> None:
        """The system closes what the process left open; a machine without power closes nothing."""
        self.is_gone = True
        self.network.orphan(self)
