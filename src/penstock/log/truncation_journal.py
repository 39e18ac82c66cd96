"""Recovery points that a truncation lowered since they were last written.

A log that was cut below its recovery point ends there by right. Were the point on disk to stay above it, the next
start after a crash would take that for damage, and a replica that takes itself for damaged cannot lead: where all
that were in sync had been cut, nobody could. All recovery points of a directory are one file, too much to write for
every log that is cut after a change of leader; here each is one line, made durable before the cut.
"""

import logging

from penstock.log.checkpoints import parse_directory_name, read_whole
from penstock.model.ports import Disk

TRUNCATIONS_FILE = "truncations"
_LOGGER = logging.getLogger(__name__)


class TruncationJournal:
    """All methods block."""

    __slots__ = ("_disk", "_is_named", "_path", "_size")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{TRUNCATIONS_FILE}"
        self._size = 0
        """Where the last whole entry ends."""
        self._is_named = False
        """The name is durable. That the file is there does not tell: whoever made it may have come no further."""

    def read(self) -> dict[str, int]:
        """The lowest offset that each log was cut at, by directory name."""
        content = read_whole(self._disk, self._path) or b""
        self._size = content.rfind(b"\n") + 1
        if self._size < len(content):
            # The cut that it announced was not made; the next entry takes its place.
            _LOGGER.warning("%s ends with half an entry, which is ignored", self._path)
        points: dict[str, int] = {}
        for line in content[: self._size].split(b"\n")[:-1]:
            name, _, offset = line.decode("ascii", "replace").rpartition(" ")
            if parse_directory_name(name) is None or not offset.isdigit():
                _LOGGER.warning("%s: %r is no entry and is ignored", self._path, line)
                continue
            points[name] = min(int(offset), points.get(name, int(offset)))
        return points

    def add(self, name: str, offset: int) -> None:
        """Durable when it returns."""
        file = self._disk.open(self._path, create=True)
        try:
            line = f"{name} {offset}\n".encode()
            file.truncate(self._size)  # whatever a failed attempt left
            file.write_at(self._size, (line,))
            file.sync()
        finally:
            file.close()
        self._size += len(line)
        if not self._is_named:
            self._disk.sync_dir(self._path.rpartition("/")[0])
            self._is_named = True

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
