"""Asking the kernel to start writing what it holds, in small pieces.

Where nothing is synced (`flush.mode` os) the kernel keeps what was appended for half a minute and then writes all of
it at once. While it looks for room for hundreds of megabytes, an append to the same file waits inside `pwrite`, on
the event loop: 100 ms and more were seen, and a second on a slow disk. Pieces of a few megabytes are begun as the log
grows, so there is never much to write. Nothing waits for them and nothing becomes durable by them.
"""

import ctypes
import sys
from collections.abc import Callable

_WRITE = 2
"""SYNC_FILE_RANGE_WRITE alone: begin, do not wait, and leave write errors for the sync that must report them."""

PIECE_BYTES = 4 << 20
"""What is begun at once, give or take a batch, however large batches are."""

ALIGNMENT = 65_536
"""Pieces end here: the last pages of the file stay out, because appends go on in them."""


def _find() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find()
IS_SUPPORTED = _sync_file_range is not None


def begin_write_back(fd: int, piece: range) -> None:
    """Blocking where the disk's queue is full. Only advice: a refusal changes nothing."""
    if _sync_file_range is not None:
        _sync_file_range(fd, piece.start, len(piece), _WRITE)
