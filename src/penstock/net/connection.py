"""One client connection: bytes to frames, answers back in the order of the requests.

Hard rules:
- A frame handed to the handler is only valid during that call. Small frames are slices of one receive buffer that
  all connections of a loop share; large ones live in reused memory. What is needed longer must be decoded or copied.
- Answers leave in request order, whatever order they become ready in: the protocol has no other way to match them.
- Nothing a client does makes the broker hold more than `NetLimits` allows: reading stops instead.
"""

import asyncio
import itertools
import logging
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, cast

from penstock.net.complaints import Complaints
from penstock.net.file_threads import FileThreads
from penstock.net.limits import NetLimits
from penstock.net.memory import FrameMemory
from penstock.net.outbox import Outbox, Part

log = logging.getLogger("penstock.net")

_SIZE = struct.Struct(">i")
_SCRATCH_BYTES = 64 * 1024  # what of a large frame arrives here is copied once more, so not larger
# With more parts of answers than this, what has arrived is not handled further before they are with the outbox.
_MOST_ANSWER_PARTS = 64
# A frame that claims to be larger than this gets its memory as its bytes arrive, not on its word alone.
_TRUSTED_BYTES = 4 * 1024 * 1024


class FrameHandler(Protocol):
    """The router's side of a connection."""

    def connection_opened(self, connection: "Connection") -> None: ...

    def frame_received(self, connection: "Connection", frame: memoryview) -> None: ...

    def connection_closed(self, connection: "Connection") -> None: ...


class SharedState:
    """What all connections of one event loop share."""

    def __init__(self, limits: NetLimits) -> None:
        self.limits = limits
        self.memory = FrameMemory(limits.max_queued_bytes)
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.complaints = Complaints(log)
        self.file_threads = FileThreads(limits.file_threads)
        self.next_connection_number = itertools.count(1).__next__
        self._with_answers: list[Connection] = []

    def send_soon(self, connection: "Connection") -> None:
        """Its answers leave when everything that has arrived is handled, at the end of this turn of the loop.

        So do everybody's, one behind the other: sent at once, each would wake a client that sleeps, which is most of
        what a send costs. Measured with one request in flight on each of 100 connections from one process: 23,800
        requests per second before, 33,500 so, for 42 and 30 µs of CPU; one connection alone pays 3 µs."""
        waiting = self._with_answers
        waiting.append(connection)
        if len(waiting) == 1:
            asyncio.get_running_loop().call_soon(self.send_all)

    def send_all(self) -> None:
        """The end of a turn."""
        waiting, self._with_answers = self._with_answers, []
        for connection in waiting:
            try:
                connection._send_answers()
            except Exception:  # no memory, no thread: the end of this one, the others are still to be sent to
                log.exception(
                    "closing connection from %s:%s: its answers cannot be sent",
                    connection.peer_host,
                    connection.peer_port,
                )
                connection.abort(None)


class ParkedRequest(Protocol):
    def drop(self) -> None:
        """Its connection is gone: nobody takes the answer."""


