"""What leaves over a transport without a socket of its own: TLS, and the simulated network."""

import asyncio
from typing import Any, cast

from penstock.net.file_threads import FileRange, FileThreads
from penstock.net.outbox import Outbox
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
