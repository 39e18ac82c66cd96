"""Frames over real sockets: order, fragments, large frames, file ranges, and every limit."""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.net.connection import Connection, Reply
from penstock.net.file_threads import FileRange
from penstock.net.limits import NetLimits
from penstock.net.outbox import Outbox
from penstock.net.server import Server
from tests.waiting import eventually_async

LIMITS = NetLimits(max_frame_bytes=64 * 1024 * 1024)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Recorder:
    """A handler that answers each frame with itself, at once or when told to."""

    def __init__(self, hold: bool = False) -> None:
        self.hold = hold
        self.frames: list[bytes] = []
        self.replies: list[tuple[Reply, bytes]] = []
        self.opened = 0
        self.closed = 0

    def connection_opened(self, connection: Connection) -> None:
        self.opened += 1

    def connection_closed(self, connection: Connection) -> None:
        self.closed += 1

    def frame_received(self, connection: Connection, frame: memoryview) -> None:
        body = bytes(frame)
        self.frames.append(body)
        reply = connection.begin_reply(len(body))
        if self.hold:
            self.replies.append((reply, body))
        else:
            reply.send([framed(body)])


class ShortFile:
    """A DiskFile over a real descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def fileno(self) -> int:
        return self.fd

    def read_at(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)


Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def run(
    test: Callable[[Server, Any, Callable[[], Awaitable[Client]]], Awaitable[None]],
    limits: NetLimits = LIMITS,
    handler: Any = None,
) -> None:
    async def main() -> None:
        recorder = handler or Recorder()
        server = Server(limits, recorder)
        port = await server.bind("PLAINTEXT", "127.0.0.1", 0)
        await server.serve()

        async def connect() -> Client:
            return await asyncio.open_connection("127.0.0.1", port)

        try:
            async with asyncio.timeout(20):
                await test(server, recorder, connect)
        finally:
            await server.close()

    for runner in loops():
        with asyncio.Runner(loop_factory=runner) as active:
            active.run(main())
        if handler is not None:
            return


def loops() -> list[Any]:
    try:
        import uvloop
    except ImportError:
        return [None]
    return [uvloop.new_event_loop, asyncio.new_event_loop]


async def until(condition: Callable[[], bool]) -> None:
    await eventually_async(condition, 15)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def test_frames_arrive_whole_however_they_are_cut():
    bodies = [b"a", b"b" * 3, b"c" * 70_000, b"d", b"e" * 300_000, b"f" * 5]
    stream = b"".join(framed(body) for body in bodies)

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        sizes = [1, 2, 3, 1, 1, 65_536, 100_000, 7]
        position, step = 0, 0
        while position < len(stream):
            size = sizes[step % len(sizes)]
            writer.write(stream[position : position + size])
            await writer.drain()
            position, step = position + size, step + 1
        assert [await read_frame(reader) for _ in bodies] == bodies
        assert recorder.frames == bodies
        writer.close()
        await until(lambda: recorder.closed == 1)
        assert server.connection_count == 0
        assert server.shared.memory.used_bytes == 0

    run(scenario)


def test_answers_leave_in_request_order():
    recorder = Recorder(hold=True)

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        bodies = [bytes([n]) * (n + 1) for n in range(10)]
        writer.write(b"".join(framed(body) for body in bodies))
        await until(lambda: len(recorder.replies) == 10)
        for reply, body in reversed(recorder.replies):
            reply.send([framed(body)])
        assert [await read_frame(reader) for _ in bodies] == bodies

    run(scenario, handler=recorder)


def test_answers_that_become_ready_together_leave_together(monkeypatch: pytest.MonkeyPatch):
    """At the end of the loop's turn, whether or not more are owed."""
    sends: list[int] = []
    send = Outbox.send

    def counted(self: Outbox, parts: Any) -> None:
        sends.append(len(parts))
        send(self, parts)

    monkeypatch.setattr(Outbox, "send", counted)

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        recorder.hold = True
        reader, writer = await connect()
        writer.write(b"".join(framed(b"%d" % number) for number in range(6)))
        await until(lambda: len(recorder.replies) == 6)
        sends.clear()
        for reply, body in recorder.replies[:5]:
            reply.send([framed(body)])
        assert sends == []
        assert [await read_frame(reader) for _ in range(5)] == [b"%d" % number for number in range(5)]
        assert sends == [5]
        reply, body = recorder.replies[5]
        reply.send([framed(body)])
        assert sends == [5]
        assert await read_frame(reader) == b"5"
        assert sends == [5, 1]
        writer.write(framed(b"a") + framed(b"b"))
        await until(lambda: len(recorder.replies) == 8)
        recorder.replies[6][0].send([framed(b"a")])
        for connection in server.connections():
            connection.close()  # what is answered leaves all the same
        assert await read_frame(reader) == b"a"

    run(scenario)