class Reply:
    """The place of one answer in its connection's order. Exactly one of `send` and `skip` is called, once."""

    __slots__ = ("_connection", "_parts", "parked", "size")

    def __init__(self, connection: "Connection", size: int) -> None:
        self._connection = connection
        self._parts: Sequence[Part] | None = None
        self.parked: ParkedRequest | None = None  # who is told if the connection ends before the answer
        self.size = size

    def send(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._connection._reply_ready(self)

    def skip(self) -> None:
        """For requests that want no answer (produce with acks=0)."""
        self.send(())


class Connection(asyncio.BufferedProtocol):
    """Speaks length-prefixed frames. `tag` belongs to the handler."""

    def __init__(
        self, shared: SharedState, handler: FrameHandler, listener_name: str, own_port: int | None = None
    ) -> None:
        """`own_port`: where this process is found again, for a connection that came by an address it shares."""
        self.listener_name = listener_name
        self._own_port = own_port
        self.peer_host = "?"
        self.peer_port = 0
        self.local_address: tuple[str, int] = ("", 0)
        self.tag: Any = None
        self.closed = False
        self.peer_left = False
        """It is closed, and not by us."""
        self._ended = False  # closed or about to be: no frame is handled any more
        self.number = shared.next_connection_number()  # in order of acceptance, from 1
        self.reads = 0  # grows with every arrival; the sweep reads it instead of a clock per read
        self.inflight_bytes = 0
        self._shared = shared
        self._handler = handler
        self._handle_frame = handler.frame_received
        self._pending: deque[Reply] = deque()
        self._head = b""
        self._partial: bytearray | None = None
        self._filled = 0
        self._frame_bytes = 0  # how far the partial buffer is to be filled
        self._announced = 0  # how long the frame will be in the end
        self._backlog = b""
        self._reading = True
        self._handling = False
        self._answers: list[Part] = []  # ready, in order, to leave at the end of this turn of the loop
        self._will_send = False
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None

    # -- transport side -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is one by behaviour, not by inheritance
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("?", 0)
        here = transport.get_extra_info("sockname") or ("", 0)
        self.peer_host, self.peer_port = str(peer[0]), int(peer[1])
        self.local_address = (str(here[0]), int(here[1]) if self._own_port is None else self._own_port)
        self._size_buffers(transport)
        self._outbox = Outbox(
            asyncio.get_running_loop(), transport, self._on_drained, self._on_broken, self._shared.file_threads
        )
        self._handler.connection_opened(self)

    def _size_buffers(self, transport: asyncio.Transport) -> None:
        limits, connection = self._shared.limits, transport.get_extra_info("socket")
        for option, size in (
            (socket.SO_SNDBUF, limits.send_buffer_bytes),
            (socket.SO_RCVBUF, limits.receive_buffer_bytes),
        ):
            if size >= 0 and connection is not None:
                connection.setsockopt(socket.SOL_SOCKET, option, size)

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.peer_left = not self._ended
        self.closed = self._ended = True
        if self._outbox is not None:
            self._outbox.close()
        if self._partial is not None:
            self._shared.memory.give_back(self._partial)
            self._partial = None
        for reply in self._pending:
            if reply.parked is not None:
                reply.parked.drop()
        self._pending.clear()
        self._shared.memory.release(self.inflight_bytes)
        self.inflight_bytes = 0
        self._backlog = b""
        self._handler.connection_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._partial is not None:
            return memoryview(self._partial)[self._filled : self._frame_bytes]
        scratch = self._shared.scratch
        held = len(self._head)
        if held:
            scratch[:held] = self._head
            return scratch[held:]
        return scratch

    def buffer_updated(self, count: int) -> None:
        self.reads += 1
        self._handling = True
        if self._partial is not None:
            self._filled += count
            self._continue_partial(self._partial)
        else:
            end = len(self._head) + count
            self._head = b""
            self._consume(self._shared.scratch[:end])
        self._handling = False

    def eof_received(self) -> bool:
        return False

    def resume_writing(self) -> None:
        if self._outbox is not None:
            self._outbox.transport_drained()

    # -- frames in ----------------------------------------------------------------------------------------------

    def _consume(self, data: memoryview) -> None:
        position, end = 0, len(data)
        outbox = self._outbox
        while position < end and not self._ended:
            # Whoever is owed nothing need not wait: the rule, and a call less for every request.
            if (self._pending or outbox is None or outbox.queued_bytes) and self._must_wait():
                self._backlog = bytes(data[position:])
                return
            if end - position < 4:
                self._head = bytes(data[position:])
                return
            size: int = _SIZE.unpack_from(data, position)[0]
            if not 0 < size <= self._shared.limits.max_frame_bytes:
                self.abort(
                    f"announced a request of {size} bytes (allowed: 1 to {self._shared.limits.max_frame_bytes})"
                )
                return
            start = position + 4
            position = start + size
            if position > end:
                self._begin_partial(size, data[start:])
                return
            self._handle_frame(self, data[start:position])
            if len(self._answers) > _MOST_ANSWER_PARTS:
                self._send_answers()  # the outbox counts what it holds: who asks for more than it reads has to wait

    def _begin_partial(self, size: int, beginning: memoryview) -> None:
        trusted = min(size, _TRUSTED_BYTES)
        buffer = self._shared.memory.take(trusted)
        if buffer is None:
            # Out of budget: put the frame back, stop reading, and try again when memory is returned.
            self._backlog = _SIZE.pack(size) + bytes(beginning)
            self._pause_reading()
            self._shared.memory.wait(self._retry_backlog, trusted)
            return
        self._partial = buffer
        self._filled = len(beginning)
        self._frame_bytes = min(size, len(buffer))
        self._announced = size
        memoryview(buffer)[: self._filled] = beginning  # one copy; assigning to a bytearray slice makes two

    def _continue_partial(self, buffer: bytearray) -> None:
        if self._ended:
            self._filled = 0  # what still comes, as over TLS, is not kept
            return
        if self._filled < self._frame_bytes:
            return
        if self._frame_bytes < self._announced:
            self._grow_partial(buffer)
            return
        # The handler runs before the buffer is given back: the frame is a view of it.
        self._partial = None
        self._handle_frame(self, memoryview(buffer)[: self._frame_bytes])
        self._shared.memory.give_back(buffer)
        if self._must_wait():
            self._pause_reading()

    def _grow_partial(self, buffer: bytearray) -> None:
        wanted = min(self._announced, self._frame_bytes * 4)
        larger = self._shared.memory.take(wanted)
        if larger is None:
            self.abort("its request does not fit into the memory for requests (queued.max.request.bytes)")
            return
        memoryview(larger)[: self._filled] = memoryview(buffer)[: self._filled]
        self._shared.memory.give_back(buffer)
        self._partial = larger
        self._frame_bytes = min(self._announced, len(larger))

    # -- limits -------------------------------------------------------------------------------------------------

    def _must_wait(self) -> bool:
        limits = self._shared.limits
        full = (
            len(self._pending) >= limits.max_inflight_requests
            or self.inflight_bytes >= limits.max_inflight_bytes
            or (self._outbox is not None and self._outbox.queued_bytes >= limits.max_outbox_bytes)
        )
        if full:
            self._pause_reading()
        elif self._pending and self._shared.memory.is_used_up:
            # Whoever is owed nothing may send one request: each client gets on, however many there are.
            self._pause_reading()
            self._shared.memory.wait(self._retry_backlog)
            return True
        return full

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self.closed:
            self._reading = False
            self._transport.pause_reading()

    def _retry_backlog(self) -> None:
        """Takes up reading where a limit stopped it: first what had already arrived."""
        if self._ended or self._handling:
            return
        backlog, self._backlog = self._backlog, b""
        if backlog:
            self._handling = True
            self._consume(memoryview(bytearray(backlog)))
            self._handling = False
        if not self._backlog and not self._reading and self._transport is not None and not self._ended:
            self._reading = True
            self._transport.resume_reading()

    # -- answers out --------------------------------------------------------------------------------------------

    def begin_reply(self, size: int) -> Reply:
        """Reserves the next place in the order of answers for a request of `size` bytes."""
        reply = Reply(self, size)
        self._pending.append(reply)
        self.inflight_bytes += size
        self._shared.memory.used_bytes += size
        return reply

    def _reply_ready(self, reply: Reply) -> None:
        pending = self._pending
        if self.closed or pending[0] is not reply:
            return
        parts = self._answers
        answered = 0
        done: Reply | None = reply
        while done is not None and done._parts is not None:
            pending.popleft()
            answered += done.size
            parts += done._parts
            done = pending[0] if pending else None
        self.inflight_bytes -= answered
        memory = self._shared.memory
        if memory.waiting:
            memory.release(answered)
        else:  # the rule; a call less for every request
            memory.used_bytes -= answered
        if not self._will_send:
            self._will_send = True
            self._shared.send_soon(self)

    def _send_answers(self) -> None:
        self._will_send = False
        if self.closed:
            return
        parts = self._answers
        if parts and self._outbox is not None:
            self._answers = []
            self._outbox.send(parts)
        if not self._reading and not self._must_wait():
            self._retry_backlog()

    def _on_drained(self) -> None:
        if not self._reading and not self._handling and not self._must_wait():
            self._retry_backlog()

    def _on_broken(self, error: OSError) -> None:
        if not self.closed:
            self._cut_off()

    # -- the end ------------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> bool:
        return self._partial is not None or bool(self._head)

    @property
    def queued_bytes(self) -> int:
        """What waits for its client to take it."""
        return self._outbox.queued_bytes if self._outbox is not None else 0

    @property
    def sent_bytes(self) -> int:
        return self._outbox.sent_bytes if self._outbox is not None else 0

    @property
    def awaiting_replies(self) -> int:
        """Requests without an answer; one more where answers are ready and wait for the end of the loop's turn."""
        return len(self._pending) + self._will_send

    def abort(self, reason: str | None) -> None:
        """Cuts the connection off. A reason is logged; None is for a peer that left by itself."""
        if self.closed:
            return
        if reason is not None:
            self._shared.complaints.warn(
                "closing connection from %s:%s: client %s", self.peer_host, self.peer_port, reason
            )
        self.end_requests()
        self._cut_off()

    def _cut_off(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        # Now, not when the transport gets to it: no frame may be handled after this.
        self.connection_lost(None)

    def end_requests(self) -> None:
        """Handles no further frames, whether they have arrived already or not."""
        self._ended = True

    def close(self) -> None:
        """What is answered leaves. What is not handled by now never is: nobody would learn its answer."""
        if self._transport is not None and not self.closed:
            self.end_requests()
            self._shared.send_all()
            self._transport.close()
