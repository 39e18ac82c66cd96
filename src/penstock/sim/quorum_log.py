"""A metadata log in memory, with what a power failure would leave of it."""

from typing import Any, NamedTuple

from penstock.quorum.messages import SnapshotId


class Entry(NamedTuple):
    epoch: int
    payload: Any = None


class LogModel:
    """Entries from `start_offset` on; what lies before is in `snapshot`, whose content is `snapshot_entries`."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = list(entries or ())
        self.start_offset = 0
        self.synced_end_offset = len(self.entries)
        self.snapshot: SnapshotId | None = None
        self.snapshot_entries: tuple[Entry, ...] = ()
        self.generation = 0

    @property
    def end_offset(self) -> int:
        return self.start_offset + len(self.entries)

    @property
    def last_epoch(self) -> int:
        if self.entries:
            return self.entries[-1].epoch
        return self.snapshot.epoch if self.snapshot is not None else 0

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        if epoch > self.last_epoch:
            return -1, -1
        at = len(self.entries)
        while at and self.entries[at - 1].epoch > epoch:
            at -= 1
        known = self.entries[at - 1].epoch if at else epoch
        return known, self.start_offset + at

    def entry(self, offset: int) -> Entry:
        if offset < self.start_offset:
            return self.snapshot_entries[offset]
        return self.entries[offset - self.start_offset]

    def prefix(self, end_offset: int) -> list[Entry]:
        """Everything below `end_offset`, from the snapshot and the log."""
        return [*self.snapshot_entries[: self.start_offset], *self.entries][:end_offset]

    def read(self, offset: int, count: int) -> list[Entry]:
        at = offset - self.start_offset
        return self.entries[at : at + count]

    def append(self, entry: Entry) -> int:
        self.entries.append(entry)
        return self.end_offset

    def truncate_to(self, end_offset: int) -> None:
        """Durable at once, as `PartitionLog.truncate_to` is."""
        del self.entries[max(0, end_offset - self.start_offset) :]
        self.synced_end_offset = min(self.synced_end_offset, self.end_offset)
        self.generation += 1

    def sync(self) -> int:
        self.synced_end_offset = self.end_offset
        return self.end_offset

    def crash(self, kept_unsynced: int = 0) -> None:
        """What was not synced is gone, but for as many entries as happened to reach the disk."""
        end_offset = min(self.end_offset, self.synced_end_offset + kept_unsynced)
        del self.entries[max(0, end_offset - self.start_offset) :]
        self.synced_end_offset = end_offset
        self.generation += 1

    def take_snapshot(self, end_offset: int) -> None:
        """Everything below goes from the log into a snapshot."""
        self.snapshot_entries = tuple(self.prefix(end_offset))
        self.snapshot = SnapshotId(end_offset, self.entry(end_offset - 1).epoch)
        del self.entries[: end_offset - self.start_offset]
        self.start_offset = end_offset

    def load_snapshot(self, snapshot: SnapshotId, entries: tuple[Entry, ...]) -> None:
        self.snapshot, self.snapshot_entries = snapshot, entries
        self.entries = []
        self.start_offset = self.synced_end_offset = snapshot.end_offset
        self.generation += 1