def test_nobody_is_answered_before_everything_that_has_arrived_is_handled(monkeypatch: pytest.MonkeyPatch):
    """A client that is woken in between would take the processor from whoever handles the rest."""
    order: list[str] = []
    send = Outbox.send

    def counted(self: Outbox, parts: Any) -> None:
        order.append("answer")
        send(self, parts)

    monkeypatch.setattr(Outbox, "send", counted)

    class Echo(Recorder):
        def frame_received(self, connection: Connection, frame: memoryview) -> None:
            order.append("request")
            super().frame_received(connection, frame)

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        clients = [await connect() for _ in range(5)]
        await until(lambda: len(list(server.connections())) == 5)
        for connection in server.connections():
            connection.get_buffer(-1)[:5] = framed(b"x")
            connection.buffer_updated(5)
        assert order == ["request"] * 5
        for reader, _ in clients:
            assert await read_frame(reader) == b"x"
        assert order == ["request"] * 5 + ["answer"] * 5

    run(scenario, handler=Echo())


def test_many_large_answers_to_one_arrival_are_held_back():
    """A thousand small requests fit into one read; their answers must not all be held at once."""
    answer = framed(bytes(100_000))

    class Generous(Recorder):
        def frame_received(self, connection: Connection, frame: memoryview) -> None:
            self.frames.append(bytes(frame))
            connection.begin_reply(len(frame)).send([answer])

    async def scenario(server: Server, generous: Generous, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        await until(lambda: len(list(server.connections())) == 1)
        (connection,) = server.connections()
        connection.get_buffer(-1)[:5_000] = framed(b"x") * 1_000
        connection.buffer_updated(5_000)
        assert len(generous.frames) < 300, "32 MB for a client that has read nothing"
        for _ in range(1_000):
            assert len(await read_frame(reader)) == 100_000
        assert len(generous.frames) == 1_000
        writer.close()

    run(scenario, handler=Generous())


def test_skipped_answers_leave_no_trace():
    recorder = Recorder(hold=True)

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        writer.write(framed(b"one") + framed(b"two"))
        await until(lambda: len(recorder.replies) == 2)
        recorder.replies[0][0].skip()
        recorder.replies[1][0].send([framed(b"two")])
        assert await read_frame(reader) == b"two"

    run(scenario, handler=recorder)


@pytest.mark.parametrize("size", [-1, 0, -(2**31), 65 * 1024 * 1024, 2**31 - 1])
def test_impossible_sizes_close_the_connection(size: int):
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        writer.write(struct.pack(">i", size) + b"xx")
        assert await reader.read() == b""
        assert recorder.frames == []
        await until(lambda: server.connection_count == 0)

    run(scenario)


def test_a_claim_of_size_is_not_memory():
    """A client that announces 60 MB and sends none of it costs at most the trusted first piece."""

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        _, writer = await connect()
        writer.write(struct.pack(">i", 60 * 1024 * 1024) + b"x" * 300_000)
        await until(lambda: server.shared.memory.used_bytes > 0)
        assert server.shared.memory.used_bytes <= 4 * 1024 * 1024
        body = b"x" * 300_000 + b"y" * (60 * 1024 * 1024 - 300_000)
        writer.write(body[300_000:])
        await until(lambda: len(recorder.frames) == 1)
        assert recorder.frames[0] == body

    run(scenario)


def test_reading_stops_at_the_inflight_limit_and_goes_on():
    recorder = Recorder(hold=True)

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        bodies = [b"%d" % n for n in range(100)]
        writer.write(b"".join(framed(body) for body in bodies))
        await until(lambda: len(recorder.frames) == 4)
        await asyncio.sleep(0)
        assert len(recorder.frames) == 4, "no fifth request while four are unanswered"
        answered = 0
        while answered < 100:
            await until(lambda: len(recorder.replies) > answered)  # noqa: B023
            reply, body = recorder.replies[answered]
            reply.send([framed(body)])
            answered += 1
            assert len(recorder.frames) - answered <= 4
        assert [await read_frame(reader) for _ in bodies] == bodies

    run(scenario, LIMITS._replace(max_inflight_requests=4), recorder)


def test_memory_budget_makes_clients_take_turns():
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        clients = [await connect() for _ in range(6)]
        body = os.urandom(900_000)

        async def send(client: Client) -> None:
            client[1].write(framed(body))
            assert await read_frame(client[0]) == body

        await asyncio.gather(*(send(client) for client in clients))
        assert server.shared.memory.used_bytes == 0

    run(scenario, LIMITS._replace(max_queued_bytes=2 * 1024 * 1024))


def test_connection_limits():
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        kept = [await connect() for _ in range(2)]
        await until(lambda: server.connection_count == 2)
        reader, _ = await connect()
        assert await reader.read() == b""
        assert server.refused_connections == 1
        kept[0][1].write(framed(b"still here"))
        assert await read_frame(kept[0][0]) == b"still here"
        kept[1][1].close()
        await until(lambda: server.connection_count == 1)
        reader, writer = await connect()
        writer.write(framed(b"room again"))
        assert await read_frame(reader) == b"room again"

    run(scenario, LIMITS._replace(max_connections_per_address=2))


def test_a_client_that_stops_in_mid_frame_is_cut_off():
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        writer.write(struct.pack(">i", 100) + b"half")
        assert await reader.read() == b""

    run(scenario, LIMITS._replace(stall_timeout_s=0.2))


def test_a_client_that_takes_nothing_is_cut_off():
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        _, writer = await connect()
        for _ in range(40):
            writer.write(framed(b"z" * 1_000_000))
        await until(lambda: server.connection_count == 0 and recorder.closed == 1)

    run(scenario, LIMITS._replace(stall_timeout_s=0.3, max_outbox_bytes=1_000_000))


def test_an_idle_client_is_let_go_but_a_waiting_one_is_kept():
    recorder = Recorder(hold=True)

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        idle_reader, _w = await connect()
        waiting_reader, waiting_writer = await connect()
        waiting_writer.write(framed(b"long poll"))
        assert await idle_reader.read() == b""
        recorder.replies[0][0].send([framed(b"at last")])
        assert await read_frame(waiting_reader) == b"at last"

    run(scenario, LIMITS._replace(idle_timeout_s=0.2), recorder)


def test_requests_that_wait_are_dropped_with_their_connection():
    """Once each, and only those."""
    dropped: list[bytes] = []

    class Parked:
        def __init__(self, body: bytes) -> None:
            self.body = body

        def drop(self) -> None:
            dropped.append(self.body)

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        recorder.hold = True
        dropped.clear()
        _, leaves = await connect()
        leaves.write(framed(b"a") + framed(b"b") + framed(b"c"))
        await until(lambda: len(recorder.replies) == 3)
        _, stays = await connect()
        stays.write(framed(b"d"))
        await until(lambda: len(recorder.replies) == 4)
        for reply, body in recorder.replies:
            if body != b"b":
                reply.parked = Parked(body)
        leaves.close()
        await until(lambda: recorder.closed == 1)
        assert dropped == [b"a", b"c"]
        stays.close()

    run(scenario)


@pytest.mark.parametrize("descriptor", [True, False])
def test_file_ranges_go_out_between_bytes(tmp_path: Any, descriptor: bool):
    content = os.urandom(5_000_000)
    path = tmp_path / "segment"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDONLY)
    file = ShortFile(fd)
    if not descriptor:
        file.fileno = lambda: -1  # type: ignore[method-assign]

    class Files(Recorder):
        def frame_received(self, connection: Connection, frame: memoryview) -> None:
            reply = connection.begin_reply(len(frame))
            head = struct.pack(">i", 3 + 4_000_000 + 3)
            reply.send([head + b"abc", FileRange(file, 17, 4_000_000), b"xyz"])  # type: ignore[arg-type]

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        for _ in range(3):
            writer.write(framed(b"go"))
        for _ in range(3):
            assert await read_frame(reader) == b"abc" + content[17 : 17 + 4_000_000] + b"xyz"

    try:
        run(scenario, handler=Files())
    finally:
        os.close(fd)


