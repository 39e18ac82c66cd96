"""What is in a log, batch by batch, as executors see it: one row for every batch, also for damaged ones.

Headers are read, checksums are checked, records are not opened. Hard rule: nothing found in a log stops the scan. A
batch that lies about itself, or bytes that are no batch, become rows that say so; the scan goes on behind them.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.client.errors import BrokerError
from penstock.client.raw import RawClient
from penstock.client.types import EARLIEST, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.records.batch import BatchHeader, CorruptBatch, crc_is_valid, iter_headers
from penstock.records.reader import read_records

BATCH_DDL = (
    "topic string, partition int, rangeStart bigint, place bigint, baseOffset bigint, endOffset bigint, records int, "
    "producerId bigint, producerEpoch int, baseSequence int, leaderEpoch int, control int, transactional boolean, "
    "timestampType int, baseTimestamp bigint, maxTimestamp bigint, sizeBytes bigint, problem string"
)
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("rangeStart", pa.int64()),
        ("place", pa.int64()),
        ("baseOffset", pa.int64()),
        ("endOffset", pa.int64()),
        ("records", pa.int32()),
        ("producerId", pa.int64()),
        ("producerEpoch", pa.int32()),
        ("baseSequence", pa.int32()),
        ("leaderEpoch", pa.int32()),
        ("control", pa.int32()),
        ("transactional", pa.bool_()),
        ("timestampType", pa.int32()),
        ("baseTimestamp", pa.int64()),
        ("maxTimestamp", pa.int64()),
        ("sizeBytes", pa.int64()),
        ("problem", pa.string()),
    ]
)
NOT_CONTROL, ABORT, COMMIT, OTHER_CONTROL = -1, 0, 1, 2
CRC, UNREADABLE = "crc", "unreadable"

_FETCH_BYTES = 8 << 20
_RECORDS_PER_TASK_MIN = 100_000
_EMPTY_TRIES = 10  # answers without a batch, half a second each, until a log is taken to be cut off
_DAMAGE = frozenset(
    {ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_SERVER_ERROR}
)  # what brokers answer where they cannot find their way through a segment

_Row = tuple[Any, ...]


class ScanRange(NamedTuple):
    """Offsets [start, end) of a partition; `is_first` of those that the partition is cut into."""

    topic: str
    partition: int
    start: int
    end: int
    is_first: bool


def plan_scan(partitions: Sequence[tuple[str, int, int, int]], tasks: int) -> list[list[ScanRange]]:
    """Work for about `tasks` tasks out of (topic, partition, start, end): large ones cut, small ones together."""
    total = sum(max(end - start, 0) for _, _, start, end in partitions)
    most = max(-(-total // max(tasks, 1)), _RECORDS_PER_TASK_MIN)
    planned: list[list[ScanRange]] = []
    filled = most
    for topic, partition, first, end in partitions:
        for start in range(first, end, most):
            piece = ScanRange(topic, partition, start, min(start + most, end), start == first)
            if filled + piece.end - piece.start > most:
                planned.append([])
                filled = 0
            planned[-1].append(piece)
            filled += piece.end - piece.start
    return planned


def scan_ranges(bootstrap: str, ranges: list[ScanRange]) -> Iterator[pa.RecordBatch]:
    """Rows for every batch that begins in the ranges, and for one that reaches into the first of a partition."""
    with asyncio.Runner() as runner:
        client = RawClient(bootstrap, client_id="penstock-audit")
        runner.run(client.start())
        try:
            for wanted in ranges:
                yield from _Scan(runner, client, wanted).rows()
        finally:
            runner.run(client.stop())


def _table(rows: list[_Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


class _Scan:
    """One range of one partition."""

    def __init__(self, runner: asyncio.Runner, client: RawClient, wanted: ScanRange) -> None:
        self._runner = runner
        self._client = client
        self._wanted = wanted
        self._place = 0

    def rows(self) -> Iterator[pa.RecordBatch]:
        offset, end = self._wanted.start, self._wanted.end
        empty = 0
        while offset < end:
            data = self._fetch(offset)
            rows, after = self._read(data, offset) if data is not None else ([], offset)
            if rows:
                yield _table(rows)
            if after > offset:
                offset, empty = after, 0
                continue
            empty += 1
            if data is not None and not len(data) and empty < _EMPTY_TRIES:
                continue
            resumed = self._find_readable(offset)
            yield _table([self._problem(offset, resumed)])
            offset, empty = resumed, 0

    def _fetch(self, offset: int, *, certain: bool = True) -> memoryview | None:
        """Bytes from the batch that holds `offset` on; None where the broker cannot read them (`certain`: says so
        twice)."""
        return self._runner.run(self._fetch_patiently(offset, 1 if certain else 0))

    async def _fetch_patiently(self, offset: int, doubts: int) -> memoryview | None:
        topic, partition = self._wanted.topic, self._wanted.partition
        tries = 0
        while True:
            try:
                batches = await self._client.fetch_batches(topic, partition, offset, max_bytes=_FETCH_BYTES)
                return batches.data
            except BrokerError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    tp = TopicPartition(topic, partition)
                    first = (await self._client.list_offsets({tp: EARLIEST}))[tp].offset
                    if first <= offset:
                        return None
                    offset = first  # retention came by meanwhile
                    continue
                tries += 1
                if error.code in _DAMAGE and tries > doubts:
                    return None
                if not error.retriable or tries > 60:
                    raise
                await asyncio.sleep(0.5)

    def _read(self, data: memoryview, offset: int) -> tuple[list[_Row], int]:
        """Rows of an answer, and the offset behind them. Stops where bytes are no batch."""
        rows: list[_Row] = []
        after = offset
        try:
            for pos, header in iter_headers(data):
                if header.last_offset_delta < 0 or header.base_offset < 0 or not self._is_plausible(header, after):
                    break
                after = max(after, header.next_offset)
                if header.base_offset >= self._wanted.end:
                    break
                if not self._place and self._belongs_before(header):
                    continue
                rows.append(self._row(data, pos, header))
        except CorruptBatch:
            pass  # what came before it counts; the next fetch begins with it
        return rows, after

    def _is_plausible(self, header: BatchHeader, after: int) -> bool:
        """Offsets are not under the checksum; a batch far behind the range is a flipped bit, not a gap."""
        return header.base_offset <= max(self._wanted.end, after) + (1 << 31)

    def _belongs_before(self, header: BatchHeader) -> bool:
        """A batch over the edge of two ranges is counted where it begins. Only until the first batch of this one:
        lower offsets behind it are what an audit looks for."""
        if self._wanted.is_first:
            return header.next_offset <= self._wanted.start
        return header.base_offset < self._wanted.start

    def _row(self, data: memoryview, pos: int, header: BatchHeader) -> _Row:
        problem = None if crc_is_valid(data, pos, header) else CRC
        self._place += 1
        return (
            self._wanted.topic,
            self._wanted.partition,
            self._wanted.start,
            self._place,
            header.base_offset,
            header.next_offset,
            header.record_count,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.partition_leader_epoch,
            _control(data, pos, header) if problem is None else NOT_CONTROL,
            header.is_transactional,
            header.timestamp_type,
            header.base_timestamp,
            header.max_timestamp,
            header.size_bytes,
            problem,
        )

    def _problem(self, first: int, end: int) -> _Row:
        self._place += 1
        where = (self._wanted.topic, self._wanted.partition, self._wanted.start, self._place, first, end)
        return (*where, 0, -1, -1, -1, -1, NOT_CONTROL, False, 0, 0, 0, 0, UNREADABLE)

    def _find_readable(self, damaged: int) -> int:
        """The first offset behind the damage from which batches can be read again; the end if there is none."""
        low, step, end = damaged, 1, self._wanted.end
        while low + step < end and not self._reads(damaged, low + step):
            low, step = low + step, step * 2
        high = min(low + step, end)
        while high - low > 1:
            middle = (low + high) // 2
            if self._reads(damaged, middle):
                high = middle
            else:
                low = middle
        return high

    def _reads(self, damaged: int, offset: int) -> bool:
        data = self._fetch(offset, certain=False)
        if not data:
            return False
        try:
            header = next((header for _, header in iter_headers(data)), None)
        except CorruptBatch:
            return False
        return (
            header is not None and damaged < header.base_offset < self._wanted.end and header.last_offset_delta >= 0
        )


def _control(data: memoryview, pos: int, header: BatchHeader) -> int:
    """What a transaction marker says; its key is a version and a type."""
    if not header.is_control:
        return NOT_CONTROL
    try:
        key = read_records(data, pos)[0].key or b""
    except (CorruptBatch, IndexError):
        return OTHER_CONTROL
    kind = int.from_bytes(key[2:4], "big") if len(key) >= 4 else OTHER_CONTROL
    return kind if kind in (ABORT, COMMIT) else OTHER_CONTROL
