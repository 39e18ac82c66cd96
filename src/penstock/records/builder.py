"""Builds record batches: what coordinators, the metadata log, clients and recompression write.

Records are encoded as they are appended, behind room for the header, so that building an uncompressed batch
copies nothing. A builder is used once.
"""

from collections.abc import Iterable, Sequence

from penstock.model.ports import Buffer
from penstock.records.batch import (
    CONTROL_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    patch_crc,
)
from penstock.records.compression import Codec, compress
from penstock.records.varint import append_varint

Headers = Sequence[tuple[str, bytes | None]]
RECORD_OVERHEAD_BYTES = 21
"""Upper bound of what a record needs besides key, value and headers."""


class BatchBuilder:
    __slots__ = (
        "_attributes",
        "_base_timestamp",
        "_buf",
        "_codec",
        "_compression_level",
        "_max_timestamp",
        "_producer_epoch",
        "_producer_id",
        "_scratch",
        "_sequence",
        "record_count",
    )

    def __init__(
        self,
        codec: int = Codec.NONE,
        *,
        base_timestamp: int | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        transactional: bool = False,
        control: bool = False,
        log_append_time: bool = False,
        compression_level: int | None = None,
    ) -> None:
        self._codec = codec
        self._compression_level = compression_level
        self._base_timestamp = base_timestamp
        self._max_timestamp = NO_TIMESTAMP
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._sequence = base_sequence
        self._attributes = (
            codec
            | (TRANSACTIONAL_BIT if transactional else 0)
            | (CONTROL_BIT if control else 0)
            | (TIMESTAMP_TYPE_BIT if log_append_time else 0)
        )
        self._buf = bytearray(HEADER_BYTES)
        self._scratch = bytearray()
        self.record_count = 0

    def append(
        self, key: Buffer | None, value: Buffer | None, headers: Headers = (), timestamp_ms: int = NO_TIMESTAMP
    ) -> int:
        """Adds a record; returns its offset relative to the batch."""
        if self._base_timestamp is None:
            self._base_timestamp = timestamp_ms
        if timestamp_ms > self._max_timestamp:
            self._max_timestamp = timestamp_ms
        offset_delta = self.record_count
        body = self._scratch
        body.clear()
        body.append(0)
        append_varint(body, timestamp_ms - self._base_timestamp)
        append_varint(body, offset_delta)
        _append_bytes(body, key)
        _append_bytes(body, value)
        append_varint(body, len(headers))
        for name, header_value in headers:
            _append_bytes(body, name.encode())
            _append_bytes(body, header_value)
        append_varint(self._buf, len(body))
        self._buf += body
        self.record_count = offset_delta + 1
        return offset_delta

    @property
    def size_estimate(self) -> int:
        """Size in bytes of the batch before compression: an upper bound except for incompressible data."""
        return len(self._buf)

    def build(self, *, base_offset: int = 0, leader_epoch: int = NO_LEADER_EPOCH) -> bytearray:
        """The finished batch. The builder is spent."""
        out = self._buf
        if self._codec != Codec.NONE:
            payload = compress(self._codec, memoryview(out)[HEADER_BYTES:], self._compression_level)
            out = bytearray(HEADER_BYTES)
            out += payload
        HEADER.pack_into(
            out,
            0,
            base_offset,
            len(out) - LENGTH_BYTES,
            leader_epoch,
            MAGIC,
            0,
            self._attributes,
            self.record_count - 1,
            NO_TIMESTAMP if self._base_timestamp is None else self._base_timestamp,
            self._max_timestamp,
            self._producer_id,
            self._producer_epoch,
            self._sequence,
            self.record_count,
        )
        patch_crc(out, 0, len(out))
        return out


def build_batch(
    records: Iterable[tuple[Buffer | None, Buffer | None]],
    *,
    timestamp_ms: int = NO_TIMESTAMP,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    codec: int = Codec.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """A batch of `(key, value)` records that all carry one timestamp."""
    builder = BatchBuilder(
        codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        control=control,
    )
    for key, value in records:
        builder.append(key, value, (), timestamp_ms)
    return builder.build(base_offset=base_offset, leader_epoch=leader_epoch)


def _append_bytes(out: bytearray, data: Buffer | None) -> None:
    if data is None:
        out.append(1)  # varint of −1
    else:
        append_varint(out, len(data))
        out += data
