"""Looking records up by time. Blocking: reads indexes and batches, decompresses one; belongs into the pool.

Works on the segments as they were when it began; a segment deleted meanwhile stays readable through its file.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.log.errors import CorruptSegment
from penstock.log.reading import find_batch
from penstock.log.scan import SegmentScan
from penstock.log.segment import Segment
from penstock.log.time_index import floor_offset, read_time_index
from penstock.records.batch import NO_TIMESTAMP, CorruptBatch
from penstock.records.reader import Record, read_records

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


T = TypeVar("T")


class RecordPlace(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


def look_up(log: "PartitionLog", find: Callable[[], T]) -> T:
    """In the pool: runs a search again when segments went away or were replaced under it."""
    directory = log.directory
    while True:
        swaps = directory.swaps_so_far()
        segments = log.segments
        try:
            found = find()
        except (FileNotFoundError, CorruptSegment, CorruptBatch):
            if log.segments is segments and directory.swaps == swaps:
                raise
        else:
            if directory.swaps == swaps:
                return found


def find_by_timestamp(log: "PartitionLog", timestamp: int) -> RecordPlace | None:
    """The first record, by offset, whose timestamp is not below `timestamp`."""
    disk = log.directory.disk
    start_offset = log.local_log_start_offset
    for segment in log.segments:
        if segment.largest_timestamp(disk).timestamp < timestamp:
            continue
        place = _search_segment(log, segment, timestamp, start_offset)
        if place is not None:
            return place
    return None


def find_max_timestamp(log: "PartitionLog") -> RecordPlace | None:
    """The record with the largest timestamp in the log; the first of them when there are several."""
    disk = log.directory.disk
    best: Segment | None = None
    best_timestamp = NO_TIMESTAMP
    for segment in log.segments:
        timestamp = segment.largest_timestamp(disk).timestamp
        if timestamp > best_timestamp:
            best, best_timestamp = segment, timestamp
    if best is None:
        return None
    found = _search_segment(log, best, best_timestamp, log.local_log_start_offset)
    return found or _search_largest(log)


def _search_largest(log: "PartitionLog") -> RecordPlace | None:
    """By the batches: compaction leaves empty ones whose timestamp is that of no record."""
    largest = NO_TIMESTAMP
    for segment in log.segments:
        if segment.largest_timestamp(log.directory.disk).timestamp > largest:
            for batch in SegmentScan(log.directory.files.open(segment), segment.size_bytes, segment.base_offset):
                if batch.header.record_count and batch.header.last_offset >= log.local_log_start_offset:
                    largest = max(largest, batch.header.max_timestamp)
    return None if largest == NO_TIMESTAMP else find_by_timestamp(log, largest)


def _search_segment(log: "PartitionLog", segment: Segment, timestamp: int, start_offset: int) -> RecordPlace | None:
    directory = log.directory
    time_index = segment.time_index
    if time_index is not None:
        content = time_index.content(directory.disk)
    else:
        content = read_time_index(directory.disk, segment.path + ".timeindex")
    from_offset = max(segment.base_offset + floor_offset(content, timestamp), start_offset)
    file = directory.files.open(segment)
    size_bytes = segment.size_bytes
    place = find_batch(segment, from_offset, directory.files, directory.cache)
    if place is None:
        return None
    for batch in SegmentScan(file, size_bytes, place.base_offset, place.position):
        header = batch.header
        if header.max_timestamp < timestamp:
            continue
        for record in read_records(batch.data, batch.pos):
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return _place(record, header.partition_leader_epoch)
    return None


def _place(record: Record, leader_epoch: int) -> RecordPlace:
    return RecordPlace(record.timestamp, record.offset, leader_epoch)
