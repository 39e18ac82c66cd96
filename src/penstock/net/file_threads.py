"""Threads that take file data out of the event loop's hands, so that it neither moves bytes nor waits for the disk.

A sendfile of 1 MB takes the kernel some 400 µs even when the data is in memory, and a disk's time when it is not; it
holds no lock of Python's meanwhile, so other threads can do it while the loop serves the next requests. What is in
memory and what is not go through threads of their own: a slow disk holds up nobody who reads what is new.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from penstock.model.lanes import Lane
from penstock.model.ports import Buffer, DiskFile

MSG_MORE = getattr(socket, "MSG_MORE", 0)
T = TypeVar("T")
_WILL_NEED: int | None = getattr(os, "POSIX_FADV_WILLNEED", None)


class FileThreads:
    """Shared by all connections of one loop. Threads begin with the work for them."""

    def __init__(self, threads: int) -> None:
        self._in_memory = Lane("penstock-memory", threads)
        self._on_disk = Lane("penstock-disk", threads)

    def run(
        self,
        loop: asyncio.AbstractEventLoop,
        do: Callable[[], T],
        done: Callable[[T | OSError], None],
        *,
        cached: bool,
    ) -> None:
        """`done` is called on the loop with what `do` returned, or with the OSError it raised."""
        (self._in_memory if cached else self._on_disk).run(loop, do, done)

    def close(self) -> None:
        """What was asked for before is still done, and told if there is a loop left to tell."""
        self._in_memory.close()
        self._on_disk.close()


class FileRange(NamedTuple):
    """Bytes of an open file. Whoever sends one keeps the file open until it has left."""

    file: DiskFile
    position: int
    length: int


def send_answer(
    sock: socket.socket, before: Sequence[Buffer], middle: FileRange, after: Sequence[Buffer], *, cached: bool
) -> int:
    """Sends what a non-blocking socket takes of it; returns how much that was."""
    sent = 0
    try:
        if before:
            sent = _send_bytes(sock, before, MSG_MORE)
            if sent < sum(map(len, before)):
                return sent
        moved = send_range(sock.fileno(), *middle, cached=cached)
        sent += moved
        if after and moved == middle.length:
            sent += _send_bytes(sock, after, 0)
    except (BlockingIOError, InterruptedError):
        pass
    return sent


def _send_bytes(sock: socket.socket, parts: Sequence[Buffer], flags: int) -> int:
    return sock.send(parts[0], flags) if len(parts) == 1 else sock.sendmsg(parts, (), flags)


def send_range(socket_fd: int, file: DiskFile, position: int, length: int, *, cached: bool = True) -> int:
    """Sends what a non-blocking socket takes of the range; returns how much that was."""
    sent = 0
    file_fd = file.fileno()
    if not cached and _WILL_NEED is not None:
        # Whoever reads old data mostly reads on: the disk is to be at the next range while this one leaves.
        os.posix_fadvise(file_fd, position, 2 * length, _WILL_NEED)
    try:
        while sent < length:
            count = os.sendfile(socket_fd, file_fd, position + sent, length - sent)
            if count == 0:
                raise file_ended(length - sent)
            sent += count
    except (BlockingIOError, InterruptedError):
        pass
    return sent


def file_ended(missing: int) -> OSError:
    return OSError(f"file ended {missing} bytes before the range that was promised to the client")
