"""Closing a log so that the next start needs no recovery. Blocking."""

import errno
import os
from typing import TYPE_CHECKING

from penstock.log.producer_snapshot import encode_snapshot
from penstock.log.rebuild import SNAPSHOT_SUFFIX

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


def close_log(log: "PartitionLog") -> None:
    """Completes the indexes, writes the producer snapshot of the log's end, syncs all and lets go of the files.

    Raises OSError when there is no room for that: then the shutdown is no clean one.
    """
    directory = log.directory
    active = log.active
    assert active is not None
    if log.clean_end_offset != log.end_offset:
        active.flush_indexes(directory.disk, directory.cache, complete=True)
        log.unsynced.add_small_file(f"{log.end_offset:020d}{SNAPSHOT_SUFFIX}", encode_snapshot(log.producers))
        log.unsynced.add_closed(active)
        log.flush()
        if log.lacks_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), log.path)
        _remove_old_snapshots(log)
        log.clean_end_offset = log.end_offset
    for segment in log.segments:
        directory.files.release(segment)


def _remove_old_snapshots(log: "PartitionLog") -> None:
    """Keeps those at the start of a segment and the one just written."""
    keep = {segment.base_offset for segment in log.segments} | {log.end_offset}
    for name in log.directory.disk.list_dir(log.path):
        if name.endswith(SNAPSHOT_SUFFIX) and int(name[: -len(SNAPSHOT_SUFFIX)]) not in keep:
            log.directory.disk.remove(f"{log.path}/{name}")
