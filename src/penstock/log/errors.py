"""Faults of the storage engine that name what is broken and what to do about it."""

import errno


class NoRoom(OSError):
    """Recovering a log, or cutting it, needs room on the disk. Nothing was changed, and it can be tried again."""

    def __init__(self, name: str, directory: str) -> None:
        self.message = f"{name} cannot be recovered or cut while the disk of {directory} is full; free space there"
        super().__init__(errno.ENOSPC, self.message, directory)


class CorruptSegment(Exception):
    """A closed segment does not hold what it must. The partition stays offline; nothing is dropped silently."""

    def __init__(self, path: str, position: int, reason: str, offset: int = -1) -> None:
        """`offset`: everything in front of it is sound; -1 where that is not known."""
        super().__init__(
            f"{path} is damaged at byte {position}: {reason}. The partition stays offline so that nothing is lost "
            f"silently. Restore the file from a replica or a backup, or move the partition's directory aside to "
            f"give up its records, then restart."
        )
        self.path = path
        self.position = position
        self.reason = reason
        self.offset = offset
