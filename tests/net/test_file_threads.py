"""File ranges on their way out: large ones, ones that are not in memory and leave through threads, and every way
they can end."""

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.net import outbox
from penstock.net.connection import Connection
from penstock.net.file_threads import FileRange, send_range
from penstock.net.server import Server
from tests.net.test_server import Client, Recorder, ShortFile, framed, read_frame, run, until

LARGE = 1_000_000
SMALL = 5_000
Connect = Callable[[], Awaitable[Client]]


class Ranges(Recorder):
    """Answers with ranges of a file, each between bytes of its own."""

    def __init__(self, path: Path, lengths: tuple[int, ...]) -> None:
        super().__init__()
        self.content = os.urandom(4_000_000)
        path.write_bytes(self.content)
        self.path = path
        self.file = ShortFile(os.open(path, os.O_RDONLY))
        self.lengths = lengths
        self.connections: list[Connection] = []

    def frame_received(self, connection: Connection, frame: memoryview) -> None:
        self.connections.append(connection)
        parts: list[Any] = [struct.pack(">i", sum(self.lengths) + len(self.lengths))]
        for length in self.lengths:
            parts += [b"|", FileRange(self.file, length % 1_000, length)]  # type: ignore[arg-type]
        connection.begin_reply(len(frame)).send(parts)

    def expected(self) -> bytes:
        return b"".join(b"|" + self.content[each % 1_000 :][:each] for each in self.lengths)


def test_large_and_small_ranges_keep_their_order(tmp_path: Path) -> None:
    ranges = Ranges(tmp_path / "segment", (SMALL, LARGE, SMALL, SMALL, LARGE))

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        clients = [await connect() for _ in range(3)]
        for _ in range(3):
            for _, writer in clients:
                writer.write(framed(b"one") + framed(b"two"))
            for reader, _ in clients:
                assert await read_frame(reader) == ranges.expected()
                assert await read_frame(reader) == ranges.expected()
        await until(lambda: all(each.queued_bytes == 0 for each in server.connections()))

    run(scenario, handler=ranges)


def test_what_is_not_in_memory_is_never_read_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges(tmp_path / "segment", (SMALL, LARGE, SMALL))
    loop_thread = threading.current_thread()

    def send(*arguments: Any) -> int:
        assert threading.current_thread() is not loop_thread
        return send_range(*arguments)

    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)
    monkeypatch.setattr(outbox, "read_cached", lambda *_: None)
    monkeypatch.setattr(outbox, "send_range", send)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(framed(b"go"))
        assert await read_frame(reader) == ranges.expected()
        assert "penstock-disk-0" in {thread.name for thread in threading.enumerate()}

    run(scenario, handler=ranges)


def test_an_answer_that_cannot_be_sent_keeps_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connection ends; those whose answers were to leave behind it get theirs, and later ones."""
    ranges = Ranges(tmp_path / "segment", (LARGE,))
    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)

    async def scenario(server: Server, recorder: Recorder, connect: Connect) -> None:
        recorder.hold = True
        clients = [await connect() for _ in range(3)]
        for _, writer in clients:
            writer.write(framed(b"go"))
        await until(lambda: len(recorder.replies) == 3)

        def fail(*_: Any) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(server.shared.file_threads, "run", fail)
        duplicate = first_socket(recorder).fileno()
        recorder.replies[0][0].send([FileRange(ranges.file, 0, LARGE)])  # type: ignore[list-item]
        for reply, body in recorder.replies[1:]:
            reply.send([framed(body)])
        assert await clients[0][0].read() == b""
        assert not is_open(duplicate), "no thread is there to close it"
        assert "can't start new thread" in caplog.text
        recorder.hold = False
        for reader, writer in clients[1:]:
            assert await asyncio.wait_for(read_frame(reader), 5) == b"go"
            writer.write(framed(b"again"))
            assert await asyncio.wait_for(read_frame(reader), 5) == b"again"

    run(scenario)


def test_a_stop_waits_for_what_comes_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges(tmp_path / "segment", (LARGE,) * 6)
    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(framed(b"go"))
        await until(lambda: len(ranges.connections) == 1)
        received = asyncio.ensure_future(read_frame(reader))
        await server.drain(15)
        await server.close()
        assert await received == ranges.expected()

    run(scenario, handler=ranges)


def first_socket(recorder: Recorder) -> socket.socket:
    sent_through = recorder.replies[0][0]._connection._outbox
    assert sent_through is not None
    assert sent_through._socket is not None
    return sent_through._socket


def test_a_large_answer_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast its client reads: after a MB or so the loop turns to whoever else has something to do."""
    ranges = Ranges(tmp_path / "segment", (LARGE,) * 18)
    turns = 0
    in_one_turn: list[tuple[int, int]] = []
    sendfile = os.sendfile

    def watched(socket_fd: int, file_fd: int, position: int, length: int) -> int:
        sent = sendfile(socket_fd, file_fd, position, length)
        in_one_turn.append((turns, sent))
        return sent

    monkeypatch.setattr(os, "sendfile", watched)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        nonlocal turns
        reader, writer = await connect()
        writer.write(framed(b"go"))
        answer = asyncio.ensure_future(read_frame(reader))
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        assert answer.result() == ranges.expected()
        most = max(sum(sent for turn, sent in in_one_turn if turn == each) for each, _ in in_one_turn)
        assert most < 2_500_000  # at the end of one turn and at the beginning of the next

    run(scenario, handler=ranges)


