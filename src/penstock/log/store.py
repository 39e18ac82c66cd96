"""All logs of a broker, over one or several log directories.

Opening a log costs a small object and touches no file. What blocks says so. The owner (`broker/`) calls the
housekeeping methods on its clock; nothing here runs by itself except group commit and deferred deletion, which
live on the loop given to `start`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

import msgspec

from penstock.log.checkpoints import read_topic_id
from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.errors import CorruptSegment, NoRoom
from penstock.log.offset_index import IndexCache
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import OpenFiles
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import format_uuid
from penstock.model.ports import Clock, Disk

_LOGGER = logging.getLogger(__name__)


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_open_files: int = 4096
    """Segment files open at once; spans being sent may hold some more."""
    index_cache_bytes: int = 32 << 20
    max_usage: float = 0.95
    """Share of a disk (0…1) above which appends are refused."""
    sync_workers: int = 4
    """Syncs at once per log directory."""


class LogStore:
    """Used on the loop, except where a method says it blocks."""

    def __init__(self, disk: Disk, clock: Clock, paths: Sequence[str], settings: StoreSettings | None = None) -> None:
        self.settings = settings or StoreSettings()
        self.disk = disk
        self.clock = clock
        self.files = OpenFiles(disk, self.settings.max_open_files)
        self.cache = IndexCache(disk, self.settings.index_cache_bytes)
        self.directories = [LogDirectory(path, disk, clock, self.files, self.cache) for path in paths]
        self.on_directory_failed: Callable[[LogDirectory, OSError], None] | None = None
        self._logs: dict[tuple[str, int], PartitionLog] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: Executor | None = None
        for directory in self.directories:
            directory.on_failed = self._directory_failed

    def load(self) -> None:
        """Blocking. Lists directories, reads checkpoints; a directory that cannot be read fails, others live on."""
        for directory in self.directories:
            try:
                directory.load()
            except OSError as error:
                if error.errno in NO_SPACE_ERRORS:
                    raise
                directory.fail(error)

    def start(self, loop: asyncio.AbstractEventLoop, pool: Executor | None) -> None:
        """From now on appends sync themselves as `flush.mode` says, through this loop and pool."""
        self._loop = loop
        self._pool = pool
        for directory in self.directories:
            directory.start(loop, pool, self.settings.sync_workers)

    def open(
        self, topic: str, partition: int, topic_id: bytes, config: LogConfig, *, directory: LogDirectory | None = None
    ) -> PartitionLog:
        """The log of a partition; loop-safe, nothing is read or created. The same log when opened again.

        A partition found on disk stays where it is; a new one goes to `directory` or the one with the fewest. Of
        several copies (a disk was away, and is back) the one in `directory` counts.
        """
        log = self._logs.get((topic, partition))
        if log is not None:
            if log.topic_id != topic_id:
                raise ValueError(
                    f"{log.name} is open with topic id {format_uuid(log.topic_id)}, not {format_uuid(topic_id)}; "
                    f"delete the old topic's log first"
                )
            return log
        name = f"{topic}-{partition}"
        told = directory if directory is not None and name in directory.on_disk else None
        home = told or self.found_in(topic, partition) or directory or self.emptiest()
        log = PartitionLog(home, topic, partition, topic_id, config)
        log.high_watermark = home.high_watermarks.get(name, 0)
        home.logs[name] = log
        self._logs[topic, partition] = log
        return log

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self._logs.get((topic, partition))

    def has_files(self, topic: str, partition: int) -> bool:
        """Whether a partition that nobody opened yet was found on disk."""
        return self.found_in(topic, partition) is not None

    def found_in(self, topic: str, partition: int) -> LogDirectory | None:
        """Where a partition was found on disk that nobody opened yet."""
        name = f"{topic}-{partition}"
        return next((directory for directory in self.directories if name in directory.on_disk), None)

    def emptiest(self) -> LogDirectory:
        """Where a new log goes: of the directories that work, the one with the fewest."""
        alive = [directory for directory in self.directories if directory.failure is None]
        return min(alive or self.directories, key=lambda directory: len(directory.logs))

    def logs(self) -> Iterator[PartitionLog]:
        return iter(self._logs.values())

    def __len__(self) -> int:
        return len(self._logs)

    def delete(self, log: PartitionLog) -> None:
        """Loop-safe. Forgets the log at once; its files go in the background."""
        self._logs.pop((log.topic, log.partition), None)
        directory = log.directory
        directory.logs.pop(log.name, None)
        directory.cleaned_offsets.pop(log.name, None)
        found = log.name in directory.on_disk
        directory.forget_found(log.name)
        had_files = found or (log.is_loaded and (log.has_files or self.disk.exists(log.path)))
        log.is_deleted = True
        log.offline = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{log.name} was deleted")
        for segment in log.segments if log.is_loaded else ():
            self.files.release(segment)
            self.cache.forget(segment.path + ".index")
        if not had_files or directory.failure is not None:
            return
        # Renamed at once, so that a new topic of the same name finds no old files.
        doomed = directory.path_aside(log.name, log.topic_id, "delete")
        try:
            self.disk.rename(log.path, doomed)
        except OSError as error:
            directory.fail(error)
            return
        directory.doom(doomed)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.run_in_executor(self._pool, directory.remove_doomed)
        else:
            directory.remove_doomed()

    def strays(self) -> list[tuple[LogDirectory, str]]:
        """Partition directories that nobody opened: their topics are gone or live elsewhere."""
        return [(d, name) for d in self.directories for name in d.on_disk if name not in d.logs]

    def move_stray_aside(self, directory: LogDirectory, name: str) -> None:
        """Blocking. Renames a directory that belongs to no known topic to `…-stray`; nothing is deleted. Where that
        fails, the directory or its log directory says so, and nobody is kept from starting."""
        if directory.failure is not None:
            return
        path = f"{directory.path}/{name}"
        try:
            aside = directory.path_aside(name, read_topic_id(self.disk, path), "stray")
            _forget_recovery_point(directory, name)
            self.disk.rename(path, aside)
        except OSError as error:
            _LOGGER.error("%s belongs to no topic here, and cannot be moved aside", path)
            directory.write_failed(error)
            return
        _LOGGER.warning("%s belongs to no topic here; moved aside to %s", path, aside)
        directory.forget_found(name)

    def set_max_usage(self, max_usage: float) -> None:
        """Takes effect with the next `check_usage`."""
        self.settings = msgspec.structs.replace(self.settings, max_usage=max_usage)

    # Housekeeping, on the owner's clock -----------------------------------------------------------------------

    def check_usage(self) -> None:
        """One statvfs per directory; call it from the pool every few seconds."""
        for directory in self.directories:
            if directory.failure is None:
                try:
                    directory.check_usage(self.settings.max_usage)
                except OSError as error:
                    directory.fail(error)

    def write_checkpoints(self) -> None:
        """Blocking; call it from the pool every minute."""
        for directory in self.directories:
            if directory.failure is None:
                try:
                    directory.write_checkpoints()
                except OSError as error:
                    directory.write_failed(error)

    def write_high_watermarks(self) -> None:
        """Blocking; call it from the pool every few seconds where partitions are replicated."""
        for directory in self.directories:
            if directory.failure is None:
                try:
                    directory.write_high_watermarks()
                except OSError as error:
                    directory.write_failed(error)

    async def stop(self) -> None:
        """Waits for what is being synced and starts nothing more. Then `close` may run in the pool."""
        await self.drain()
        for directory in self.directories:
            directory.stop()

    async def drain(self) -> None:
        """Returns when no sync is queued or running."""
        for directory in self.directories:
            if directory.commit is not None:
                await directory.commit.drain()

    def close(self) -> None:
        """Blocking; after `stop` where there is a loop. Syncs everything and marks the shutdown as clean."""
        for directory in self.directories:
            directory.stop()
            if directory.failure is None:
                self._close_directory(directory)

    def _close_directory(self, directory: LogDirectory) -> None:
        try:
            for log in directory.logs.values():
                log.close()
            directory.deletions.finish()
            if directory.failure is None:
                directory.write_checkpoints(closing=True)
                directory.write_clean_shutdown()
        except OSError as error:
            directory.fail(error)

    def _directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        if self.on_directory_failed is not None:
            self.on_directory_failed(directory, error)


def _forget_recovery_point(directory: LogDirectory, name: str) -> None:
    """Blocking. A directory is to go where nobody looks for it, and a new replica may take its place before the next
    checkpoints: it has not lost what this one had. Before the move and not told by what lies there, as with doomed
    directories: strays stay for ever, and would excuse a loss years later."""
    try:
        directory.lower_recovery_point(name, 0)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:  # without room the next checkpoints must do
            raise


def load_quietly(log: PartitionLog) -> Refusal | None:
    """Blocking. Loads a log; what is wrong with it comes back as a value."""
    try:
        log.load()
    except NoRoom as error:
        return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
    except CorruptSegment:  # it is logged, and `offline` says it from now on
        pass
    return log.offline or (log.directory.refusal if log.directory.failure is not None else None)
