"""Records of a coordinator as the batches they are appended in."""

from collections.abc import Iterable
from typing import Protocol

from penstock.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from penstock.records.builder import BatchBuilder
from penstock.wire.records import encode_coordinator_key, encode_coordinator_value
from penstock.wire.struct import RecordMessage

# Decisions with very many records (a group with all its offsets deleted) become several batches of about this size.
_BATCH_BYTES = 512 * 1024


class CoordinatorRecord(Protocol):
    @property
    def key(self) -> RecordMessage: ...

    @property
    def value(self) -> RecordMessage | None:
        """None is a tombstone."""

    @property
    def version(self) -> int: ...


def encode_batches(
    records: Iterable[CoordinatorRecord],
    timestamp_ms: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
) -> bytearray:
    """One batch, unless there is very much to write. With a producer they are part of its transaction."""
    batches = bytearray()
    builder = _builder(producer_id, producer_epoch)
    for record in records:
        if builder.size_estimate > _BATCH_BYTES:
            batches += builder.build()
            builder = _builder(producer_id, producer_epoch)
        value = None if record.value is None else encode_coordinator_value(record.value, record.version)
        builder.append(encode_coordinator_key(record.key), value, (), timestamp_ms)
    last = builder.build()
    return batches + last if batches else last


def _builder(producer_id: int, producer_epoch: int) -> BatchBuilder:
    # Without sequence numbers, as Kafka's coordinators write: nobody sends these twice.
    return BatchBuilder(
        producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id != NO_PRODUCER_ID
    )
