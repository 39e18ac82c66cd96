"""The index of aborted transactions of a segment (`.txnindex`), in Kafka's format, version 0.

An entry stands in the segment that holds the abort marker. The file exists only where there are entries.
"""

import struct
from typing import NamedTuple

from penstock.log.checkpoints import read_whole
from penstock.model.ports import Disk

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""
    last_stable_offset: int


def append_aborted(disk: Disk, path: str, aborted: AbortedTransaction) -> None:
    """A small write to the page cache."""
    file = disk.open(path, create=True)
    file.write_at(file.size() // _ENTRY.size * _ENTRY.size, (_ENTRY.pack(_VERSION, *aborted),))
    file.close()


def encode_aborted(entries: list[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def read_aborted(disk: Disk, path: str) -> list[AbortedTransaction]:
    """Blocking. All entries, in the order of their markers."""
    content = read_whole(disk, path) or b""
    whole = len(content) // _ENTRY.size * _ENTRY.size
    return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(content[:whole])]


def write_aborted(disk: Disk, path: str, entries: list[AbortedTransaction]) -> None:
    """Blocking. Replaces the index; without entries the file goes."""
    if not entries:
        if disk.exists(path):
            disk.remove(path)
        return
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write_at(0, (encode_aborted(entries),))
    file.sync()
    file.close()
