"""Transaction markers: control batches of one record that end a producer's transaction in a partition."""

import struct
from typing import NamedTuple

from penstock.model.ports import Buffer
from penstock.records.builder import build_batch
from penstock.records.reader import read_records

ABORT = 0
COMMIT = 1

_KEY = struct.Struct(">hh")  # version, type
_VALUE = struct.Struct(">hi")  # version, coordinator epoch
_VERSION = 0
_NEXT_EPOCH_FROM = 2


class EndMarker(NamedTuple):
    """What a marker says, wherever it is written."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int = 0

    @property
    def carries_next_epoch(self) -> bool:
        """Whether its epoch is not its transaction's but the one after it. (KIP-890)"""
        return self.transaction_version >= _NEXT_EPOCH_FROM


def build_end_marker(
    producer_id: int, producer_epoch: int, coordinator_epoch: int, commit: bool, timestamp_ms: int
) -> bytearray:
    key = _KEY.pack(_VERSION, COMMIT if commit else ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [(key, value)],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_end_marker(batch: Buffer, pos: int = 0) -> bool | None:
    """Whether the control batch at `pos` commits or aborts; None when it does neither."""
    record = read_records(batch, pos)[0]
    if record.key is None or len(record.key) < _KEY.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    return kind == COMMIT if kind in (ABORT, COMMIT) else None
