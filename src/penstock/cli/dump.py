"""What lies in the files of a log directory, read straight from disk: for looking at a broker that is down.

Each file becomes a stream of rows (`kind` says of what); a row with `problem` says what is wrong with the file.
Nothing is written, and no file is read as a whole but the small ones.
"""

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.cli.record_words import METADATA_TOPIC, describe_record
from penstock.log.checkpoints import parse_directory_name
from penstock.model.ports import Buffer
from penstock.records.batch import HEADER_BYTES, BatchHeader, CorruptBatch, crc_is_valid, parse_header
from penstock.records.compression import Codec
from penstock.records.reader import read_records

Row = dict[str, Any]

_TEXT_FILES = ("checkpoint", "partition.metadata", "meta.properties", "quorum-state", ".kafka_cleanshutdown")
BATCH_FILES = (".log", ".checkpoint")


def dump_file(path: Path, *, records: bool) -> Iterator[Row]:
    """The rows of one file; which kind it is, its name says."""
    suffix = path.suffix
    if suffix in BATCH_FILES:
        yield from _dump_batches(path, records=records)
    elif suffix == ".index":
        yield from _dump_offset_index(path)
    elif suffix == ".timeindex":
        yield from _dump_time_index(path)
    elif suffix == ".txnindex":
        yield from _dump_txn_index(path)
    elif suffix == ".snapshot":
        yield from _dump_producer_snapshot(path)
    elif path.name.endswith(_TEXT_FILES):
        for line in path.read_text(errors="replace").splitlines():
            yield {"kind": "line", "text": line}
    else:
        yield {"kind": "file", "problem": "not a file of a log that this command knows"}


def files_of(path: Path) -> list[Path]:
    """A file by itself; of a directory everything below it, logs in order of their offsets."""
    if path.is_dir():
        return sorted(child for child in path.rglob("*") if child.is_file() and child.name != ".lock")
    return [path]


def _topic_of(path: Path) -> str:
    if path.suffix == ".checkpoint":
        return METADATA_TOPIC
    name = path.parent.name
    if name.endswith("-delete"):
        name = name.rpartition(".")[0]  # topic-partition.uuid-number-delete
    found = parse_directory_name(name)
    return found.topic if found is not None else ""


def _dump_batches(path: Path, *, records: bool) -> Iterator[Row]:
    topic = _topic_of(path)
    size = os.path.getsize(path)
    if size == 0:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            yield from _batches(view, size, topic, records)
        finally:
            view.release()


def _batches(view: memoryview, size: int, topic: str, records: bool) -> Iterator[Row]:
    pos = 0
    next_offset = -1
    while pos < size:
        header, problem = _header_at(view, pos, size)
        if header is None:
            yield {"kind": "tail", "position": pos, "size_bytes": size - pos, "problem": problem}
            return
        row = _batch_row(header, pos)
        if not crc_is_valid(view, pos, header):
            row["problem"] = "CRC mismatch"
        elif header.base_offset < next_offset:
            row["problem"] = f"offsets go back: {next_offset} was due"
        yield row
        if records and "problem" not in row:
            yield from _records(view[pos : pos + header.size_bytes], header, topic)
        next_offset = header.next_offset
        pos += header.size_bytes


def _header_at(view: memoryview, pos: int, size: int) -> tuple[BatchHeader | None, str]:
    if size - pos < HEADER_BYTES:
        return None, f"{size - pos} bytes are too few for a batch"
    try:
        header = parse_header(view, pos)
    except CorruptBatch as error:
        return None, str(error)
    if pos + header.size_bytes > size:
        return None, f"batch of {header.size_bytes} bytes is cut off after {size - pos}"
    return header, ""


def _batch_row(header: BatchHeader, pos: int) -> Row:
    try:
        codec = Codec(header.codec).name.lower()
    except ValueError:
        codec = f"codec {header.codec}"
    row: Row = {
        "kind": "batch",
        "position": pos,
        "size_bytes": header.size_bytes,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "codec": codec,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "timestamp_type": "LogAppendTime" if header.timestamp_type else "CreateTime",
        "crc": header.crc,
    }
    if header.producer_id >= 0:
        row |= {
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
        }
    if header.is_transactional:
        row["transactional"] = True
    if header.is_control:
        row["control"] = True
    return row


def _records(batch: Buffer, header: BatchHeader, topic: str) -> Iterator[Row]:
    try:
        for record in read_records(batch):
            described = describe_record(record, topic, is_control=header.is_control)
            yield {"kind": "record", "offset": record.offset, "timestamp": record.timestamp, **described}
    except CorruptBatch as error:
        yield {"kind": "record", "offset": header.base_offset, "problem": str(error)}


def _base_offset(path: Path) -> int:
    stem = path.name.partition(".")[0]
    return int(stem) if stem.isdigit() else 0


def _dump_offset_index(path: Path) -> Iterator[Row]:
    from penstock.log.offset_index import decode_entries

    content = path.read_bytes()
    entries = decode_entries(content)
    base = _base_offset(path)
    last = -1
    for relative, position in zip(entries.offsets, entries.positions, strict=True):
        if relative == 0 and position == 0 and last >= 0:
            break  # Kafka preallocates an active index: what follows is unused
        row: Row = {"kind": "offset index entry", "offset": base + relative, "position": position}
        if relative < last:
            row["problem"] = "offsets go back"
        last = relative
        yield row
    if len(content) % 8:
        yield {"kind": "tail", "problem": f"{len(content) % 8} bytes behind the last entry"}


def _dump_time_index(path: Path) -> Iterator[Row]:
    from penstock.log.time_index import decode_all

    base = _base_offset(path)
    last = -1
    for timestamp, relative in decode_all(path.read_bytes()):
        if timestamp == 0 and relative == 0 and last >= 0:
            break
        row: Row = {"kind": "time index entry", "timestamp": timestamp, "offset": base + relative}
        if timestamp < last:
            row["problem"] = "timestamps go back"
        last = timestamp
        yield row


def _dump_txn_index(path: Path) -> Iterator[Row]:
    from penstock.log.disk import OsDisk
    from penstock.log.txn_index import read_aborted

    for entry in read_aborted(OsDisk(), str(path)):
        yield {"kind": "aborted transaction", **entry._asdict()}


def _dump_producer_snapshot(path: Path) -> Iterator[Row]:
    from penstock.log.producer_snapshot import CorruptSnapshot, decode_snapshot

    try:
        producers = decode_snapshot(path.read_bytes())
    except CorruptSnapshot as error:
        yield {"kind": "producer snapshot", "problem": str(error)}
        return
    for producer_id, entry in producers.items():
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "producer_epoch": entry.producer_epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": entry.last_offset,
            "last_timestamp": entry.last_timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "transaction_first_offset": entry.current_txn_first_offset,
        }
