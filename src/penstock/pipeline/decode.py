"""Whole record batches into Arrow columns: payloads joined, scanned once, copied once. No record becomes an object.

Small batches are joined before they are scanned, so a topic of single-record batches does not pay per batch for
what is done per column.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.pipeline.kernels import Array, gather, scan_batches, scan_headers
from penstock.pipeline.schema import CORRUPT_COLUMN, HEADER_TYPE, arrow_schema
from penstock.records.batch import HEADER_BYTES, LOG_APPEND_TIME, BatchHeader, CorruptBatch, crc_is_valid
from penstock.records.compression import decompress

_SEQUENCE_MASK = 0x7FFFFFFF  # sequence numbers wrap from 2³¹ − 1 to 0


class BatchDecoder:
    """Collects batches of one partition with `add`, gives their rows with `take`."""

    def __init__(
        self, topic: str, partition: int, *, headers: bool, batch_info: bool, report_corrupt: bool = False
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._headers = headers
        self._batch_info = batch_info
        self._report_corrupt = report_corrupt
        self._schema = arrow_schema(headers=headers, batch_info=batch_info, corrupt=report_corrupt)
        self._batches: list[BatchHeader] = []
        self._payloads: list[Any] = []
        self.row_count = 0
        self.size_bytes = 0

    def add(self, data: memoryview, pos: int, header: BatchHeader) -> None:
        """Raises `CorruptBatch` when the bytes are not what their checksum says."""
        where = f"{self._topic}-{self._partition} at offset {header.base_offset}"
        if not crc_is_valid(data, pos, header):
            raise CorruptBatch(f"{where}: the batch does not match its checksum")
        payload: Any = data[pos + HEADER_BYTES : pos + header.size_bytes]
        if header.codec:
            payload = decompress(header.codec, payload)
        if not 0 <= header.record_count <= len(payload):
            raise CorruptBatch(f"{where}: {header.record_count} records cannot fit into {len(payload)} bytes")
        self._batches.append(header)
        self._payloads.append(payload)
        self.row_count += header.record_count
        self.size_bytes += len(payload)

    def take(self, start_offset: int, end_offset: int) -> list[pa.RecordBatch]:
        """Rows of what was added with offsets in [start, end), if there are any."""
        batches, payloads = self._batches, self._payloads
        self._batches, self._payloads = [], []
        self.row_count = self.size_bytes = 0
        try:
            rows = self._decode(batches, payloads, start_offset, end_offset)
        except CorruptBatch:
            if not self._report_corrupt:
                raise
            return self._decode_each(batches, payloads, start_offset, end_offset)
        return [] if rows is None else [rows]

    def _decode_each(
        self, batches: list[BatchHeader], payloads: list[Any], start_offset: int, end_offset: int
    ) -> list[pa.RecordBatch]:
        """One of them is malformed: batch by batch, with a row in the place of those that are."""
        found = []
        for header, payload in zip(batches, payloads, strict=True):
            try:
                rows = self._decode([header], [payload], start_offset, end_offset)
            except CorruptBatch as error:
                rows = self.corrupt_row(header, str(error))
            if rows is not None:
                found.append(rows)
        return found

    def corrupt_row(self, header: BatchHeader, why: str) -> pa.RecordBatch:
        """The row that stands for a batch that cannot be read."""
        row = {
            "topic": self._topic,
            "partition": self._partition,
            "offset": header.base_offset,
            "timestamp": header.base_timestamp * 1000,
            "timestampType": header.timestamp_type,
            "leaderEpoch": header.partition_leader_epoch,
            "producerId": header.producer_id,
            "producerEpoch": header.producer_epoch,
            "sequence": header.base_sequence,
            CORRUPT_COLUMN: why,
        }
        return pa.RecordBatch.from_arrays(
            [pa.array([row.get(field.name)], field.type) for field in self._schema], schema=self._schema
        )

    def _decode(
        self, batches: list[BatchHeader], payloads: list[Any], start_offset: int, end_offset: int
    ) -> pa.RecordBatch | None:
        rows = sum(header.record_count for header in batches)
        if not rows:
            return None
        buf = np.frombuffer(payloads[0] if len(payloads) == 1 else b"".join(payloads), dtype=np.uint8)
        counts = np.array([header.record_count for header in batches], dtype=np.int64)
        ends = np.cumsum(np.array([len(payload) for payload in payloads], dtype=np.int64))
        fields = np.empty((rows, 8), dtype=np.int64)
        found = scan_batches(buf, counts, ends, fields)
        if found < 0:
            offset = batches[-1 - found].base_offset
            raise CorruptBatch(
                f"{self._topic}-{self._partition}: a record of the batch at offset {offset} is malformed"
            )
        offsets = np.repeat(_column(batches, "base_offset"), counts) + fields[:, 1]
        first, last = np.searchsorted(offsets, (start_offset, end_offset))
        if first >= last:
            return None
        rows_wanted = slice(int(first), int(last))
        return self._build(buf, batches, counts, fields, offsets, rows_wanted)

    def _build(
        self, buf: Array, batches: list[BatchHeader], counts: Array, fields: Array, offsets: Array, rows: slice
    ) -> pa.RecordBatch:
        wanted = fields[rows]
        count = wanted.shape[0]
        of_batch = np.repeat(np.arange(len(batches)), counts)[rows]
        types = np.array([header.timestamp_type for header in batches], dtype=np.int32)[of_batch]
        timestamps = _column(batches, "base_timestamp")[of_batch] + wanted[:, 0]
        if types.any():
            timestamps = np.where(types == LOG_APPEND_TIME, _column(batches, "max_timestamp")[of_batch], timestamps)
        columns = [
            binary_of_spans(buf, wanted[:, 2], wanted[:, 3], pa.binary()),
            binary_of_spans(buf, wanted[:, 4], wanted[:, 5], pa.binary()),
            pa.repeat(pa.scalar(self._topic, pa.string()), count),
            pa.array(np.full(count, self._partition, dtype=np.int32)),
            pa.array(offsets[rows]),
            pa.array(timestamps * 1000, type=pa.int64()).view(pa.timestamp("us", tz="UTC")),
            pa.array(types),
        ]
        if self._headers:
            columns.append(_header_column(buf, wanted))
        if self._batch_info:
            columns += _batch_columns(batches, of_batch, wanted[:, 1])
        if self._report_corrupt:
            columns.append(pa.nulls(count, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _column(batches: list[BatchHeader], name: str) -> Array:
    return np.array([getattr(header, name) for header in batches], dtype=np.int64)


def binary_of_spans(buf: Array, starts: Array, lengths: Array, kind: pa.DataType) -> pa.Array:
    """A binary or string array of these spans; a length of -1 is null."""
    nulls = lengths < 0
    data = np.empty(int(np.maximum(lengths, 0).sum()), dtype=np.uint8)
    ends = np.empty(lengths.shape[0] + 1, dtype=np.int32)
    gather(buf, starts, lengths, data, ends)
    validity = None
    null_count = int(nulls.sum())
    if null_count:
        validity = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    buffers = [validity, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, lengths.shape[0], buffers, null_count)


def _header_column(buf: Array, fields: Array) -> pa.Array:
    """Null where a record has no headers, as Spark's own source has it."""
    counts = fields[:, 7]
    spans = np.empty((int(counts.sum()), 4), dtype=np.int64)
    scan_headers(buf, fields, spans)
    try:
        names = binary_of_spans(buf, spans[:, 0], spans[:, 1], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptBatch(f"the name of a record header is not UTF-8: {error}") from None
    values = binary_of_spans(buf, spans[:, 2], spans[:, 3], pa.binary())
    ends = np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(counts, dtype=np.int32)))
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(pa.array(ends), entries, mask=pa.array(counts == 0))


def _batch_columns(batches: list[BatchHeader], of_batch: Array, offset_deltas: Array) -> list[pa.Array]:
    epochs = _column(batches, "partition_leader_epoch")[of_batch].astype(np.int32)
    producers = _column(batches, "producer_id")[of_batch]
    producer_epochs = _column(batches, "producer_epoch")[of_batch].astype(np.int32)
    base = _column(batches, "base_sequence")[of_batch]
    sequences = np.where(base < 0, base, (base + offset_deltas) & _SEQUENCE_MASK).astype(np.int32)
    return [pa.array(epochs), pa.array(producers), pa.array(producer_epochs), pa.array(sequences)]
