"""A log in memory for tests of the quorum: entries are epochs (and payloads), with a durable end."""

from typing import Any, NamedTuple

from penstock.quorum.messages import SnapshotId


class Entry(NamedTuple):
    epoch: int
    payload: Any = None


class LogModel:
    """Entries from `start_offset` on; what lies before is in `snapshot`."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self.entries: list[Entry] = list(entries or ())
        self.start_offset = 0
        self.synced_end_offset = len(self.entries)
        self.snapshot: SnapshotId | None = None

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
        known = -1
        for place, entry in enumerate(self.entries):
            if entry.epoch > epoch:
                return (known if known >= 0 else epoch), self.start_offset + place
            known = entry.epoch
        return (known if known >= 0 else epoch), self.end_offset

    def append(self, entry: Entry) -> int:
        self.entries.append(entry)
        return self.end_offset

    def truncate_to(self, end_offset: int) -> None:
        del self.entries[max(0, end_offset - self.start_offset) :]
        self.synced_end_offset = min(self.synced_end_offset, self.end_offset)

    def sync(self) -> int:
        self.synced_end_offset = self.end_offset
        return self.end_offset

    def lose_unsynced(self) -> None:
        self.truncate_to(self.synced_end_offset)
