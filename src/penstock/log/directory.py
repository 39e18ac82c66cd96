"""One log directory: its partitions, its checkpoints, its group commit, and whether it may be written.

A directory fails for good at the first failed sync or write (EIO): nothing in it can be trusted until a restart
has recovered it. A directory that is only too full refuses appends and recovers by itself.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import count
from typing import TYPE_CHECKING

from penstock.log.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_OFFSET_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    TOPIC_ID_FILE,
    decode_clean_shutdown,
    encode_clean_shutdown,
    encode_offsets,
    encode_topic_ids,
    parse_directory_name,
    read_offsets,
    read_topic_ids,
    read_whole,
    write_atomically,
)
from penstock.log.deletion import Deletions
from penstock.log.flush import GroupCommit
from penstock.log.offset_index import IndexCache
from penstock.log.segment import OpenFiles
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.log.truncation_journal import TruncationJournal
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import format_uuid
from penstock.model.ports import Clock, Disk
from penstock.model.units import format_bytes

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

_LOGGER = logging.getLogger(__name__)
_LOAD_LOCKS = 64
_DOOMED_SUFFIX = "-delete"
_MAX_NAME_LENGTH = 255
"""What file systems take; a topic's name may have 249 of it."""
_OFFSET_FILES = (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE, HIGH_WATERMARK_FILE, CLEANER_OFFSET_FILE)


