"""What may go: by time, by size, or because the log start offset has passed it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog
    from penstock.log.segment import Segment


def expired_end_offset(log: "PartitionLog", now_ms: int, committed_end_offset: int) -> int:
    """The end of the prefix of whole segments that time or size has expired; the log start when there is none.

    A log whose policy is only `compact` expires nothing.
    """
    config = log.config
    if "delete" not in config.cleanup_policy:
        return log.log_start_offset
    disk = log.directory.disk
    segments = log.segments
    surplus_bytes = log.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else 0
    expired_end = log.log_start_offset
    for index, segment in enumerate(segments):
        is_active = index + 1 == len(segments)
        too_big = not is_active and surplus_bytes >= segment.size_bytes > 0
        too_old = (
            config.retention_ms >= 0
            and segment.size_bytes > 0
            and now_ms - segment.retention_timestamp(disk) > config.retention_ms
        )
        end_offset = log.end_offset if is_active else segments[index + 1].base_offset
        if not (too_big or too_old) or end_offset > committed_end_offset:
            break
        surplus_bytes -= segment.size_bytes
        expired_end = end_offset
    return expired_end


def delete_segments_below(log: "PartitionLog", start_offset: int) -> int:
    """Hands segments that lie wholly below `start_offset` to deferred deletion; never the active one.

    They wait until the producer snapshot that replaces them is durable; the sync that makes it so takes them then. On
    a full disk the newest snapshot waits for the room that they make: they go as far as an older one replaces them,
    and where none does, their indexes make room for it.
    """
    segments = log.segments
    passed = 0
    while passed + 1 < len(segments) and segments[passed + 1].base_offset <= start_offset:
        passed += 1
    if passed == 0 or log.unsynced.under_way:
        return 0
    if log.unsynced.has_files and not log.lacks_room:
        if log.directory.commit is not None:
            log.directory.commit.request(log)
        return 0
    keep = passed
    while keep and log.unsynced.waits(f"{segments[keep].base_offset:020d}.snapshot"):
        keep -= 1
    if keep == 0:
        _remove_indexes(log, segments[:passed])
        return 0
    log.segments = segments[keep:]
    log.local_log_start_offset = max(log.local_log_start_offset, log.segments[0].base_offset)
    log.log_start_offset = max(log.log_start_offset, log.local_log_start_offset)
    for segment in segments[:keep]:
        log.size_bytes -= segment.size_bytes
        log.unsynced.forget_closed(segment)
        log.directory.files.release(segment)
        log.directory.cache.forget(segment.path + ".index")
        log.directory.deletions.delete_segment(log, segment.path)
    return keep


def _remove_indexes(log: "PartitionLog", segments: "Sequence[Segment]") -> None:
    """Nobody reads below the log start. A recovery that walks these segments makes them again."""
    directory = log.directory
    removed = 0
    for segment in segments:
        directory.cache.forget(segment.path + ".index")
        for suffix in (".index", ".timeindex", ".txnindex"):
            try:
                directory.disk.remove(segment.path + suffix)
                removed += 1
            except FileNotFoundError:
                pass
            except OSError as error:
                directory.fail(error)
                return
    if removed and directory.commit is not None:
        directory.commit.request(log)
