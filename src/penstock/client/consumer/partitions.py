"""What a consumer knows of each partition it reads: position, buffered data, pause. Decides; sends nothing.

Hard rules:
- `position` is the offset of the next record the application gets; `fetch_offset` of the next to ask for. What lies
  between is buffered here. A seek drops the buffer and makes answers under way worthless (`version` tells).
- Buffered bytes stay batches until they are needed: memory is bounded by what was fetched, not by what it becomes.
"""

from collections import deque
from typing import NamedTuple

from penstock.client.consumer.decoding import decode_batch
from penstock.client.errors import CorruptRecords
from penstock.client.types import ConsumerRecord
from penstock.model.ids import TopicPartition
from penstock.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch, iter_headers, parse_header

_ABORT = 0


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int


class Chunk:
    """The batches of one answer, read one by one; `aborted` in order of first offset (read_committed only)."""

    __slots__ = ("_aborted", "_aborting", "_batches", "data")

    def __init__(self, data: memoryview, aborted: list[AbortedTransaction] | None) -> None:
        self.data = data
        self._batches = iter_headers(data)
        self._aborted = None if aborted is None else deque(sorted(aborted, key=lambda txn: txn.first_offset))
        self._aborting: set[int] = set()

    def next_visible(self) -> tuple[int, BatchHeader, bool] | None:
        """The next batch as (position, header, to be delivered); None at the end."""
        for pos, header in self._batches:
            return pos, header, self._is_visible(pos, header)
        return None

    def _is_visible(self, pos: int, header: BatchHeader) -> bool:
        if self._aborted is None:
            return not header.is_control
        while self._aborted and self._aborted[0].first_offset <= header.last_offset:
            self._aborting.add(self._aborted.popleft().producer_id)
        if header.is_control:
            if _control_type(self.data, pos, header) == _ABORT:
                self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def _control_type(data: memoryview, pos: int, header: BatchHeader) -> int:
    """Type of a transaction marker: the second int16 of its key."""
    records = decode_batch("", 0, data, pos, header, check_crc=False)
    key = records[0].key if records else None
    return int.from_bytes(key[2:4], "big") if key is not None and len(key) >= 4 else -1


class PartitionState:
    __slots__ = (
        "_chunks",
        "_decoded",
        "_index",
        "_next_offset",
        "buffered_bytes",
        "check_crc",
        "fetch_offset",
        "high_watermark",
        "log_start_offset",
        "paused",
        "position",
        "read_from",
        "read_from_until",
        "reset_to",
        "topic_partition",
        "version",
    )

    def __init__(self, topic_partition: TopicPartition, *, check_crc: bool = True) -> None:
        self.topic_partition = topic_partition
        self.check_crc = check_crc
        self.position: int | None = None
        self.fetch_offset = -1
        self.reset_to: int | None = None
        """A ListOffsets timestamp to resolve into a position, before the group's committed offset is considered."""
        self.paused = False
        self.high_watermark = -1
        self.log_start_offset = -1
        self.read_from: int | None = None
        """The replica that the leader has sent us to, until then; None: the leader. (KIP-392)"""
        self.read_from_until = 0.0
        self.version = 0
        self.buffered_bytes = 0
        self._chunks: deque[Chunk] = deque()
        self._decoded: list[ConsumerRecord] = []
        self._index = 0
        self._next_offset = -1

    def seek(self, offset: int) -> None:
        self.drop_buffer()
        self.position = self.fetch_offset = offset
        self.reset_to = None

    def reset(self, timestamp: int) -> None:
        """Position unknown until the offset for this timestamp (or earliest, latest) is looked up."""
        self.drop_buffer()
        self.position = None
        self.reset_to = timestamp

    def drop_buffer(self) -> None:
        self.version += 1
        self._chunks.clear()
        self._decoded, self._index = [], 0
        self.buffered_bytes = 0

    @property
    def has_buffered(self) -> bool:
        return self._index < len(self._decoded) or bool(self._chunks)

    def add(self, data: memoryview, aborted: list[AbortedTransaction] | None) -> int:
        """Buffers an answer's whole batches; returns how many bytes they are."""
        end, next_offset = _whole_batches(data)
        if end == 0:
            return 0
        self.fetch_offset = max(self.fetch_offset, next_offset)
        self._chunks.append(Chunk(data[:end], aborted))
        self.buffered_bytes += end
        return end

    def take(self, max_records: int) -> list[ConsumerRecord]:
        """At most so many of the next records, all out of one batch; empty if nothing is buffered."""
        if self._index >= len(self._decoded) and not self._decode_until_some():
            return []
        start = self._index
        end = min(start + max_records, len(self._decoded))
        records = self._decoded[start:end] if start or end < len(self._decoded) else self._decoded
        self._index = end
        self._settle(records[-1].offset + 1)
        return records

    def next_record(self) -> ConsumerRecord | None:
        if self._index >= len(self._decoded) and not self._decode_until_some():
            return None
        record = self._decoded[self._index]
        self._index += 1
        self._settle(record.offset + 1)
        return record

    def _decode_until_some(self) -> bool:
        while self._decode_next():
            if self._decoded:
                return True
        return False

    def _settle(self, offset: int) -> None:
        """Behind the last record of a batch lies the next batch, also if records were removed in between."""
        if self._index >= len(self._decoded):
            self.position = max(offset, self._next_offset)
            self._decoded, self._index = [], 0
        else:
            self.position = offset

    def _decode_next(self) -> bool:
        """Decodes the next batch, which may have nothing to deliver; False if there is none."""
        while self._chunks:
            chunk = self._chunks[0]
            found = chunk.next_visible()
            if found is None:
                self._chunks.popleft()
                self.buffered_bytes -= len(chunk.data)
                continue
            pos, header, visible = found
            self._next_offset = header.next_offset
            position = self.position or 0
            if header.last_offset < position:
                continue
            records = self._decode(chunk.data, pos, header) if visible else []
            if records and records[0].offset < position:
                records = [record for record in records if record.offset >= position]
            self._decoded, self._index = records, 0
            if not records:
                self.position = header.next_offset
            return True
        return False

    def _decode(self, data: memoryview, pos: int, header: BatchHeader) -> list[ConsumerRecord]:
        topic, partition = self.topic_partition
        try:
            return decode_batch(topic, partition, data, pos, header, check_crc=self.check_crc)
        except CorruptBatch as error:
            offset = header.base_offset
            self.drop_buffer()
            self.position = self.fetch_offset = offset
            raise CorruptRecords(
                f"{self.topic_partition}: {error}",
                hint=f"seek past offset {header.last_offset} to go on without the batch",
            ) from None


def _whole_batches(data: memoryview) -> tuple[int, int]:
    """Where the last whole batch ends, and the offset behind it: answers may be cut off in the middle of a batch."""
    end = next_offset = 0
    for pos, header in iter_headers(data):
        end = pos + header.size_bytes
        next_offset = header.next_offset
    return end, next_offset


def oversized_batch_bytes(data: memoryview) -> int:
    """Size of a first batch that did not fit into the answer; 0 if the answer holds one."""
    if len(data) < HEADER_BYTES:
        return 0
    size = parse_header(data, 0).size_bytes
    return size if size > len(data) else 0
