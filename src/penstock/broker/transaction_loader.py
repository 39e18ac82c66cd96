"""Fills a transaction shard from its partition's log. Runs in the pool, in steps, on a shard nobody else touches yet.

The log is compacted in memory first: of each key only the last record is kept, as bytes, and only those are decoded
and replayed. So a log of a million transactions of ten producers costs ten replays.
"""

from itertools import islice

from penstock.broker.coordinator_log import read_batches
from penstock.broker.group_partition import CoordinatorPartition
from penstock.records.reader import read_records
from penstock.transactions.shard import TransactionShard
from penstock.wire.records import decode_transaction_record

_REPLAY_STEP = 5_000


class TransactionLoader:
    """Call `step` while it `has_more`."""

    def __init__(self, shard: TransactionShard, partition: CoordinatorPartition, buffer_bytes: int) -> None:
        self._shard = shard
        self._partition = partition
        self._buffer_bytes = buffer_bytes
        self._offset = partition.log_start_offset
        self._end_offset = partition.end_offset
        self._latest: dict[bytes, bytes | None] = {}
        self.record_count = 0

    @property
    def has_more(self) -> bool:
        return self._offset < self._end_offset or bool(self._latest)

    def step(self) -> None:
        """Reads or replays one piece."""
        if self._offset < self._end_offset:
            self._read()
        else:
            self._replay()

    def _read(self) -> None:
        batches = read_batches(self._partition, self._offset, self._end_offset, self._buffer_bytes)
        for data, position, header in batches:
            self._offset = header.next_offset
            if header.is_control:
                continue
            for record in read_records(data, position):
                if record.key is not None:
                    self.record_count += 1
                    self._latest[record.key] = record.value

    def _replay(self) -> None:
        latest = self._latest
        for key in list(islice(latest, _REPLAY_STEP)):
            self._shard.replay(*decode_transaction_record(key, latest.pop(key)))
