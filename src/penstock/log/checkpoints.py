"""The small text files beside the segments, in Kafka's formats, replaced atomically.

A checkpoint is written to `<name>.tmp`, synced, and renamed over the old one; the caller syncs the directory
where the new content must survive. A damaged checkpoint is reported and treated as absent: all of them only
save work or can be rebuilt from the segments.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.model.ids import format_uuid, parse_uuid
from penstock.model.ports import Disk

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
TOPIC_ID_FILE = "topic-id-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"

_DIRECTORY_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")
_LOGGER = logging.getLogger(__name__)


class PartitionName(NamedTuple):
    topic: str
    partition: int


def parse_directory_name(name: str) -> PartitionName | None:
    """Topic and partition of a log's directory; None for anything else, such as one marked for deletion."""
    match = _DIRECTORY_NAME.fullmatch(name)
    if match is None or name.endswith(("-delete", "-stray", "-future")):
        return None
    return PartitionName(match[1], int(match[2]))


def write_atomically(disk: Disk, path: str, content: bytes) -> None:
    """Blocking. Replaces `path` with synced content; its name is durable after `sync_dir`."""
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, (content,))
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)


def read_whole(disk: Disk, path: str) -> bytes | None:
    """The content of a small file, or None when there is no such file."""
    try:
        file = disk.open(path, writable=False)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def encode_offsets(offsets: Iterable[tuple[str, int]]) -> bytes:
    """Kafka's offset checkpoint from offsets by directory name: version, count, `topic partition offset` lines."""
    return _encode_by_name(offsets)


def _encode_by_name(values: Iterable[tuple[str, int | str]]) -> bytes:
    lines = []
    for name, value in values:
        topic, _, partition = name.rpartition("-")
        lines.append(f"{topic} {partition} {value}")
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_offsets(content: bytes) -> dict[str, int]:
    """Offsets by directory name (`topic-partition`)."""
    offsets = {}
    for line in _checkpoint_lines(content):
        topic, partition, offset = line.split()
        offsets[f"{topic}-{int(partition)}"] = int(offset)
    return offsets


def read_offsets(disk: Disk, path: str) -> Mapping[str, int]:
    content = read_whole(disk, path)
    if content is None:
        return {}
    try:
        return decode_offsets(content)
    except ValueError as error:
        _LOGGER.warning("%s is damaged (%s); it is ignored and will be rewritten", path, error)
        return {}


def encode_topic_ids(ids: Iterable[tuple[str, bytes]]) -> bytes:
    """Our own, in the form of Kafka's offset checkpoints: `topic partition topic_id` lines."""
    return _encode_by_name((name, format_uuid(topic_id)) for name, topic_id in ids)


def read_topic_ids(disk: Disk, path: str) -> dict[str, bytes]:
    """Topic ids by directory name; of a damaged file, none."""
    ids = {}
    try:
        for line in _checkpoint_lines(read_whole(disk, path) or b"0\n0\n"):
            topic, partition, topic_id = line.split()
            ids[f"{topic}-{int(partition)}"] = parse_uuid(topic_id)
    except ValueError as error:
        _LOGGER.warning("%s is damaged (%s); it is ignored and will be rewritten", path, error)
        return {}
    return ids


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Kafka's leader epoch checkpoint: version, count, then `epoch start_offset` lines."""
    lines = [f"{epoch} {start_offset}" for epoch, start_offset in entries]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


def decode_epochs(content: bytes) -> list[tuple[int, int]]:
    entries = []
    for line in _checkpoint_lines(content):
        epoch, start_offset = line.split()
        entries.append((int(epoch), int(start_offset)))
    return entries


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {format_uuid(topic_id)}".encode()


def decode_partition_metadata(content: bytes) -> bytes:
    fields = dict(line.split(": ", 1) for line in content.decode().splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise ValueError("not a version 0 partition.metadata")
    return parse_uuid(fields["topic_id"].strip())


def read_topic_id(disk: Disk, path: str) -> bytes | None:
    """Whose the partition directory at `path` is; None where it does not tell."""
    content = read_whole(disk, f"{path}/{PARTITION_METADATA_FILE}")
    try:
        return decode_partition_metadata(content) if content else None
    except ValueError:
        return None


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return b'{"version":0,"brokerEpoch":%d}' % broker_epoch


def decode_clean_shutdown(content: bytes | None) -> int:
    """The epoch of the broker that shut down; -1 when the file does not say (older ones are empty)."""
    try:
        epoch = json.loads(content or b"{}").get("brokerEpoch", -1)
    except (ValueError, AttributeError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def _checkpoint_lines(content: bytes) -> list[str]:
    lines = content.decode().splitlines()
    if len(lines) < 2 or lines[0].strip() != "0":
        raise ValueError("not a version 0 checkpoint")
    entries = [line for line in lines[2:] if line.strip()]
    if len(entries) != int(lines[1]):
        raise ValueError(f"{lines[1]} entries announced, {len(entries)} found")
    return entries
