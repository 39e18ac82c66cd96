"""What of a log is not durable yet, besides the bytes of its active segment, and who takes it to stable storage.

Changed on the loop. What waits goes with the next plan of a sync; a plan that found no room brings it back. A cut or
retention takes away from what waits, and tells plans under way what their result no longer says.
"""

from itertools import chain
from typing import TYPE_CHECKING

from penstock.log.aborted import renew_indexes
from penstock.log.checkpoints import LEADER_EPOCH_FILE
from penstock.log.rebuild import SNAPSHOT_SUFFIX
from penstock.log.retention import delete_segments_below
from penstock.log.segment import Segment
from penstock.log.sync import SyncPlan

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog


class Unsynced:
    __slots__ = ("_closed", "_small_files", "epochs_written", "names", "under_way")

    def __init__(self) -> None:
        self.names = False
        """Files or directories were created whose names are not durable."""
        self._closed: list[Segment] | None = None
        """Closed segments with unsynced bytes or indexes."""
        self._small_files: list[tuple[str, bytes]] | None = None  # to be written with the next sync
        self.under_way: list[SyncPlan] = []
        """Planned and not completed."""
        self.epochs_written = 0
        """The version of the leader epochs that is durable."""

    def begin(self, epochs_written: int, small_files: list[tuple[str, bytes]]) -> None:
        """As the log was found on disk."""
        self.epochs_written = epochs_written
        self._small_files = small_files or None

    @property
    def has_files(self) -> bool:
        """Closed segments, snapshots or names still wait to become durable."""
        return bool(self._small_files or self._closed or self.names)

    def waits(self, name: str) -> bool:
        """Whether a file of that name is to be written with the next sync, or is just being written."""
        waiting = chain(self._small_files or (), *(plan.small_files for plan in self.under_way))
        return any(each == name for each, _ in waiting)

    def add_small_file(self, name: str, content: bytes) -> None:
        """Write this file with the next sync."""
        self._small_files = [*(self._small_files or ()), (name, content)]

    def forget_small_files(self, offset: int) -> None:
        """Truncated: what belongs to offsets above must not be written any more, nor stay if it just is."""
        self._small_files = [
            (name, content)
            for name, content in self._small_files or ()
            if not (name.endswith((SNAPSHOT_SUFFIX, ".txnindex")) and int(name.partition(".")[0]) > offset)
        ] or None
        for plan in self.under_way:
            plan.cut_offset = min(plan.cut_offset, offset)

    def void_snapshots(self) -> set[int]:
        """Offsets of producer snapshots that a sync under way may have written since their history was cut off."""
        return {offset for plan in self.under_way for offset in plan.void_snapshots}

    def add_closed(self, segment: Segment) -> None:
        """Sync this segment and its indexes with the next sync."""
        segment.dirty = True
        self._closed = [*(self._closed or ()), segment]

    def forget_closed(self, segment: Segment) -> None:
        self._closed = [other for other in self._closed or () if other is not segment] or None

    def move_into(self, plan: SyncPlan, active: Segment | None) -> None:
        """All that waits goes with this plan, and the active segment if it is given and has unsynced bytes."""
        if self._closed:
            plan.closed = self._closed
            plan.segments += [(segment, segment.size_bytes, segment.file) for segment in self._closed]
            self._closed = None
        if active is not None and active.dirty:
            plan.segments.append((active, active.size_bytes, active.file))
        if plan.log.leader_epochs.version != self.epochs_written:
            plan.add_epochs(plan.log.leader_epochs)
        if self._small_files:
            plan.small_files += self._small_files
            self._small_files = None
        if self.names or plan.small_files:
            plan.directories = [plan.path, plan.log.directory.path] if self.names else [plan.path]
            self.names = False

    def take_back(self, plan: SyncPlan) -> None:
        """The disk was full: what the plan carried waits for the next one, but for what was cut off meanwhile."""
        closed = [segment for segment in plan.closed if segment in plan.log.segments]
        self._closed = closed + (self._closed or []) or None
        small_files = [(name, content) for name, content in plan.small_files if name != LEADER_EPOCH_FILE]
        self._small_files = small_files + (self._small_files or []) or None
        self.names = self.names or len(plan.directories) > 1


def plan_sync(log: "PartitionLog", *, include_active: bool | None = None) -> SyncPlan | None:
    """Loop-safe. What to sync now; None when there is nothing. In mode os only closed segments are synced."""
    active = log.active
    if active is None or log.is_deleted:
        return None
    if include_active is None:
        include_active = log.config.flush_mode != "os"
    plan = SyncPlan(log, log.end_offset if include_active else active.base_offset, log.generation)
    log.unsynced.move_into(plan, active if include_active else None)
    if not plan.has_work and plan.end_offset <= log.synced_end_offset:
        return None
    log.unsynced.under_way.append(plan)
    return plan


def complete_sync(plan: SyncPlan) -> None:
    """Loop-safe. Publishes what a plan has made durable and tells `on_synced`."""
    log = plan.log
    unsynced = log.unsynced
    unsynced.under_way.remove(plan)
    log.lacks_room = plan.no_space
    was_cut = plan.generation != log.generation
    if was_cut:
        plan.discard_snapshots(log.directory.disk)
        renew_indexes(log, plan)
    if plan.no_space:
        unsynced.take_back(plan)
        _delete_what_waited(log)
        return
    if was_cut:
        for segment in plan.closed:
            if segment.base_offset < plan.cut_offset:  # others may have been written to and closed again
                segment.dirty = False
        return
    unsynced.epochs_written = max(unsynced.epochs_written, plan.epochs_version)
    for segment, size, _ in plan.segments:
        if segment.size_bytes == size:
            segment.dirty = False
    _delete_what_waited(log)
    if plan.end_offset > log.synced_end_offset:
        log.synced_end_offset = plan.end_offset
        if log.on_synced is not None:
            log.on_synced(plan.end_offset)


def _delete_what_waited(log: "PartitionLog") -> None:
    """Retention came while a sync was under way."""
    if len(log.segments) > 1 and log.segments[1].base_offset <= log.log_start_offset:
        delete_segments_below(log, log.log_start_offset)
