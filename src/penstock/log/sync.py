"""What must reach stable storage, decided on the loop, done in the pool.

`unsynced.plan_sync` collects a plan on the loop; `SyncPlan.run` blocks in the pool and touches only files;
`unsynced.complete_sync` publishes the result on the loop. Content is synced before names, and everything a
recovery point may rest on (closed segments with their indexes, epochs, producer snapshots) before it moves.
"""

import errno
from typing import TYPE_CHECKING

from penstock.log.checkpoints import LEADER_EPOCH_FILE, encode_epochs, write_atomically
from penstock.log.config import MAX_LONG
from penstock.log.epochs import LeaderEpochs
from penstock.log.segment import Segment
from penstock.model.ports import Disk, DiskFile

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

NO_SPACE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT})


class SyncPlan:
    __slots__ = (
        "closed",
        "cut_offset",
        "directories",
        "end_offset",
        "epochs_version",
        "generation",
        "log",
        "no_space",
        "path",
        "segments",
        "small_files",
    )

    def __init__(self, log: "PartitionLog", end_offset: int, generation: int) -> None:
        self.log = log
        self.path = log.path
        self.end_offset = end_offset
        """Everything below is on stable storage once the plan has run."""
        self.generation = generation
        """A truncation in between makes the plan's result meaningless."""
        self.cut_offset = MAX_LONG
        """The lowest start of the segments in which the log was cut since: older snapshots still hold."""
        self.epochs_version = -1
        self.segments: list[tuple[Segment, int, DiskFile | None]] = []
        """Segment, its size when planned, and its file if open."""
        self.closed: list[Segment] = []
        """Segments whose indexes must be durable too."""
        self.small_files: list[tuple[str, bytes]] = []
        self.directories: list[str] = []
        self.no_space = False
        """The disk was too full for the small files; nothing was synced, and the plan may be made again."""

    @property
    def has_work(self) -> bool:
        return bool(self.segments or self.small_files or self.directories)

    def run(self, disk: Disk) -> None:
        """Blocking. Raises OSError when something could not be made durable: the log directory has failed then."""
        if not self._write_small_files(disk):
            return
        for segment, _, file in self.segments:
            try:
                (file or disk.open(segment.path + ".log")).sync()
            except FileNotFoundError:
                if self.generation == self.log.generation:  # otherwise it was cut off meanwhile
                    raise
        for segment in self.closed:
            for suffix in (".index", ".timeindex", ".txnindex"):
                _sync_if_there(disk, segment.path + suffix)
        for path in self.directories:
            disk.sync_dir(path)

    def add_epochs(self, epochs: LeaderEpochs) -> None:
        self.epochs_version = epochs.version
        self.small_files.append((LEADER_EPOCH_FILE, encode_epochs(epochs.entries())))

    @property
    def void_snapshots(self) -> set[int]:
        """Offsets of those behind the cut, when the log was truncated meanwhile: they describe what is gone."""
        offsets = [int(name[: -len(".snapshot")]) for name, _ in self.small_files if name.endswith(".snapshot")]
        return {offset for offset in offsets if offset > self.cut_offset}

    def discard_snapshots(self, disk: Disk) -> None:
        """The log was truncated meanwhile."""
        snapshots = [f"{offset:020d}.snapshot" for offset in self.void_snapshots]
        self.small_files = [each for each in self.small_files if each[0] not in snapshots]
        for name in snapshots:
            if disk.exists(f"{self.path}/{name}"):
                disk.remove(f"{self.path}/{name}")

    def _write_small_files(self, disk: Disk) -> bool:
        try:
            if self.log.directory.checkpoints_urgent:
                self.log.directory.write_checkpoints()
            self.log.directory.write_gaps(self.log.name)
            for name, content in self.small_files:
                if self.log.is_deleted:  # a new topic may have taken the path
                    return False
                write_atomically(disk, f"{self.path}/{name}", content)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise
            self.no_space = True
            return False
        return True


def _sync_if_there(disk: Disk, path: str) -> None:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return
    try:
        file.sync()
    finally:
        file.close()
