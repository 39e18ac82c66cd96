"""The operating system's file system behind the `Disk` port.

A file is a raw descriptor without a cursor. It closes when the last reference goes, so that a span handed to a
slow consumer stays readable after the log has closed, evicted or deleted the file.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Sequence

from penstock.model.ports import Buffer, DiskFile, DiskUsage

if sys.platform == "darwin":
    import fcntl

    def _sync_data(fd: int) -> None:
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync alone leaves bytes in the drive's cache there
else:
    _sync_data = os.fdatasync


class OsFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        chunks = [data]  # a signal or a 2 GiB limit may cut a read short
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            chunks.append(data)
            got += len(data)
        return b"".join(chunks)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> int:
        if len(buffers) == 1:
            buffer = buffers[0]
            written = os.pwrite(self._fd, buffer, position)
            size = len(buffer)
        else:
            written = os.pwritev(self._fd, buffers, position)
            size = sum(map(len, buffers))
        if written < size:
            self._write_rest(position, memoryview(b"".join(buffers)), written)
        return size

    def _write_rest(self, position: int, data: memoryview, written: int) -> None:
        """A write is cut short when the disk fills up; trying the rest raises the reason."""
        while written < len(data):
            written += os.pwrite(self._fd, data[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        _sync_data(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def fileno(self) -> int:
        return self._fd

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class OsDisk:
    """`model.ports.Disk` on the local file system."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> DiskFile:
        flags = os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list_dir(self, path: str) -> list[str]:
        return os.listdir(path)

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        stat = os.statvfs(path)
        # What root keeps for itself counts as used: the broker cannot write there.
        return DiskUsage(
            (stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize
        )