class LogDirectory:
    """Shared by all logs in it. Used on the loop, except where a method says it blocks."""

    __slots__ = (
        "_asides",
        "_checkpoint_lock",
        "_doomed",
        "_gaps_on_disk",
        "_is_closed",
        "_load_locks",
        "_loop",
        "_offsets_on_disk",
        "_swap_lock",
        "_topic_ids_on_disk",
        "_truncations",
        "_urgency",
        "_urgency_lock",
        "_urgency_met",
        "_written",
        "broker_epoch",
        "cache",
        "cleaned_offsets",
        "clock",
        "commit",
        "deletions",
        "disk",
        "failure",
        "files",
        "high_watermarks",
        "log_start_offsets",
        "logs",
        "on_disk",
        "on_failed",
        "path",
        "recovery_points",
        "refusal",
        "swaps",
        "topic_ids",
        "was_clean",
    )

    def __init__(self, path: str, disk: Disk, clock: Clock, files: OpenFiles, cache: IndexCache) -> None:
        self.path = path
        self.disk = disk
        self.clock = clock
        self.files = files
        self.cache = cache
        self.logs: dict[str, PartitionLog] = {}
        """Open logs by directory name."""
        self.on_disk: dict[str, None] = {}
        """Partition directories found at start that no log was opened for yet."""
        self.recovery_points: dict[str, int] = {}
        """As read at start, like the next three; a log takes its entries when it is loaded."""
        self.topic_ids: dict[str, bytes] = {}
        """Whose recovery points these are: the directory that could tell may be what is gone."""
        self.log_start_offsets: dict[str, int] = {}
        self.high_watermarks: dict[str, int] = {}
        self.cleaned_offsets: dict[str, int] = {}
        """How far each log was compacted, by directory name; there for every log that may have gaps, because it was
        compacted ever, here or where it was fetched from."""
        self.swaps = 0
        """Counts segments replaced by compaction."""
        self._swap_lock = threading.Lock()
        self.was_clean = False
        """The last shutdown was clean: logs need no recovery."""
        self.broker_epoch = -1
        """Of the incarnation that shut down cleanly; then of the one that runs. -1: not known."""
        self.failure: OSError | None = None
        self.refusal: Refusal | None = None
        """Why nothing may be appended at the moment: failed or too full."""
        self.on_failed: Callable[[LogDirectory, OSError], None] | None = None
        self.commit: GroupCommit | None = None
        self.deletions = Deletions(disk, self.write_log_start_offsets, self.fail)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._doomed: list[str] = []
        """Deleted partitions whose files were still there at start."""
        self._asides = count(1)
        self._load_locks = tuple(threading.Lock() for _ in range(_LOAD_LOCKS))
        self._checkpoint_lock = threading.Lock()
        self._written: dict[str, int] = {}
        self._truncations = TruncationJournal(disk, path)
        self._offsets_on_disk: dict[str, dict[str, int]] = {file: {} for file in _OFFSET_FILES}
        """By file, as last read or written; recovery points as they were lowered since."""
        self._topic_ids_on_disk: dict[str, bytes] = {}
        self._gaps_on_disk: set[str] = set()
        """Logs of which the file of cleaned offsets speaks, and goes on to speak until they are gone."""
        self._is_closed = False
        """The last checkpoints were written: a thread that comes late must not write others."""
        self._urgency = self._urgency_met = 0
        """How often checkpoints became urgent, and which of those times have been met."""
        self._urgency_lock = threading.Lock()

    def load(self) -> None:
        """Blocking. Reads the checkpoints and lists the partitions; opens none of them."""
        self._create()
        names = self.disk.list_dir(self.path)
        self.was_clean = CLEAN_SHUTDOWN_FILE in names
        if self.was_clean:
            self.broker_epoch = decode_clean_shutdown(read_whole(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}"))
            # From here on only another clean shutdown may say so again.
            self.disk.remove(f"{self.path}/{CLEAN_SHUTDOWN_FILE}")
            self.disk.sync_dir(self.path)
        self.on_disk = dict.fromkeys(name for name in names if parse_directory_name(name) is not None)
        on_disk = {file: dict(read_offsets(self.disk, f"{self.path}/{file}")) for file in _OFFSET_FILES}
        for name, offset in self._truncations.read().items():
            on_disk[RECOVERY_POINT_FILE][name] = min(offset, on_disk[RECOVERY_POINT_FILE].get(name, 0))
        self._offsets_on_disk = on_disk
        self.recovery_points = dict(on_disk[RECOVERY_POINT_FILE])
        self._topic_ids_on_disk = read_topic_ids(self.disk, f"{self.path}/{TOPIC_ID_FILE}")
        self.topic_ids = dict(self._topic_ids_on_disk)
        self.log_start_offsets = dict(on_disk[LOG_START_OFFSET_FILE])
        self.high_watermarks = dict(on_disk[HIGH_WATERMARK_FILE])
        cleaned = on_disk[CLEANER_OFFSET_FILE]
        self.cleaned_offsets = {name: offset for name, offset in cleaned.items() if name in self.on_disk}
        doomed = [name for name in names if name.endswith(_DOOMED_SUFFIX)]
        self._doomed = [f"{self.path}/{name}" for name in doomed]
        for name in doomed:
            self._forget_removed(name)

    def _forget_removed(self, doomed_name: str) -> None:
        """A partition was removed, and the process ended before it had written that down: its recovery point does not
        speak of records that are lost."""
        if len(doomed_name) == _MAX_NAME_LENGTH:  # perhaps cut to fit: nobody knows whose it is
            return
        name, _, rest = doomed_name.removesuffix(_DOOMED_SUFFIX).rpartition(".")
        topic_id = self.topic_ids.get(name)
        if topic_id is not None and name not in self.on_disk and rest.startswith(format_uuid(topic_id)):
            self.forget_found(name)

    def _create(self) -> None:
        """The directory and those above it, durably: a log is no safer than the path to it."""
        missing = []
        path = self.path
        while path and not self.disk.exists(path):
            missing.append(path)
            path = path.rpartition("/")[0]
        self.disk.make_dirs(self.path)
        for created in missing:
            self.disk.sync_dir(created.rpartition("/")[0] or ("/" if created.startswith("/") else "."))

    def start(self, loop: asyncio.AbstractEventLoop, pool: Executor | None, sync_workers: int = 4) -> None:
        """From now on appends request their syncs, and files are deleted, through this loop and pool."""
        self._loop = loop
        self.commit = GroupCommit(self.disk, loop, pool, self.fail, workers=sync_workers)
        self.deletions.start(loop, pool)
        if self._doomed:
            loop.run_in_executor(pool, self.remove_doomed)

    def stop(self) -> None:
        """Nothing is started on the loop any more. Called on the loop, before `LogStore.close` in the pool."""
        if self.commit is not None:
            self.commit.stop()
            self.commit = None
        self.deletions.cancel_timers()
        self._loop = None

    def remove_doomed(self) -> None:
        """Blocking. Removes what is left of deleted partitions, once their new names are durable: a crash could else
        bring back the old name with some of the files, but without the one that tells whose they are. Before that the
        checkpoints forget them: a replica that came back here would else be blamed for what it had before."""
        doomed = list(self._doomed)
        if not doomed or self.failure is not None:
            return
        try:
            self.disk.sync_dir(self.path)
        except OSError as error:
            _LOGGER.warning("%s: deleted partitions are not removed before the next start: %s", self.path, error)
            return
        try:
            if self._checkpoints_speak_of_removed():
                self.write_checkpoints()
        except OSError as error:
            self.write_failed(error)
            if self.failure is not None:
                return  # on a full disk, though, nothing helps more than removing files
        for path in doomed:
            try:
                self._doomed.remove(path)
            except ValueError:  # another thread has taken it
                continue
            try:
                self.disk.remove_tree(path)
            except OSError as error:
                _LOGGER.warning("%s could not be removed: %s; it is tried again at the next start", path, error)

    def _checkpoints_speak_of_removed(self) -> bool:
        """Also of one that is back, and that nobody has looked at: what they say of it was its predecessor's."""
        with self._checkpoint_lock:
            names = self._offsets_on_disk[RECOVERY_POINT_FILE].keys() | self._topic_ids_on_disk.keys()
        for name in names:
            if name not in self.recovery_points:
                log = self.logs.get(name)
                if log is None or not log.has_recovery_point:
                    return True
        return False

    def path_aside(self, name: str, topic_id: bytes | None, suffix: str) -> str:
        """Where a partition's directory that is out of use goes: a path that nothing has, and that nothing had since
        the start. A replica may leave more than once, also before the files of the first time are gone."""
        owner = "unknown" if topic_id is None else format_uuid(topic_id)
        while True:
            tail = f".{owner}-{next(self._asides)}-{suffix}"
            path = f"{self.path}/{name[: _MAX_NAME_LENGTH - len(tail)]}{tail}"
            if not self.disk.exists(path):
                return path

    def doom(self, path: str) -> None:
        """A partition's directory was renamed to `path`: `remove_doomed` takes it away."""
        self._doomed.append(path)

    def forget_found(self, name: str) -> None:
        """The log is loaded: what was found at start is superseded by what it says of itself."""
        self.on_disk.pop(name, None)
        self.recovery_points.pop(name, None)
        self.topic_ids.pop(name, None)
        self.log_start_offsets.pop(name, None)
        self.high_watermarks.pop(name, None)

    def forget_durably(self, name: str) -> None:
        """Blocking. A log begins under this name: what is on disk of one that had it before must not outlive it.

        After a crash the new log would be cut off below the old one's start, or taken for damaged because it does
        not reach the old one's recovery point. Here and not where logs are deleted: a topic goes with all its
        partitions at once, its name rarely comes back before the next checkpoint, and one write serves them all.
        """
        self.forget_found(name)
        self.cleaned_offsets.pop(name, None)
        with self._checkpoint_lock:  # what is just being written may speak of it, too
            files = [file for file in _OFFSET_FILES if name in self._offsets_on_disk[file]]
            self._gaps_on_disk.discard(name)
        if files and self.failure is None:
            self.make_checkpoints_urgent()
            try:
                self.write_checkpoints()
            except OSError as error:
                if error.errno not in NO_SPACE_ERRORS:  # without room the first segment waits for it
                    raise

    @contextlib.contextmanager
    def swapping(self) -> Iterator[None]:
        """On the loop, while compaction replaces segments: whoever reads in the pool looks again afterwards."""
        with self._swap_lock:
            self.swaps += 1
            yield

    def swaps_so_far(self) -> int:
        """For the pool; waits while a swap is under way."""
        with self._swap_lock:
            return self.swaps

    def lower_cleaned_offset(self, name: str, offset: int) -> None:
        """The log was truncated: what comes there now was not compacted."""
        if self.cleaned_offsets.get(name, offset) > offset:
            self.cleaned_offsets[name] = offset

    def note_gaps(self, name: str) -> None:
        """A log took batches with gaps between them: its leader had compacted them. Recovery must know, or takes a
        gap before the last batch for damage: `write_gaps` tells it before anything counts as synced. In the modes os
        and interval a batch counts before that, gap or none: what an unclean stop may take then is left to C8."""
        self.cleaned_offsets.setdefault(name, 0)

    def write_gaps(self, name: str) -> None:
        """Blocking; every sync begins with it. Writes down that this log may have gaps, where that is news; with it
        goes what is known of all others, so that many logs that follow one leader cost one write.

        Under the lock: what is just being written may not speak of it yet. Afterwards all that is written does, as
        long as the log has this name; the next of that name begins with `forget_durably`.
        """
        if name not in self.cleaned_offsets or name in self._gaps_on_disk:
            return
        with self._checkpoint_lock:
            if name not in self._offsets_on_disk[CLEANER_OFFSET_FILE]:
                self._write(CLEANER_OFFSET_FILE, dict(self.cleaned_offsets))
            if name in self.cleaned_offsets:  # otherwise it was deleted meanwhile
                self._gaps_on_disk.add(name)

    def load_lock(self, name: str) -> threading.Lock:
        return self._load_locks[hash(name) % _LOAD_LOCKS]

    def fail(self, error: OSError) -> None:
        """Something could not be written or synced: nothing here is trusted any more. Never undone.

        Called from any thread; who must be told is told on the loop.
        """
        if self.failure is not None:
            return
        self.failure = error
        self.refusal = Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {self.path} failed: {error}. Repair the disk and restart."
        )
        _LOGGER.error("log directory %s failed and is offline until restart: %s", self.path, error)
        loop = self._loop
        if loop is None or asyncio._get_running_loop() is loop:
            self._tell_failure(error)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._tell_failure, error)

    def _tell_failure(self, error: OSError) -> None:
        if self.commit is not None:
            self.commit.stop()
        if self.on_failed is not None:
            self.on_failed(self, error)

    def write_failed(self, error: OSError) -> None:
        """A file beside the segments could not be written: tried again later on a full disk, fatal otherwise."""
        if error.errno in NO_SPACE_ERRORS:
            _LOGGER.warning("%s: %s", self.path, error)
        else:
            self.fail(error)

    def check_usage(self, max_usage: float) -> None:
        """Refuses appends while more than `max_usage` (0…1) of the disk is used. One statvfs: may block."""
        if self.failure is not None:
            return
        usage = self.disk.usage(self.path)
        used = 1 - usage.free_bytes / max(1, usage.total_bytes)
        if used <= max_usage:
            if self.refusal is not None:
                _LOGGER.warning("log directory %s accepts writes again", self.path)
            self.refusal = None
            return
        if self.refusal is None:
            _LOGGER.error("log directory %s is %.1f %% full and refuses writes", self.path, used * 100)
        self.refusal = Refusal(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"the disk of {self.path} is {used:.1%} full ({format_bytes(usage.free_bytes)} free), more than the "
            f"{max_usage:.1%} that log.dir.max.usage allows; free space or raise the limit",
        )

    def write_checkpoints(self, *, closing: bool = False) -> None:
        """Blocking. What is known of all logs, where it changed. Nothing once the closing ones are written."""
        urgency = self._urgency
        if not self._write_recovery_points(closing):
            return
        self.write_high_watermarks()
        self.write_log_start_offsets()
        if closing:  # now those that waited for their log's start, which else would not be taken for clean
            self._write_recovery_points(closing)
        self._write_topic_ids()
        if self.cleaned_offsets != self._offsets_on_disk[CLEANER_OFFSET_FILE]:
            self.write_cleaned_offsets()
        self._met(urgency)

    @property
    def checkpoints_urgent(self) -> bool:
        """A log was truncated below its recovery point or start, or took the name of one that is gone: write
        checkpoints before anything relies on them. Until they are written, not until somebody begins to."""
        return self._urgency_met < self._urgency

    def make_checkpoints_urgent(self) -> None:
        """After the log has changed: what is written from now on tells it."""
        with self._urgency_lock:
            self._urgency += 1

    def _met(self, urgency: int) -> None:
        with self._urgency_lock:
            self._urgency_met = max(self._urgency_met, urgency)

    def _write_recovery_points(self, closing: bool) -> bool:
        """False: the closing ones are on disk, and say of logs that nobody touched what others would not."""
        with self._checkpoint_lock:
            if self._is_closed and not closing:
                return False
            recovery_points = dict(self.recovery_points)
            for name, log in list(self.logs.items()):
                if log.has_recovery_point:
                    recovery_points[name] = self._recovery_point_of(log)
            if closing and not self.was_clean:
                # Logs that nobody touched were not recovered. One below the truth is as safe a recovery point, and
                # being different from the log's end it keeps the next start from taking such a log for clean.
                recovery_points |= {name: self.recovery_points.get(name, 0) - 1 for name in self.on_disk}
            self._write(RECOVERY_POINT_FILE, recovery_points)
            self._truncations.clear()
            self._is_closed = closing
            return True

    def _recovery_point_of(self, log: "PartitionLog") -> int:
        end_offset = log.synced_end_offset
        if log.lost_records:
            # What was lost must be noticed again by the next start, until somebody has acted on it.
            return self._offsets_on_disk[RECOVERY_POINT_FILE].get(log.name, end_offset)
        if end_offset > log.local_log_start_offset:
            return end_offset
        # Nothing of it is synced, perhaps not even the name of a file: after a crash a recovery point above the start
        # would say that records are gone, and the start is on disk later.
        return min(end_offset, self._offsets_on_disk[LOG_START_OFFSET_FILE].get(log.name, 0))

    def _write_topic_ids(self) -> None:
        """After the recovery points: never does one of a log that is gone seem to be of the next of that name."""
        with self._checkpoint_lock:
            ids = dict(self.topic_ids)
            ids |= {name: log.topic_id for name, log in list(self.logs.items()) if log.has_recovery_point}
            if ids != self._topic_ids_on_disk:
                write_atomically(self.disk, f"{self.path}/{TOPIC_ID_FILE}", encode_topic_ids(sorted(ids.items())))
                self.disk.sync_dir(self.path)
                self._topic_ids_on_disk = ids

    def lower_recovery_point(self, name: str, offset: int) -> None:
        """Blocking. A log is to be cut: from now on it may end there, also after a crash."""
        with self._checkpoint_lock:
            points = self._offsets_on_disk[RECOVERY_POINT_FILE]
            if offset < points.get(name, 0):
                self._truncations.add(name, offset)
                self._offsets_on_disk[RECOVERY_POINT_FILE] = {**points, name: offset}

    def write_high_watermarks(self) -> None:
        """Blocking. What a replica may count as committed when it is opened again."""
        with self._checkpoint_lock:
            offsets = dict(self.high_watermarks)
            for name, log in list(self.logs.items()):
                if log.high_watermark > 0:
                    offsets[name] = log.high_watermark
            self._write(HIGH_WATERMARK_FILE, offsets)

    def write_log_start_offsets(self) -> None:
        """Blocking. Kafka writes only those that the segments do not tell."""
        with self._checkpoint_lock:
            offsets = dict(self.log_start_offsets)
            for name, log in list(self.logs.items()):
                if log.is_loaded and log.log_start_offset > 0:
                    offsets[name] = log.log_start_offset
            self._write(LOG_START_OFFSET_FILE, offsets)

    def write_cleaned_offsets(self) -> None:
        """Blocking. How far each log was compacted."""
        with self._checkpoint_lock:
            self._write(CLEANER_OFFSET_FILE, dict(self.cleaned_offsets))

    def write_clean_shutdown(self) -> None:
        """Blocking. Everything is synced: the next start may skip recovery."""
        content = encode_clean_shutdown(self.broker_epoch)
        write_atomically(self.disk, f"{self.path}/{CLEAN_SHUTDOWN_FILE}", content)
        self.disk.sync_dir(self.path)

    def _write(self, file_name: str, offsets: dict[str, int]) -> None:
        content = encode_offsets(sorted(offsets.items()))
        if self._written.get(file_name) != hash(content):
            write_atomically(self.disk, f"{self.path}/{file_name}", content)
            self.disk.sync_dir(self.path)
            self._written[file_name] = hash(content)
        self._offsets_on_disk[file_name] = offsets
