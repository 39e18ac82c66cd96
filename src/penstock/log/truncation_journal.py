"""Recovery points that a truncation lowered since they were last written.

A log that was cut below its recovery point ends there by right. Were the point on disk to stay above it, the next
start after a crash would take that for damage, and a replica that takes itself for damaged cannot lead: where all
that were in sync had been cut, nobody could. All recovery points of a directory are one file, too much to write for
every log that is cut after a change of leader; here each is one line, made durable before the cut.
"""

import logging

from penstock.log.checkpoints import read_whole
from penstock.model.ports import Disk

TRUNCATIONS_FILE = "truncations"
_LOGGER = logging.getLogger(__name__)


class TruncationJournal:
    """All methods block."""

    __slots__ = ("_disk", "_path", "_size")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{TRUNCATIONS_FILE}"
        self._size = 0

    def read(self) -> dict[str, int]:
        """The lowest offset that each log was cut at, by directory name."""
        content = read_whole(self._disk, self._path) or b""
        self._size = len(content)
        points: dict[str, int] = {}
        for line in content.splitlines(keepends=True):
            name, _, offset = line.decode("utf-8", "replace").rpartition(" ")
            if not line.endswith(b"\n") or not name or not offset.strip().isdigit():
                # Torn: the cut that it announced was not made. Nothing can follow it.
                _LOGGER.warning("%s ends with half an entry, which is ignored", self._path)
                break
            points[name] = min(int(offset), points.get(name, int(offset)))
        return points

    def add(self, name: str, offset: int) -> None:
        """Durable when it returns."""
        is_new = not self._disk.exists(self._path)
        file = self._disk.open(self._path, create=True)
        try:
            line = f"{name} {offset}\n".encode()
            file.truncate(self._size)  # whatever a failed attempt left
            file.write_at(self._size, (line,))
            file.sync()
        finally:
            file.close()
        self._size += len(line)
        if is_new:
            self._disk.sync_dir(self._path.rpartition("/")[0])

    def clear(self) -> None:
        """The recovery points on disk are as low."""
        if self._size == 0:
            return
        file = self._disk.open(self._path)
        try:
            file.truncate(0)
            file.sync()
        finally:
            file.close()
        self._size = 0
