"""One batch on its way from `send` to acknowledgement, with the futures of its records.

A batch is open (takes records), closed (built into bytes), and then done exactly once: every future gets its
`RecordMetadata` or one error. Producer id, epoch and sequence are stamped when it is first sent; they change only
when it is known that the broker did not write it.
"""

import asyncio
import struct
from typing import Protocol

from penstock.client.errors import ClientError
from penstock.client.producer.encoding import encode_record
from penstock.client.types import Headers, RecordMetadata
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_BYTES, MAGIC, patch_crc
from penstock.records.compression import Codec, compress
from penstock.records.reader import read_records

_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43
RECORD_OVERHEAD_BYTES = 21


class Delivery(Protocol):
    """What `send` gives its caller: an asyncio future, or something else that can be resolved once."""

    def done(self) -> bool: ...

    def set_result(self, result: RecordMetadata, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...

    def exception(self) -> BaseException | None: ...


class ProducerBatch:
    __slots__ = (
        "attempts",
        "created_at",
        "data",
        "deadline",
        "done",
        "epoch",
        "futures",
        "identity_changes",
        "may_be_written",
        "number",
        "partition",
        "parts",
        "producer_id",
        "sequence",
        "size_bytes",
        "timestamps",
        "topic",
        "waiters",
        "whole_may_be_written",
    )

    def __init__(self, topic: str, partition: int, created_at: float, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.created_at = created_at
        self.deadline = deadline
        self.parts: list[bytes] = []
        self.timestamps: list[int] = []
        self.futures: list[Delivery] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.size_bytes = HEADER_BYTES
        self.data: bytearray | None = None
        self.producer_id = -1
        self.epoch = -1
        self.sequence = -1
        self.number = 0  # in the order in which the batches of its partition were first sent
        self.attempts = 0
        self.identity_changes = 0
        self.may_be_written = False  # under the number it has
        self.whole_may_be_written = False  # the batch that this is a part of: a broker that has it knows no parts
        self.done = False

    @property
    def record_count(self) -> int:
        return len(self.futures)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        future: Delivery,
    ) -> None:
        timestamps = self.timestamps
        base = timestamps[0] if timestamps else timestamp_ms
        record = encode_record(key, value, headers, timestamp_ms - base, len(timestamps))
        self.parts.append(record)
        timestamps.append(timestamp_ms)
        self.futures.append(future)
        self.size_bytes += len(record)

    def close(self, codec: int) -> None:
        """Builds the bytes; no record can be added any more."""
        payload = b"".join(self.parts)
        self.parts = []
        data = bytearray(HEADER_BYTES)
        data += compress(codec, payload, None) if codec != Codec.NONE else payload
        count = len(self.futures)
        base, highest = self.timestamps[0], max(self.timestamps)
        HEADER.pack_into(
            data, 0, 0, len(data) - LENGTH_BYTES, -1, MAGIC, 0, codec, count - 1, base, highest, -1, -1, -1, count
        )
        patch_crc(data, 0, len(data))
        self.data = data

    def stamp(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Makes the batch the next one of an idempotent producer."""
        assert self.data is not None
        self.may_be_written = self.whole_may_be_written = False
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, sequence
        _PRODUCER.pack_into(self.data, _PRODUCER_POSITION, producer_id, epoch, sequence)
        patch_crc(self.data, 0, len(self.data))

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        self.done = True
        topic, partition, offset = self.topic, self.partition, base_offset
        for future, timestamp_ms in zip(self.futures, self.timestamps, strict=True):
            if not future.done():
                stamp = timestamp_ms if log_append_time_ms < 0 else log_append_time_ms
                future.set_result(RecordMetadata(topic, partition, offset, stamp))
            if base_offset >= 0:
                offset += 1
        self._wake_waiters()

    def fail(self, error: ClientError) -> None:
        self.done = True
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the sender logs once per batch; a warning per record would drown it
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def split(self, codec: int) -> list["ProducerBatch"]:
        """Two halves, covering the same sequence numbers; for a batch that the broker finds too large."""
        assert self.data is not None
        records = read_records(self.data)
        middle = len(records) // 2
        halves = []
        for start, end in ((0, middle), (middle, len(records))):
            half = ProducerBatch(self.topic, self.partition, self.created_at, self.deadline)
            half.number = self.number
            for index in range(start, end):
                record = records[index]
                half.append(record.key, record.value, record.headers, self.timestamps[index], self.futures[index])
            half.close(codec)
            if self.sequence >= 0:
                half.stamp(self.producer_id, self.epoch, (self.sequence + start) & 0x7FFFFFFF)
            halves.append(half)
        halves[-1].waiters = self.waiters  # who wakes looks whether the first one is decided, too
        return halves
