"""The values that go in and out of the client: records, positions, descriptions.

Records are msgspec structs without garbage-collector tracking because a consumer makes millions of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from penstock.model.ids import TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_HEADERS",
    "ConsumerRecord",
    "Headers",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RecordMetadata",
    "TopicPartition",
]

Headers = Sequence[tuple[str, bytes | None]]
NO_HEADERS: Headers = ()

LATEST = -1
"""ListOffsets: the end of the partition (high watermark or last stable offset)."""
EARLIEST = -2
"""ListOffsets: the log start offset."""
MAX_TIMESTAMP = -3
"""ListOffsets: the record with the highest timestamp. (KIP-734)"""


class RecordMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where a record was written. `offset` is −1 with acks=0, and for a duplicate the broker no longer places."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = NO_HEADERS
    timestamp_type: int = 0
    """0: when the producer made it (CreateTime); 1: when the broker appended it (LogAppendTime)."""
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """An offset as committed by a group: the next one to read, with a remark of the one who committed it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    offset: int
    timestamp_ms: int
    leader_epoch: int = -1
