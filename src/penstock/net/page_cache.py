"""Whether bytes of a file are in memory: reading them then costs a copy, else it costs a wait for the disk."""

import os

from penstock.model.ports import DiskFile

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_PROBE_EVERY = 1 << 20


def is_cached(file: DiskFile, position: int, length: int) -> bool:
    """Judged by a byte per MB and the last one. True where nobody can tell."""
    fileno = file.fileno()
    if not _NOWAIT or fileno < 0:
        return True
    byte = [bytearray(1)]
    end = position + length - 1
    try:
        for place in range(position, end, _PROBE_EVERY):
            os.preadv(fileno, byte, place, _NOWAIT)
        os.preadv(fileno, byte, end, _NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True  # this file system cannot answer (EOPNOTSUPP): treat it as memory
    return True


def read_cached(file: DiskFile, position: int, length: int) -> bytearray | None:
    """The bytes if all of them are there and in memory; None otherwise, and where nobody can tell."""
    fileno = file.fileno()
    if not _NOWAIT or fileno < 0:
        return None
    data = bytearray(length)
    try:
        return data if os.preadv(fileno, [data], position, _NOWAIT) == length else None
    except OSError:
        return None
