"""Ranges of offsets as Arrow record batches, on an executor: one thread fetches, the caller decodes.

Fetching runs ahead by a few answers, so that the broker, the network and the decoder work at the same time.
"""

import asyncio
import threading
from collections.abc import Iterator
from queue import Full, Queue

import pyarrow as pa

from penstock.client.consumer.partitions import Chunk
from penstock.client.errors import ClientError
from penstock.client.raw import RawBatches, RawClient
from penstock.client.types import EARLIEST, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.pipeline.decode import BatchDecoder
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.formats.columns import TypedColumns, plain_schema
from penstock.pipeline.options import SourceOptions
from penstock.pipeline.planning import OffsetRange, report_loss
from penstock.records.batch import CorruptBatch, iter_headers

_TOPIC_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 500
_AHEAD = 2  # answers that wait to be decoded
_ROWS_PER_BATCH = 10_000
_BYTES_PER_BATCH = 4 << 20
_STALL_SECONDS = 60.0
_RETRY_SECONDS = 0.05


class _Fetched:
    """One answer, and where the next begins. `wanted` is the range with its start moved behind lost records."""

    __slots__ = ("batches", "wanted")

    def __init__(self, wanted: OffsetRange, batches: RawBatches) -> None:
        self.wanted = wanted
        self.batches = batches


def read_ranges(options: SourceOptions, ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Every visible record of the ranges, in order within each. Raises `DataLost`, `PipelineError`."""
    rows = _read_plain(options, ranges)
    if options.formats.is_plain:
        return rows
    return map(TypedColumns(options.formats, plain_schema(options)).apply, rows)


def _read_plain(options: SourceOptions, ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
    fetcher = _Fetcher(options, ranges)
    fetcher.start()
    try:
        decoder: BatchDecoder | None = None
        current: OffsetRange | None = None
        while (fetched := fetcher.next()) is not None:
            wanted = fetched.wanted
            if decoder is None or current != wanted:
                if decoder is not None and current is not None:
                    yield from decoder.take(current.start, current.end)
                decoder = _make_decoder(options, wanted)
            current = wanted
            yield from _decode(decoder, fetched, options)
        if decoder is not None and current is not None:
            yield from decoder.take(current.start, current.end)
    finally:
        fetcher.stop()


def _make_decoder(options: SourceOptions, wanted: OffsetRange) -> BatchDecoder:
    return BatchDecoder(
        wanted.topic,
        wanted.partition,
        headers=options.headers,
        batch_info=options.batch_info,
        report_corrupt=options.report_corrupt,
    )


def _decode(decoder: BatchDecoder, fetched: _Fetched, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    wanted, batches = fetched.wanted, fetched.batches
    chunk = Chunk(batches.data, batches.aborted if options.isolation_level else None)
    while (found := chunk.next_visible()) is not None:
        pos, header, visible = found
        if not visible or header.next_offset <= wanted.start or header.base_offset >= wanted.end:
            continue
        try:
            decoder.add(batches.data, pos, header)
        except CorruptBatch as error:
            if not options.report_corrupt:
                raise
            yield from decoder.take(wanted.start, wanted.end)
            yield decoder.corrupt_row(header, str(error))
        if decoder.row_count >= _ROWS_PER_BATCH or decoder.size_bytes >= _BYTES_PER_BATCH:
            yield from decoder.take(wanted.start, wanted.end)


class _Fetcher:
    """The thread that asks the brokers. `next` gives answers in order, None at the end, or raises what it met."""

    def __init__(self, options: SourceOptions, ranges: list[OffsetRange]) -> None:
        self._options = options
        self._ranges = ranges
        self._queue: Queue[_Fetched | BaseException | None] = Queue(_AHEAD)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-fetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def next(self) -> _Fetched | None:
        found = self._queue.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=_STALL_SECONDS)

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            asyncio.run(self._fetch_all())
        except Exception as error:  # the edge of the thread: the reader raises it
            end = error
        self._put(end)

    def _put(self, item: "_Fetched | BaseException | None") -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except Full:
                continue
        return False

    async def _fetch_all(self) -> None:
        async with RawClient(self._options.bootstrap, client_id=self._options.client_id) as client:
            for wanted in self._ranges:
                await self._fetch_range(client, wanted)
                if self._stopped.is_set():
                    return

    async def _fetch_range(self, client: RawClient, wanted: OffsetRange) -> None:
        loop, options = asyncio.get_running_loop(), self._options
        offset = wanted.start
        progress_at = loop.time()
        while offset < wanted.end and not self._stopped.is_set():
            try:
                batches = await client.fetch_batches(
                    wanted.topic,
                    wanted.partition,
                    offset,
                    max_bytes=_FETCH_BYTES,
                    max_wait_ms=_FETCH_WAIT_MS,
                    isolation_level=options.isolation_level,
                )
            except ClientError as error:
                if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                    offset = await self._skip_lost(client, wanted, offset)
                    wanted = wanted._replace(start=offset)
                elif error.code in _TOPIC_GONE and await self._is_deleted(client, wanted):
                    report_loss(f"offsets {offset} to {wanted.end - 1} of {_name(wanted)} are gone: {error}", options)
                    return
                elif not error.retriable or loop.time() - progress_at > _STALL_SECONDS:
                    raise
                else:
                    await asyncio.sleep(_RETRY_SECONDS)
                continue
            after = _end_of(batches.data, offset, wanted)
            if after > offset:
                progress_at = loop.time()
                offset = after
                fetched = _Fetched(wanted, batches)
                await loop.run_in_executor(None, self._put, fetched)
            elif loop.time() - progress_at > _STALL_SECONDS:
                raise PipelineError(
                    f"{_name(wanted)} gave no records from offset {offset} for "
                    f"{_STALL_SECONDS:.0f} s, though it is to be read up to {wanted.end}; look at the broker's log"
                )

    async def _skip_lost(self, client: RawClient, wanted: OffsetRange, offset: int) -> int:
        tp = TopicPartition(wanted.topic, wanted.partition)
        first = (await client.list_offsets({tp: EARLIEST}))[tp].offset
        lost_end = min(first, wanted.end) if first > offset else wanted.end
        message = f"offsets {offset} to {lost_end - 1} of {tp.topic}-{tp.partition} are gone"
        message += f" (the partition now begins at {first})" if first > offset else " (the partition is shorter now)"
        report_loss(message, self._options)
        return lost_end

    async def _is_deleted(self, client: RawClient, wanted: OffsetRange) -> bool:
        return not await client.has_topic(wanted.topic)


def _name(wanted: OffsetRange) -> str:
    return f"{wanted.topic}-{wanted.partition}"


def _end_of(data: memoryview, offset: int, wanted: OffsetRange) -> int:
    """The offset behind the last whole batch."""
    try:
        for _, header in iter_headers(data):
            offset = max(offset, header.next_offset)
    except CorruptBatch as error:
        raise PipelineError(
            f"{_name(wanted)} from offset {offset} on is no sequence of batches: {error}",
            hint="`penstock pipeline audit` shows the damage; read around it with startingOffsets and endingOffsets",
        ) from None
    return offset
