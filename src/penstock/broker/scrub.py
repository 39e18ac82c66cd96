"""A slow look at what nobody reads: the checksums of closed segments, so that rot is found while others can mend it.

One partition after the other, a piece at a time in the pool, at most so many bytes per second. What is found goes the
way of all damaged replicas (`ReplicaRepairs`).

Hard rules: only what is committed and in a closed segment is looked at, since nothing writes there; before damage is
reported it is read twice, with no cut and no compaction in between: a piece that moved under the reader is no damage.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.log.partition_log import PartitionLog
from penstock.model.errors import ErrorCode
from penstock.records.batch import DamagedBatch, iter_undamaged
from penstock.replication.partition import Partition

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.housekeeping")

_PIECE_BYTES = 1 << 20


class Scrub:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self.checked_bytes = 0
        self.damaged = 0

    async def run(self) -> None:
        """All open partitions once."""
        for partition in self._broker.partitions:
            if partition.log.is_loaded and partition.log.offline is None:
                await self._look_at(partition)

    async def _look_at(self, partition: Partition) -> None:
        loop, pool, storage = asyncio.get_running_loop(), self._broker.pool, partition.log
        offset = storage.log_start_offset
        while offset < (end_offset := _closed_end_offset(partition)):
            moves = (storage.generation, storage.directory.swaps)
            found = await loop.run_in_executor(pool, check_piece, storage, offset, end_offset)
            if found is None:
                return  # deleted, cut or failed meanwhile
            next_offset, bad_offset, size = found
            self.checked_bytes += size
            if bad_offset is not None:
                still = await loop.run_in_executor(pool, is_damaged, storage, bad_offset, end_offset)
                if still and moves == (storage.generation, storage.directory.swaps):
                    self._report(partition, bad_offset)
                return
            offset = max(next_offset, storage.log_start_offset)
            await asyncio.sleep(size / self._broker.settings.log_scrub_max_bytes_per_second)

    def _report(self, partition: Partition, offset: int) -> None:
        self.damaged += 1
        topic = self._broker.image.topic_by_id(partition.topic_id)
        state = topic.partition(partition.index) if topic is not None else None
        if topic is None or state is None:
            return
        if len(state.replicas) > 1:
            self._broker.replicas.repairs.damaged(topic, partition.index, offset, "a record fails its checksum")
        else:
            log.error("%s fails its checksum at offset %d and has no other replica", partition.log.name, offset)


def _closed_end_offset(partition: Partition) -> int:
    active = partition.log.active
    return min(active.base_offset, partition.high_watermark) if active is not None else 0


def check_piece(storage: PartitionLog, offset: int, end_offset: int) -> tuple[int, int | None, int] | None:
    """Blocking. Where the piece ends, the first batch in it that is damaged, and how much was read."""
    data = storage.read_bytes(offset, _PIECE_BYTES, end_offset)
    if data is ErrorCode.KAFKA_STORAGE_ERROR and storage.offline is None and storage.directory.failure is None:
        return offset, offset, 0  # there is no batch where one must be
    if isinstance(data, ErrorCode) or not data:
        return None
    try:
        for _, header in iter_undamaged(data, offset, storage.end_offset):
            offset = header.next_offset
    except DamagedBatch as damage:
        return damage.offset, damage.offset, len(data)
    return offset, None, len(data)


def is_damaged(storage: PartitionLog, offset: int, end_offset: int) -> bool:
    """Blocking. Whether the batch at `offset` is still damaged."""
    found = check_piece(storage, offset, end_offset)
    return found is not None and found[1] == offset
