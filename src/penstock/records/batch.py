"""The 61-byte header of a record batch (format version 2) and the few bytes a broker may change.

The CRC-32C covers everything from the attributes on. Base offset and leader epoch lie before it, so a leader
assigns both in place without touching the payload. Nothing here looks at records.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.ports import Buffer
from penstock.records.checksum import crc32c

HEADER_BYTES = 61
LENGTH_BYTES = 12
"""Base offset and batch length: what must be read to know how long a batch is."""
MAGIC = 2
CRC_POSITION = 17
CRC_COVERS_FROM = 21
LEADER_EPOCH_POSITION = 12

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

CREATE_TIME = 0
LOG_APPEND_TIME = 1

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
_MAX_OFFSET = (1 << 63) - 1

HEADER = struct.Struct(">qiibIhiqqqhii")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP_POSITION = 35


class CorruptBatch(ValueError):
    """Bytes that are not a whole, valid record batch."""


class DamagedBatch(CorruptBatch):
    """A batch of a log that is not what was written there."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the batch at offset {offset} is damaged: {reason}")
        self.offset = offset


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; sequences wrap from 2³¹ − 1 to 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def timestamp_type(self) -> int:
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def has_delete_horizon(self) -> bool:
        """A compacted batch whose base timestamp is the time at which its tombstones may go. (KIP-534)"""
        return bool(self.attributes & DELETE_HORIZON_BIT)


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """The header at `pos`; checks what makes the other fields meaningful (magic, length), not the CRC."""
    try:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error:
        raise CorruptBatch(f"{len(buf) - pos} bytes are too few for a batch header of {HEADER_BYTES}") from None
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch format version {header.magic} at byte {pos}, only version {MAGIC} is stored")
    if header.batch_length < HEADER_BYTES - LENGTH_BYTES:
        raise CorruptBatch(f"batch length {header.batch_length} at byte {pos} is smaller than a batch header")
    return header


def iter_headers(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """`(position, header)` of every whole batch; stops before a cut-off batch at the end, as Fetch delivers them."""
    end = len(buf)
    while end - pos >= HEADER_BYTES:
        header = parse_header(buf, pos)
        next_pos = pos + header.batch_length + LENGTH_BYTES
        if next_pos > end:
            return
        yield pos, header
        pos = next_pos


def crc_is_valid(buf: Buffer, pos: int, header: BatchHeader) -> bool:
    end = pos + header.batch_length + LENGTH_BYTES
    if end > len(buf):
        return False
    return bool(crc32c(memoryview(buf)[pos + CRC_COVERS_FROM : end]) == header.crc)


def iter_undamaged(data: Buffer, offset: int, end_offset: int = _MAX_OFFSET) -> Iterator[tuple[int, BatchHeader]]:
    """`(position, header)` of the whole batches that a log that ends at `end_offset` gave for `offset`. Raises
    `DamagedBatch` at the first that cannot be what was written, with the offset from which on nothing is certain.

    A base offset is not under the checksum: one that is too high shows only in what follows.
    """
    position, before = 0, offset
    while position < len(data):
        try:
            header = parse_header(data, position)
        except CorruptBatch as error:
            raise DamagedBatch(offset, str(error)) from error
        if not crc_is_valid(data, position, header):
            raise DamagedBatch(offset, "it fails its checksum")
        if header.next_offset <= offset:
            raise DamagedBatch(before, f"a batch that ends at {header.next_offset} follows one that ends at {offset}")
        if header.next_offset > end_offset:
            raise DamagedBatch(offset, f"it ends at {header.next_offset}, behind the end of the log")
        yield position, header
        before, offset = offset, header.next_offset
        position += header.size_bytes


def batch_size(buf: Buffer, pos: int = 0) -> int:
    """Size in bytes of the batch at `pos`, from its first 12 bytes."""
    length: int = _OFFSET_AND_LENGTH.unpack_from(buf, pos)[1]
    return length + LENGTH_BYTES


def patch_offset_and_epoch(buf: bytearray | memoryview, pos: int, base_offset: int, epoch: int) -> None:
    """Assigns base offset and leader epoch in place; neither is under the CRC."""
    _OFFSET.pack_into(buf, pos, base_offset)
    _EPOCH.pack_into(buf, pos + LEADER_EPOCH_POSITION, epoch)


def patch_log_append_time(buf: bytearray | memoryview, pos: int, header: BatchHeader, timestamp_ms: int) -> None:
    """Stamps the batch with the broker's time (attributes and max timestamp) and recomputes the CRC."""
    _ATTRIBUTES.pack_into(buf, pos + CRC_COVERS_FROM, header.attributes | TIMESTAMP_TYPE_BIT)
    _OFFSET.pack_into(buf, pos + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    patch_crc(buf, pos, header.batch_length + LENGTH_BYTES)


def patch_crc(buf: bytearray | memoryview, pos: int, size_bytes: int) -> None:
    crc = crc32c(memoryview(buf)[pos + CRC_COVERS_FROM : pos + size_bytes])
    _CRC.pack_into(buf, pos + CRC_POSITION, crc)
