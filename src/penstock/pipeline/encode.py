"""Arrow columns into whole record batches, one partition after the other. The counterpart of `decode`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.kernels import Array, choose_partitions, encode_records
from penstock.records.batch import HEADER, HEADER_BYTES, LENGTH_BYTES, MAGIC, TRANSACTIONAL_BIT, patch_crc
from penstock.records.compression import Codec, compress

_NOTHING = np.empty(0, dtype=np.int32)
_NO_BYTES = np.empty(0, dtype=np.uint8)


class Payload(NamedTuple):
    """Encoded records of one partition, and what their batch's header needs."""

    partition: int
    record_count: int
    base_timestamp: int
    max_timestamp: int
    records: Any


class Bytes(NamedTuple):
    """A binary or string column as numpy sees it."""

    data: Array
    ends: Array
    present: Array


class Rows(NamedTuple):
    """The rows of one Arrow batch, ready to be written."""

    keys: Bytes
    values: Bytes
    timestamps: Array
    header_ends: Array
    names: Bytes
    contents: Bytes
    partitions: Array | None


def read_rows(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """Columns by name: `value` is needed; `key`, `headers`, `timestamp` and `partition` may be there."""
    names = set(batch.schema.names)
    if "value" not in names:
        raise PipelineError('a column "value" of type binary or string is needed')
    count = batch.num_rows
    values = _bytes(batch.column("value"), "value")
    keys = _bytes(batch.column("key"), "key") if "key" in names else _all_null(count)
    timestamps = np.full(count, now_ms, dtype=np.int64)
    if "timestamp" in names:
        column = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        timestamps = np.asarray(column.fill_null(now_ms))
    partitions = None
    if "partition" in names:
        column = batch.column("partition")
        if column.null_count < count:
            partitions = np.asarray(column.cast(pa.int32()).fill_null(-1))
    header_ends, header_names, contents = _headers(batch.column("headers") if "headers" in names else None)
    return Rows(keys, values, timestamps, header_ends, header_names, contents, partitions)


def _bytes(column: pa.Array, name: str) -> Bytes:
    if (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_large_binary(column.type)
    ):
        column = column.cast(pa.binary())
    if pa.types.is_null(column.type):
        return _all_null(len(column))
    if not pa.types.is_binary(column.type):
        raise PipelineError(f'the column "{name}" is {column.type}; make it binary or string')
    _, ends, data = column.buffers()
    count = len(column)
    first = column.offset
    bounds = np.frombuffer(ends, dtype=np.int32)[first : first + count + 1] if count else np.zeros(1, dtype=np.int32)
    present = np.asarray(column.is_valid())
    return Bytes(np.frombuffer(data, dtype=np.uint8) if data is not None else _NO_BYTES, bounds, present)


def _all_null(count: int) -> Bytes:
    return Bytes(_NO_BYTES, np.zeros(count + 1, dtype=np.int32), np.zeros(count, dtype=bool))


def _headers(column: pa.Array | None) -> tuple[Array, Bytes, Bytes]:
    if column is None or column.null_count == len(column):
        return _NOTHING, _all_null(0), _all_null(0)
    if not pa.types.is_list(column.type) or not pa.types.is_struct(column.type.value_type):
        raise PipelineError(f'the column "headers" is {column.type}; make it array<struct<key:string,value:binary>>')
    lengths = np.asarray(column.value_lengths().fill_null(0)).astype(np.int32)
    ends = np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)))
    entries = column.flatten()
    return ends, _bytes(entries.field("key"), "headers.key"), _bytes(entries.field("value"), "headers.value")


def partition_rows(rows: Rows, partition_count: int, spare: int) -> Iterator[tuple[int, Array]]:
    """Row numbers by partition, in their order. `spare` takes rows without a key."""
    chosen = _partitions_of(rows, partition_count, spare)
    most = int(chosen.max())
    if most >= partition_count:
        raise PipelineError(f"a row names partition {most}, but the topic has {partition_count}")
    if most == chosen.min():
        yield most, np.arange(len(chosen))
        return
    # Sorted by counting if the type is small.
    order = np.argsort(chosen.astype(np.uint16) if most < 1 << 16 else chosen, kind="stable")
    ends = np.cumsum(np.bincount(chosen, minlength=most + 1))
    for number in np.unique(chosen):
        first = ends[number - 1] if number else 0
        yield int(number), order[first : ends[number]]


def _partitions_of(rows: Rows, partition_count: int, spare: int) -> Array:
    given = rows.partitions
    if given is not None and given.min() >= 0:
        return given
    chosen = np.empty(len(rows.timestamps), dtype=np.int32)
    choose_partitions(rows.keys.data, rows.keys.ends, rows.keys.present, partition_count, spare, chosen)
    return chosen if given is None else np.where(given >= 0, given, chosen)


def encode_payloads(rows: Rows, partition: int, order: Array, max_bytes: int) -> Iterator[Payload]:
    """The records of these rows, in pieces of at most `max_bytes`."""
    first = 0
    while first < len(order):
        base = int(rows.timestamps[order[first]])
        out = np.empty(max_bytes, dtype=np.uint8)
        after, size = encode_records(
            order,
            first,
            rows.timestamps,
            base,
            *rows.keys,
            *rows.values,
            rows.header_ends,
            rows.names.data,
            rows.names.ends,
            *rows.contents,
            out,
        )
        if after == first:
            raise PipelineError(
                f"a record of more than {max_bytes} bytes does not fit into a batch; raise the topic's "
                "max.message.bytes and the option maxBatchBytes"
            )
        newest = int(rows.timestamps[order[first:after]].max())
        yield Payload(partition, after - first, base, newest, memoryview(out)[:size])
        first = after


def finish_batch(
    payload: Payload, codec: Codec, producer_id: int, producer_epoch: int, sequence: int, *, transactional: bool
) -> bytearray:
    records = payload.records
    if codec:
        records = compress(codec, records)
    out = bytearray(HEADER_BYTES)
    out += records
    attributes = int(codec) | (TRANSACTIONAL_BIT if transactional else 0)
    length, last = len(out) - LENGTH_BYTES, payload.record_count - 1
    times = (payload.base_timestamp, payload.max_timestamp)
    producer = (producer_id, producer_epoch, sequence)
    HEADER.pack_into(out, 0, 0, length, -1, MAGIC, 0, attributes, last, *times, *producer, payload.record_count)
    patch_crc(out, 0, len(out))
    return out