def test_a_stop_waits_for_answers_that_have_not_left():
    """Also for those that became ready in this turn of the loop."""
    answer = framed(b"z" * 30_000_000)

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        recorder.hold = True
        reader, writer = await connect()
        writer.write(framed(b"x"))
        await until(lambda: len(recorder.replies) == 1)
        received = asyncio.ensure_future(reader.read())
        recorder.replies[0][0].send([answer])
        await server.drain(15)
        await server.close()
        assert await received == answer

    run(scenario)


def test_no_request_is_handled_once_its_connection_closes():
    """Its answer would not leave any more: what was appended, say, would be sent and appended again."""

    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        recorder.hold = True
        reader, writer = await connect()
        writer.write(b"".join(framed(b"%d" % number) for number in range(10)))
        await until(lambda: len(recorder.replies) == 4)
        for reply, body in recorder.replies:
            reply.send([framed(body)])
        for connection in server.connections():
            connection.close()
        assert [await read_frame(reader) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        assert await reader.read() == b""
        assert len(recorder.frames) == 4

    run(scenario, LIMITS._replace(max_inflight_requests=4))


def test_one_that_closes_makes_no_room_for_requests_of_others_that_do():
    async def scenario(server: Server, recorder: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        recorder.hold = True
        clients = [await connect() for _ in range(3)]
        for number, (_, writer) in enumerate(clients):
            writer.write(framed(b"x" * (500 if number == 0 else 1)) + framed(b"held back"))
            await until(lambda: len(recorder.frames) == number + 1)  # noqa: B023
        await until(lambda: len(server.shared.memory.waiting) == 3)
        await server.close()
        assert b"held back" not in recorder.frames

    run(scenario, LIMITS._replace(max_queued_bytes=400))


def test_listeners_are_served_and_closed_one_by_one() -> None:
    async def scenario() -> None:
        server = Server(NetLimits(max_connections=1), Recorder(), uncounted=frozenset({"B"}))
        ports = {name: await server.bind(name, "127.0.0.1", 0) for name in ("A", "B")}
        await server.serve(["B"])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", ports["A"])
        # More than the limit, which is for others.
        kept = [await asyncio.open_connection("127.0.0.1", ports["B"]) for _ in range(3)]
        await eventually_async(lambda: server.connection_count == 3)
        await server.close(["B"])
        await server.serve(["A"])
        kept.append(await asyncio.open_connection("127.0.0.1", ports["A"]))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", ports["B"])
        await server.close()
        for _, writer in kept:
            writer.close()

    asyncio.run(scenario())
