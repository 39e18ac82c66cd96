"""Ranges of which a part was dropped from memory: who notices, and who waits for the disk."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.log.disk import OsFile
from penstock.net import outbox
from penstock.net.connection import Connection
from penstock.net.file_threads import FileRange, send_range
from penstock.net.page_cache import is_all_cached, is_cached
from penstock.net.server import Server
from penstock.sim.disk import CrashingDisk
from tests.net.test_server import Client, Recorder, framed, run

LENGTH = 1_000_000
HOLE = 400_000 // 65_536 * 65_536


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    """Appended in small pieces, which the kernel drops one by one, with a hole in the middle; probes miss it."""
    opened = OsFile(os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT))
    for position in range(0, 2 * LENGTH, 4_000):
        opened.write_at(position, (os.urandom(4_000),))
    os.fsync(opened.fileno())
    assert is_all_cached(opened, 3, LENGTH)
    os.posix_fadvise(opened.fileno(), HOLE, 65_536, os.POSIX_FADV_DONTNEED)
    if is_all_cached(opened, 0, LENGTH):
        pytest.skip("no cachestat here, or the file system keeps everything in memory")
    yield opened
    opened.close()


def test_a_hole_between_probes_is_noticed_by_counting(file: OsFile) -> None:
    assert is_cached(file, 0, LENGTH)
    assert not is_all_cached(file, 0, LENGTH)
    assert not is_all_cached(file, HOLE + 65_535, 2)
    for whole in ((0, HOLE), (HOLE - 1, 1), (HOLE + 65_536, LENGTH)):
        assert is_all_cached(file, *whole)


def test_what_nobody_can_tell_counts_as_memory() -> None:
    assert is_all_cached(CrashingDisk().open("/f", create=True), 0, LENGTH)


def test_who_reads_from_the_disk_has_threads_wait_for_holes_too(
    file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_threads: list[tuple[int, int]] = []
    on_disk = True

    def send(socket_fd: int, sent_file: Any, position: int, length: int) -> int:
        assert threading.current_thread() is not threading.main_thread()
        by_threads.append((position, length))
        return send_range(socket_fd, sent_file, position, length)

    def probe(*arguments: Any) -> bool:
        nonlocal on_disk
        found = not on_disk and is_cached(*arguments)
        on_disk = False
        return found

    monkeypatch.setattr(outbox, "send_range", send)
    monkeypatch.setattr(outbox, "is_cached", probe)

    class Ranges(Recorder):
        def frame_received(self, connection: Connection, frame: memoryview) -> None:
            position = int(bytes(frame))
            connection.begin_reply(len(frame)).send([FileRange(file, position, LENGTH)])

    async def scenario(server: Server, _: Recorder, connect: Callable[[], Awaitable[Client]]) -> None:
        reader, writer = await connect()
        for position in (LENGTH, 0, LENGTH):
            writer.write(framed(b"%d" % position))
            assert await asyncio.wait_for(reader.readexactly(LENGTH), 15) == file.read_at(position, LENGTH)
            if position:
                assert by_threads[0] == (LENGTH, LENGTH)
            else:
                assert (0, LENGTH) in by_threads

    run(scenario, handler=Ranges())
