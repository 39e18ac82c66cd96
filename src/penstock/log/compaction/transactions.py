"""What compaction must know of transactions: which batches were aborted, and which markers have outlived theirs.

Everything that is compacted lies below the last stable offset, so the fate of every transaction in it is known. A
marker stays as long as one batch of its transaction is in the log: without it a reader would take records that were
aborted for committed ones, or leave out what came after them.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable

from penstock.log.txn_index import AbortedTransaction
from penstock.model.ports import Buffer
from penstock.records.batch import BatchHeader, CorruptBatch
from penstock.records.markers import ABORT, COMMIT
from penstock.records.reader import read_records

_MARKER_KEY = struct.Struct(">hh")


class AbortedRanges:
    """Aborted transactions by producer. Those of one producer never overlap."""

    __slots__ = ("_by_marker", "_firsts", "_markers")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._firsts: dict[int, list[int]] = {}
        self._markers: dict[int, list[int]] = {}
        self._by_marker: dict[int, AbortedTransaction] = {}
        for entry in sorted(aborted, key=lambda entry: entry.first_offset):
            self._firsts.setdefault(entry.producer_id, []).append(entry.first_offset)
            self._markers.setdefault(entry.producer_id, []).append(entry.last_offset)
            self._by_marker[entry.last_offset] = entry

    def hold(self, header: BatchHeader) -> bool:
        """Whether this data batch belongs to an aborted transaction."""
        firsts = self._firsts.get(header.producer_id)
        if firsts is None or not header.is_transactional:
            return False
        at = bisect_right(firsts, header.base_offset) - 1
        return at >= 0 and header.base_offset < self._markers[header.producer_id][at]

    def ended_by(self, marker: BatchHeader) -> AbortedTransaction | None:
        """The aborted transaction that this marker ends; None when it has no index entry."""
        return self._by_marker.get(marker.last_offset)


class ObservedTransactions:
    """Fed with every batch from the start of the log on, tells which markers have nothing left to mark."""

    __slots__ = ("_producers",)

    def __init__(self) -> None:
        self._producers: set[int] = set()
        """Producers of which a transactional batch was seen since their last marker."""

    def see_data(self, header: BatchHeader) -> None:
        if header.is_transactional:
            self._producers.add(header.producer_id)

    def see_marker(self, header: BatchHeader, data: Buffer, pos: int) -> bool:
        """Whether this marker's transaction has no batch left in the log."""
        if not _is_end_marker(header, data, pos):
            return False
        if header.producer_id in self._producers:
            self._producers.discard(header.producer_id)
            return False
        return True


def _is_end_marker(header: BatchHeader, data: Buffer, pos: int) -> bool:
    """An empty control batch is what an older compaction left of a marker."""
    if header.record_count == 0:
        return True
    key = read_records(data, pos)[0].key
    if key is None or len(key) < _MARKER_KEY.size:
        raise CorruptBatch(f"control batch at offset {header.base_offset} has no type")
    return _MARKER_KEY.unpack_from(key)[1] in (ABORT, COMMIT)
