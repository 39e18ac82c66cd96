"""The offset below which this node's metadata log is committed and synced, on disk beside the log.

A loss of power may tear off what was not synced, and recovery cuts that. But what was synced has been counted by the
leader (R5): a voter that drops such an entry, because a bit of it flipped, could make a majority with others that
never had it, and a node that is alone would forget its newest topics. What is committed is never truncated (R8), so
this offset only grows, and a log that does not reach it at a start has no torn end: the node does not start, and
nothing is cut.

What was committed in the last seconds before a crash may lie above it.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.log.checkpoints import read_whole, write_atomically
from penstock.log.scan import SegmentScan
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.model.ports import Disk
from penstock.records.batch import NO_LEADER_EPOCH
from penstock.records.checksum import crc32c

FILE_NAME = "committed-offset-checkpoint"
_INTERVAL_S = 5.0

log = logging.getLogger("penstock.metadata")


class MetadataFloor:
    """Everything but `offset` blocks."""

    def __init__(self, disk: Disk, log_path: str) -> None:
        self.offset = 0
        """As it is on disk."""
        self._disk = disk
        self._log_path = log_path
        self._path = f"{log_path}/{FILE_NAME}"

    def load(self) -> None:
        content = read_whole(self._disk, self._path)
        offset = _decode(content) if content is not None else 0
        if offset is None:
            log.warning("%s is damaged; what it would tell of damage in the metadata log is not known", self._path)
        self.offset = offset or 0

    def raise_to(self, offset: int) -> None:
        if offset > self.offset:
            write_atomically(self._disk, self._path, _encode(offset))
            self._disk.sync_dir(self._log_path)
            self.offset = offset

    def damage(self, start_offset: int) -> str | None:
        """Where and why the log does not reach the floor; a snapshot has what lies below `start_offset`. Whether
        there is a segment with that offset is for others to say."""
        if self.offset <= start_offset:
            return None
        bases = sorted(int(name[:-4]) for name in self._disk.list_dir(self._log_path) if name.endswith(".log"))
        needed = [base for at, base in enumerate(bases) if at + 1 == len(bases) or bases[at + 1] > start_offset]
        end_offset, epoch = start_offset, NO_LEADER_EPOCH
        for at, base in enumerate(needed):
            if at and base != end_offset and min(base, end_offset) < self.offset:
                return f"the segment at offset {end_offset} of {self._log_path} is missing"
            path = f"{self._log_path}/{base:020d}.log"
            end_offset, epoch, fault = self._scan(path, base, epoch)
            if fault is not None and end_offset < self.offset:
                return f"{path} is damaged at offset {end_offset}: {fault}"
        return f"{self._log_path} ends at offset {end_offset}" if end_offset < self.offset else None

    def _scan(self, path: str, base_offset: int, epoch: int) -> tuple[int, int, str | None]:
        """As recovery does. Where it ends, the largest leader epoch up to there, and what is wrong."""
        file = self._disk.open(path, writable=False)
        try:
            scan = SegmentScan(file, file.size(), base_offset, epoch=epoch, dense=True)
            for batch in scan:
                epoch = max(epoch, batch.header.partition_leader_epoch)
            return scan.next_offset, epoch, scan.fault
        finally:
            file.close()


class FloorKeeper:
    """Raises the floor a while after commits. Used on the loop."""

    def __init__(self, floor: MetadataFloor, pool: Executor | None, settled_offset: Callable[[], int]) -> None:
        """`settled_offset`: below it everything is committed, and synced here."""
        self._floor = floor
        self._pool = pool
        self._settled_offset = settled_offset
        self._due: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def consider(self) -> None:
        """Called with every commit, and with every sync."""
        if self._is_stopped or self._due is not None or self._task is not None:
            return
        if self._settled_offset() > self._floor.offset:
            self._due = asyncio.get_running_loop().call_later(_INTERVAL_S, self._begin)

    def _begin(self) -> None:
        self._due = None
        self._task = asyncio.get_running_loop().create_task(self._raise())

    async def _raise(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._pool, self._floor.raise_to, self._settled_offset())
        except OSError as error:  # the floor is lower than it could be, and it is tried again
            level = logging.DEBUG if error.errno in NO_SPACE_ERRORS else logging.ERROR
            log.log(level, "%s cannot be written: %s", FILE_NAME, error)
        finally:
            self._task = None
        self.consider()

    async def stop(self, *, cleanly: bool) -> None:
        self._is_stopped = True
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._task is not None:
            await self._task
        if cleanly:
            await self._raise()


def _encode(offset: int) -> bytes:
    return b"0\n%d\n%d\n" % (offset, crc32c(b"%d" % offset))


def _decode(content: bytes) -> int | None:
    """None when this is not what was written."""
    version, _, rest = content.partition(b"\n")
    offset = rest.partition(b"\n")[0]
    if version != b"0" or not offset.isdigit() or content != _encode(int(offset)):
        return None
    return int(offset)
