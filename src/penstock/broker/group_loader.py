"""Fills a shard from its partition's log. Runs in the pool, in steps, on a shard that nobody else touches yet.

The log is compacted in memory first: of each key only the last record is kept, as bytes, and only those are decoded
and replayed. So a log of a million commits of ten offsets costs ten replays. Records of transactions are kept aside
until their marker is read, and then count by their place in the log; those without marker are replayed last.
"""

from itertools import islice

from penstock.broker.coordinator_log import read_batches
from penstock.broker.group_partition import CoordinatorPartition
from penstock.groups.shard import GroupShard
from penstock.records.batch import BatchHeader
from penstock.records.markers import read_end_marker
from penstock.records.reader import Record, read_records
from penstock.wire.records import decode_group_record

_REPLAY_STEP = 5_000


class ShardLoader:
    """Call `step` while it `has_more`."""

    def __init__(self, shard: GroupShard, partition: CoordinatorPartition, buffer_bytes: int) -> None:
        self._shard = shard
        self._partition = partition
        self._buffer_bytes = buffer_bytes
        self._offset = partition.log_start_offset
        self._end_offset = partition.end_offset
        self._latest: dict[bytes, Record] = {}  # in the order of the last record of each key
        self._pending: dict[int, list[Record]] = {}  # records of open transactions, by producer
        self.record_count = 0

    @property
    def has_more(self) -> bool:
        return self._offset < self._end_offset or bool(self._latest) or bool(self._pending)

    def step(self) -> None:
        """Reads or replays one piece."""
        if self._offset < self._end_offset:
            self._read()
        elif self._latest:
            self._replay()
        else:
            self._replay_pending()

    def _read(self) -> None:
        batches = read_batches(self._partition, self._offset, self._end_offset, self._buffer_bytes)
        for data, position, header in batches:
            self._offset = header.next_offset
            if header.is_control:
                self._read_marker(header, data, position)
            elif header.is_transactional:
                self._pending.setdefault(header.producer_id, []).extend(read_records(data, position))
            else:
                self._note(read_records(data, position))
        if self._offset >= self._end_offset:
            self._pending = {producer: self._still_open(records) for producer, records in self._pending.items()}

    def _read_marker(self, header: BatchHeader, data: bytes, position: int) -> None:
        commit = read_end_marker(data, position)
        if commit is None:
            return
        ended = self._pending.pop(header.producer_id, [])
        if commit:
            self._note(ended)

    def _note(self, records: list[Record]) -> None:
        """Each of these counts, unless one that was written after it does."""
        latest = self._latest
        self.record_count += len(records)
        for record in records:
            key = record.key
            if key is not None and (key not in latest or latest[key].offset < record.offset):
                latest.pop(key, None)
                latest[key] = record

    def _still_open(self, records: list[Record]) -> list[Record]:
        """Those that may yet count: nothing that was written after them does."""
        latest = self._latest
        return [
            each
            for each in records
            if each.key is not None and (each.key not in latest or latest[each.key].offset < each.offset)
        ]

    def _replay(self) -> None:
        latest = self._latest
        for key in list(islice(latest, _REPLAY_STEP)):
            self._shard.replay(*decode_group_record(key, latest.pop(key).value))

    def _replay_pending(self) -> None:
        pending = [(record, producer_id) for producer_id, records in self._pending.items() for record in records]
        self._pending = {}
        for record, producer_id in sorted(pending, key=lambda item: item[0].offset):
            assert record.key is not None
            self._shard.replay_transactional(producer_id, *decode_group_record(record.key, record.value))