def test_a_client_that_reads_slowly_gets_all_of_it(tmp_path: Path) -> None:
    ranges = Ranges(tmp_path / "segment", (LARGE,) * 18)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(framed(b"go"))
        await until(lambda: bool(ranges.connections) and 0 < ranges.connections[0].queued_bytes < 18 * LARGE)
        assert await read_frame(reader) == ranges.expected()

    run(scenario, handler=ranges)


def test_a_file_that_was_cut_ends_the_connection(tmp_path: Path) -> None:
    ranges = Ranges(tmp_path / "segment", (LARGE,))

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        reader, writer = await connect()
        os.truncate(ranges.path, 500_000)
        writer.write(framed(b"go"))
        assert len(await reader.read()) <= 500_005
        await until(lambda: ranges.closed == 1)

    run(scenario, handler=ranges)


def test_a_fault_in_a_thread_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges(tmp_path / "segment", (LARGE,))

    def no_memory(*_: Any) -> int:
        raise MemoryError

    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)
    monkeypatch.setattr(outbox, "send_range", no_memory)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        reader, writer = await connect()
        writer.write(framed(b"go"))
        assert len(await reader.read()) < LARGE
        await until(lambda: not list(server.connections()))

    run(scenario, handler=ranges)


def test_a_descriptor_stays_open_while_a_thread_sends_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its number could be given to another file, which the thread would then write to."""
    ranges = Ranges(tmp_path / "segment", (LARGE,))
    begun, go_on = threading.Event(), threading.Event()
    descriptors: list[int] = []

    def send(socket_fd: int, *arguments: Any) -> int:
        descriptors.append(socket_fd)
        begun.set()
        assert go_on.wait(15)
        return send_range(socket_fd, *arguments)

    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)
    monkeypatch.setattr(outbox, "send_range", send)

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        _, writer = await connect()
        writer.write(framed(b"go"))
        await until(begun.is_set)
        ranges.connections[0].abort(None)
        os.fstat(descriptors[0])
        go_on.set()
        await until(lambda: not is_open(descriptors[0]))

    run(scenario, handler=ranges)


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_threads_end_with_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges(tmp_path / "segment", (LARGE,))
    monkeypatch.setattr(outbox, "is_cached", lambda *_: False)
    others = set(threading.enumerate())  # of brokers that other tests share

    async def scenario(server: Server, _: Recorder, connect: Connect) -> None:
        reader, writer = await connect()
        writer.write(framed(b"go"))
        await read_frame(reader)
        mine = [
            each for each in threading.enumerate() if each.name.startswith("penstock-disk") and each not in others
        ]
        assert len(mine) == 1  # as much as was under way at a time
        await server.close()
        await asyncio.to_thread(lambda: [each.join(15) for each in mine])
        assert not any(each.is_alive() for each in mine)

    run(scenario, handler=ranges)
