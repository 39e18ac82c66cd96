"""What leaves: over a socket, and over a transport without one of its own, as with TLS and the simulated network."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log.disk import OsFile
from penstock.net import outbox as outbox_module
from penstock.net.file_threads import FileRange, FileThreads
from penstock.net.outbox import Outbox, Part
from penstock.net.page_cache import read_cached
from penstock.sim.disk import CrashingDisk


class PlainTransport:
    """Takes everything."""

    def __init__(self) -> None:
        self.sent = b""

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.sent += bytes(data)


def make(broken: list[OSError]) -> tuple[Outbox, PlainTransport]:
    transport = PlainTransport()
    outbox = Outbox(cast(Any, None), cast(asyncio.Transport, transport), lambda: None, broken.append, FileThreads(1))
    return outbox, transport


def test_bytes_and_file_ranges_leave_in_order() -> None:
    file = CrashingDisk().open("/f", create=True)
    file.write_at(0, (b"0123456789",))
    broken: list[OSError] = []
    outbox, transport = make(broken)
    outbox.send([b"<", FileRange(file, 2, 5), b">"])
    assert transport.sent == b"<23456>"
    assert not broken


def test_a_file_that_was_cut_breaks_the_connection() -> None:
    file = CrashingDisk().open("/f", create=True)
    file.write_at(0, (b"0123456789",))
    file.truncate(2)
    broken: list[OSError] = []
    outbox, _ = make(broken)
    outbox.send([b"<", FileRange(file, 2, 5), b">"])
    assert len(broken) == 1


CONTENT = os.urandom(1_000_000)
PIECES = st.lists(
    st.one_of(
        st.integers(1, 3_000),
        st.tuples(st.integers(0, 500_000), st.one_of(st.integers(1, 70_000), st.integers(250_000, 500_000))),
    ),
    min_size=1,
    max_size=80,
)


class SocketTransport:
    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def get_extra_info(self, name: str) -> socket.socket | None:
        return self._end if name == "socket" else None


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("outbox") / "segment"
    path.write_bytes(CONTENT)
    return path


async def _through_a_socket(path: Path, messages: list[list[Any]], take: int) -> None:
    """Messages are bytes by their number and ranges by place and length; the other end takes so much at a time."""
    loop = asyncio.get_running_loop()
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)
    for end in (here, there):
        end.setblocking(False)
    file, threads, broken = OsFile(os.open(path, os.O_RDONLY)), FileThreads(1), list[OSError]()
    transport = cast(asyncio.Transport, SocketTransport(here))
    outbox = Outbox(loop, transport, lambda: None, broken.append, threads)
    expected = b""
    for message in messages:
        parts: list[Part] = []
        for piece in message:
            if isinstance(piece, int):
                parts.append(CONTENT[-piece:])
                expected += CONTENT[-piece:]
            else:
                parts.append(FileRange(file, *piece))
                expected += CONTENT[piece[0] : sum(piece)]
        outbox.send(parts)
    got = b""
    while len(got) < len(expected):
        got += await asyncio.wait_for(loop.sock_recv(there, take), 30)
    assert got == expected
    assert (outbox.queued_bytes, outbox.sent_bytes, broken) == (0, len(expected), [])
    outbox.close()
    threads.close()
    for closing in (here, there, file):
        closing.close()


@settings(max_examples=40, deadline=None)
@given(messages=st.lists(PIECES, min_size=1, max_size=4), take=st.integers(1_000, 100_000))
def test_whatever_the_parts_the_other_end_gets_their_bytes(
    segment: Path, messages: list[list[Any]], take: int
) -> None:
    asyncio.run(_through_a_socket(segment, messages, take))


def test_small_ranges_that_are_not_in_memory_leave_all_the_same(
    segment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "read_cached", lambda *_: None)
    asyncio.run(_through_a_socket(segment, [[10, (5, 1_000), 20], [(0, 30_000)]], 5_000))


def test_no_more_is_copied_than_a_socket_may_take(segment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not take is copied again when it is ready for more."""
    copied = 0

    def counted(file: Any, position: int, length: int) -> bytearray | None:
        nonlocal copied
        copied += length
        return read_cached(file, position, length)

    monkeypatch.setattr(outbox_module, "read_cached", counted)
    asyncio.run(_through_a_socket(segment, [[10, (0, 30_000)] * 100], 100_000))
    assert copied < 10 * 3_000_000, "of which the socket has room for 40,000 bytes at a time"
