"""What a client's batch must be before it may enter a log.

The common case looks only at the header and the CRC. Records are decoded only where the topic asks for it:
another codec than the producer chose, or a compacted topic that needs keys. A refusal is a value.
"""

from typing import Any, NamedTuple

from penstock.log.config import KEEP_CODEC, LogConfig
from penstock.model.errors import ErrorCode, Refusal
from penstock.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_COVERS_FROM,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_BYTES,
    LENGTH_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    parse_header,
    patch_log_append_time,
)
from penstock.records.builder import BatchBuilder
from penstock.records.checksum import crc32c
from penstock.records.compression import Codec
from penstock.records.reader import read_records

MAX_CODEC = int(Codec.ZSTD)
_make: Any = tuple.__new__  # a named tuple without its Python-level constructor


class PreparedBatch(NamedTuple):
    """A batch that may be appended as it is, and its header."""

    data: bytearray | memoryview
    header: BatchHeader


def check_client_batch(data: bytearray | memoryview, config: LogConfig, now_ms: int) -> BatchHeader | Refusal:
    """The header of the one batch in `data`, or why it may not be appended."""
    size = len(data)
    if size < HEADER_BYTES:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, f"{size} bytes are too few for a record batch")
    header: BatchHeader = _make(BatchHeader, HEADER.unpack_from(data))
    (
        _,
        length,
        _,
        magic,
        crc,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        sequence,
        count,
    ) = header
    if magic != MAGIC:
        return Refusal(ErrorCode.INVALID_RECORD, f"batch format version {magic} is not supported, send 2")
    if length + LENGTH_BYTES != size:
        return _refuse_length(data, length + LENGTH_BYTES)
    if size > config.max_message_bytes:
        return _refuse_size(size, config)
    if crc32c(memoryview(data)[CRC_COVERS_FROM:]) != crc:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the CRC of the batch does not match its content")
    if attributes & CODEC_MASK > MAX_CODEC:
        return Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {attributes & CODEC_MASK} is not known")
    if attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        return Refusal(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if count < 1 or last_delta != count - 1:
        return Refusal(ErrorCode.INVALID_RECORD, f"{count} records do not match a last offset delta of {last_delta}")
    if producer_id >= 0 and sequence < 0:
        return Refusal(ErrorCode.INVALID_RECORD, f"producer {producer_id} sent a batch without sequence number")
    if not config.log_append_time and (
        max_timestamp - now_ms > config.message_timestamp_after_max_ms
        or (base_timestamp >= 0 and now_ms - base_timestamp > config.message_timestamp_before_max_ms)
    ):
        return _refuse_timestamp(base_timestamp, max_timestamp, now_ms, config)
    return header


def needs_preparation(header: BatchHeader, config: LogConfig) -> bool:
    return (
        config.log_append_time
        or config.is_compacted
        or (config.target_codec != KEEP_CODEC and config.target_codec != header.codec)
    )


def prepare_batch(
    data: bytearray | memoryview, header: BatchHeader, config: LogConfig, now_ms: int
) -> PreparedBatch | Refusal:
    """Makes a checked batch what the topic wants: keyed, in the topic's codec, with the broker's time."""
    if config.is_compacted:
        refusal = _check_keys(data)
        if refusal is not None:
            return refusal
    if config.target_codec != KEEP_CODEC and config.target_codec != header.codec:
        try:
            data = recompress(data, header, config)
        except CorruptBatch as error:
            return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
        header = parse_header(data)
        if header.size_bytes > config.max_message_bytes:
            return _refuse_size(header.size_bytes, config)
    if config.log_append_time:
        patch_log_append_time(data, 0, header, now_ms)
        header = parse_header(data)
    return PreparedBatch(data, header)


def recompress(data: bytearray | memoryview, header: BatchHeader, config: LogConfig) -> bytearray:
    """The same records, producer and times in the topic's codec."""
    builder = BatchBuilder(
        config.target_codec,
        base_timestamp=header.base_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        transactional=header.is_transactional,
        compression_level=config.compression_level(config.target_codec),
    )
    for record in read_records(data):
        builder.append(record.key, record.value, record.headers, record.timestamp)
    if builder.record_count != header.record_count:
        raise CorruptBatch(f"{header.record_count} records announced, {builder.record_count} found")
    return builder.build()


def _check_keys(data: bytearray | memoryview) -> Refusal | None:
    try:
        records = read_records(data)
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if any(record.key is None for record in records):
        return Refusal(ErrorCode.INVALID_RECORD, "a compacted topic needs a key in every record")
    return None


def _refuse_length(data: bytearray | memoryview, size_bytes: int) -> Refusal:
    if HEADER_BYTES <= size_bytes < len(data):
        return Refusal(ErrorCode.INVALID_RECORD, "a partition of a Produce request may hold only one batch")
    return Refusal(ErrorCode.CORRUPT_MESSAGE, f"the batch says {size_bytes} bytes but {len(data)} were sent")


def _refuse_size(size_bytes: int, config: LogConfig) -> Refusal:
    return Refusal(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the batch of {size_bytes} bytes is larger than max.message.bytes = {config.max_message_bytes}",
    )


def _refuse_timestamp(base_timestamp: int, max_timestamp: int, now_ms: int, config: LogConfig) -> Refusal:
    return Refusal(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamps from {base_timestamp} to {max_timestamp} are not within "
        f"{config.message_timestamp_before_max_ms} ms before and {config.message_timestamp_after_max_ms} ms after "
        f"the broker's time {now_ms}",
    )
