"""Reading the log that holds a coordinator's state, to load it: nothing that is damaged is taken for state."""

from collections.abc import Iterator

from penstock.broker.group_partition import CoordinatorPartition
from penstock.model.errors import ErrorCode
from penstock.records.batch import BatchHeader, DamagedBatch, iter_undamaged


class LoadFailed(Exception):
    """The log could not be read; its message says why."""


class LogDamaged(LoadFailed):
    """From `offset` on there is a batch that is not what was written, or none where one must be."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


def read_batches(
    partition: CoordinatorPartition, offset: int, end_offset: int, buffer_bytes: int
) -> Iterator[tuple[bytes, int, BatchHeader]]:
    """Blocking. Some batches from `offset` on, which is below `end_offset`: each as bytes and its position in them.
    Raises `LoadFailed`."""
    data = partition.read_bytes(offset, buffer_bytes)
    if data is ErrorCode.KAFKA_STORAGE_ERROR:
        raise LogDamaged(offset, f"reading at offset {offset}: {data.message}")
    if isinstance(data, ErrorCode):
        raise LoadFailed(f"reading at offset {offset}: {data.message}")
    if not data:
        raise LoadFailed(f"the log ends at offset {offset} and not at {end_offset}")
    try:
        for position, header in iter_undamaged(data, offset, end_offset):
            yield data, position, header
    except DamagedBatch as damage:
        raise LogDamaged(damage.offset, str(damage)) from damage
