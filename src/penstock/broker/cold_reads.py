"""Keeps the event loop from waiting for the disk when old data is read.

sendfile on pages that are not cached would block the whole broker. So a range is probed first, and one that is not
in memory is pulled into the page cache by the pool before it is sent.
"""

import os

from penstock.net.outbox import FileRange

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_PROBE_EVERY = 1 << 20


def is_cached(data: FileRange) -> bool:
    """Whether the range is in memory, judged by a byte per MB and the last one. True where nobody can tell."""
    fileno = data.file.fileno()
    if not _NOWAIT or fileno < 0:
        return True
    byte = [bytearray(1)]
    end = data.position + data.length - 1
    try:
        for position in range(data.position, end, _PROBE_EVERY):
            os.preadv(fileno, byte, position, _NOWAIT)
        os.preadv(fileno, byte, end, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this file system cannot answer (EOPNOTSUPP): treat it as memory
    return True


def pull_in(ranges: list[FileRange]) -> None:
    """Blocks until the ranges are cached. Called in the pool."""
    for data in ranges:
        end = data.position + data.length
        for position in range(data.position, end, _PROBE_EVERY):
            data.file.read_at(position, min(_PROBE_EVERY, end - position))
