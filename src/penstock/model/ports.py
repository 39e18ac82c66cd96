"""Ports: what deciding code asks of the world, so that tests and the simulator can be the world.

Production implementations: `log.disk.OsDisk` for `Disk`; `SystemClock` and `SystemRng` below. Blocking disk
calls are made from the pool through the running loop's `run_in_executor`, never on the loop itself, except for
small writes into the page cache.
"""

import os
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970. May jump."""

    def monotonic(self) -> float:
        """Seconds that never go back; for timeouts and durations."""


class Rng(Protocol):
    def random_bytes(self, count: int) -> bytes: ...

    def uniform(self, low: float, high: float) -> float: ...


class DiskUsage(NamedTuple):
    total_bytes: int
    free_bytes: int


class DiskFile(Protocol):
    """One open file. Offsets are absolute; there is no file cursor."""

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        """Writes all buffers one behind the other; returns the bytes written. Raises OSError on a full disk."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Blocks until content and size are on stable storage (fdatasync). Called from the pool."""

    def close(self) -> None: ...

    def fileno(self) -> int:
        """The descriptor for sendfile, or -1 where this disk has none (then use `read_at`)."""


class Disk(Protocol):
    """A file system. Names become durable with `sync_dir`, content with `DiskFile.sync`."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> DiskFile: ...

    def exists(self, path: str) -> bool: ...

    def list_dir(self, path: str) -> list[str]: ...

    def make_dirs(self, path: str) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def sync_dir(self, path: str) -> None: ...

    def usage(self, path: str) -> DiskUsage: ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class SystemRng:
    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * int.from_bytes(os.urandom(7), "big") / (1 << 56)
