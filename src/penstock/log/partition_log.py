"""One partition's log: segments, offsets, epochs and producers behind one face.

Hard rules. State changes on the loop thread only; appends write to the page cache and return. What blocks says
so and belongs into the pool. Nothing is opened, created or read before it is needed: a log that nobody touched
is a name and a few references, and its numbers are loaded at the first look at them (`load` in the pool first,
where that may mean recovery). A refusal is a value; a damaged log goes offline and says why.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from penstock.log.aborted import aborted_transactions, note_aborted
from penstock.log.appending import AppendResult, append_batches, append_checked, append_followed, roll_segment
from penstock.log.closing import close_log
from penstock.log.config import MAX_LONG, LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.epochs import MAX_EPOCH, LeaderEpochs
from penstock.log.errors import CorruptSegment, NoRoom
from penstock.log.lookup import RecordPlace, find_by_timestamp, find_max_timestamp, look_up
from penstock.log.producers import CompletedTransaction, ProducerBatch, ProducerStates
from penstock.log.reading import FileSpan, empty_span, locate, plan_span, segment_holding
from penstock.log.rebuild import aborted_entry
from penstock.log.recovery import LoadedLog, load_log
from penstock.log.retention import delete_segments_below, expired_end_offset
from penstock.log.segment import Segment
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.log.truncation import truncate_fully, truncate_log
from penstock.log.unsynced import Unsynced, complete_sync, plan_sync
from penstock.log.validation import check_client_batch, needs_preparation, prepare_batch
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Buffer

_LOGGER = logging.getLogger(__name__)

Origin = Literal["client", "coordinator", "quorum"]


class PartitionLog:
    __slots__ = (
        "active",
        "clean_end_offset",
        "config",
        "directory",
        "end_offset",
        "fault",
        "generation",
        "high_watermark",
        "is_deleted",
        "is_loaded",
        "lacks_room",
        "leader_epochs",
        "local_log_start_offset",
        "log_start_offset",
        "lost_records",
        "offline",
        "on_synced",
        "partition",
        "producers",
        "segments",
        "size_bytes",
        "synced_end_offset",
        "topic",
        "topic_id",
        "unsynced",
    )

    # Set by `load`; looking at one of them loads the log.
    end_offset: int
    """Log end offset: the offset the next record gets."""
    log_start_offset: int
    local_log_start_offset: int
    """First offset on this disk; records between log start and here are in object storage."""
    synced_end_offset: int
    """Everything below is on stable storage."""
    size_bytes: int
    leader_epochs: LeaderEpochs
    producers: ProducerStates
    segments: tuple[Segment, ...]
    """In offset order; replaced, never changed, so that the pool may walk it. The last one is `active`."""
    active: Segment | None

    def __init__(
        self, directory: LogDirectory, topic: str, partition: int, topic_id: bytes, config: LogConfig
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id = topic_id
        self.config = config
        """May be replaced at any time; takes effect with the next append."""
        self.high_watermark = 0
        """Kept here for the checkpoint only; replication owns it."""
        self.on_synced: Callable[[int], None] | None = None
        """Called on the loop with the new `synced_end_offset`."""
        self.offline: Refusal | None = None
        """Why this log answers nothing (damaged or deleted)."""
        self.fault: CorruptSegment | None = None
        self.lost_records = False
        """Below the recovery point files are gone, or were damaged and are cut off; it stays until `accept_loss`."""
        self.lacks_room = False  # the last sync found no room for the small files beside the segments
        self.is_loaded = False
        self.is_deleted = False
        self.generation = 0  # counts truncations: a sync planned before one proves nothing after it
        self.clean_end_offset = -1
        """The end offset for which indexes and producer snapshot on disk are complete; −1 when they are not."""
        self.unsynced = Unsynced()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in LoadedLog.FIELDS and not self.is_loaded:
                with contextlib.suppress(CorruptSegment):  # logged, and `offline` says it from now on
                    self.load()
                return object.__getattribute__(self, name)
            raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<PartitionLog {self.name} in {self.directory.path}>"

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def path(self) -> str:
        return f"{self.directory.path}/{self.topic}-{self.partition}"

    @property
    def has_files(self) -> bool:
        return bool(self.segments)

    @property
    def has_recovery_point(self) -> bool:
        """Whether checkpoints speak of this log; also when all its files are gone that should be there."""
        return self.is_loaded and (self.has_files or self.lost_records)

    @property
    def counted_end_offset(self) -> int:
        """What this replica may count as written: synced bytes in `flush.mode` ack, all bytes otherwise."""
        return self.synced_end_offset if self.config.flush_mode == "ack" else self.end_offset

    # Loading ------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Blocking; idempotent and thread-safe. Reads what is on disk; recovers it after a crash. Raises `NoRoom`."""
        with self.directory.load_lock(self.name):
            if self.is_loaded:
                if self.fault is not None:
                    raise self.fault
                return
            try:
                # Nothing is left of a deleted one, and what its name stands for now may be another's.
                loaded = LoadedLog.empty(0) if self.is_deleted else load_log(self)
            except CorruptSegment as fault:
                self._give_up(fault)
                self._publish(LoadedLog.empty(0))
                raise
            except OSError as error:
                if error.errno in NO_SPACE_ERRORS:  # a full disk is no broken one: the next attempt may succeed
                    raise NoRoom(self.name, self.directory.path) from error
                if not self.is_deleted:  # a deleted partition's files may be gone
                    self.directory.fail(error)
                loaded = LoadedLog.empty(0)
            self._publish(loaded)

    def _give_up(self, fault: CorruptSegment) -> None:
        _LOGGER.error("%s is offline: %s", self.name, fault)
        self.fault = fault
        self.offline = Refusal(ErrorCode.KAFKA_STORAGE_ERROR, str(fault))

    def _publish(self, loaded: LoadedLog) -> None:
        for field in LoadedLog.FIELDS:
            setattr(self, field, getattr(loaded, field))
        if self.fault is None:
            self.high_watermark = min(self.high_watermark, loaded.end_offset)
            self.clean_end_offset = loaded.end_offset if loaded.was_clean else -1
        self.unsynced.begin(loaded.leader_epochs.version if loaded.epochs_are_durable else -1, loaded.unwritten)
        self.is_loaded = True
        if self.fault is None:  # only now: checkpoints written meanwhile take one or the other
            self.directory.forget_found(self.name)

    # Appending ----------------------------------------------------------------------------------------------

    def append_as_leader(
        self, data: bytearray | memoryview, leader_epoch: int, now_ms: int, *, origin: Origin = "client"
    ) -> AppendResult | Refusal:
        """Loop-safe: one write to the page cache. Assigns offsets in `data`, which must be writable.

        Clients send exactly one batch. Coordinators and the metadata quorum may send several, and control batches;
        theirs are trusted to be well-formed. A decision of the quorum is one batch, however large.
        """
        refusal = self._refusal() if not self.is_loaded or self.offline or self.directory.refusal else None
        if refusal is not None:
            return refusal
        config = self.config
        if origin != "client":
            return append_batches(self, data, leader_epoch, now_ms, any_size=origin == "quorum")
        header = check_client_batch(data, config, now_ms)
        if isinstance(header, Refusal):
            return header
        if not config.takes_as_sent and needs_preparation(header, config):
            prepared = prepare_batch(data, header, config, now_ms)
            if isinstance(prepared, Refusal):
                return prepared
            data, header = prepared
        producer_id = header.producer_id
        if producer_id >= 0:
            verdict = self.producers.check(
                producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
            )
            if verdict is not None:
                return _duplicate(verdict, config) if isinstance(verdict, ProducerBatch) else verdict
        return append_checked(self, data, header, leader_epoch, now_ms)

    def append_as_follower(self, data: Buffer, leader_epoch: int = MAX_EPOCH) -> AppendResult | Refusal:
        """Loop-safe; blocks for a few file operations where an empty log starts within the first batch. Appends
        batches that carry offsets and epochs already, as the leader of that epoch sent them."""
        refusal = self._refusal()
        return append_followed(self, data, leader_epoch) if refusal is None else refusal

    def _refusal(self) -> Refusal | None:
        if not self.is_loaded:
            _ = self.end_offset
        return self.offline or self.directory.refusal

    def roll(self) -> bool:
        """Loop-safe. Closes the active segment and starts a new one; False when it is empty or the disk is full."""
        segment = self.active
        if segment is None or segment.size_bytes == 0 or self._read_refusal():
            return False
        try:
            roll_segment(self, segment, self.directory.clock.now_ms())
        except OSError as error:
            self.directory.write_failed(error)
            return False
        return True

    # Reading ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one_batch: bool = True) -> FileSpan | ErrorCode:
        """Loop-safe: plans, does not read. Whole batches of one segment from `offset` up to `end_offset`.

        The first batch may start before `offset`. Readers far behind the end may cost a small read of an index.
        """
        if not self.log_start_offset <= offset <= self.end_offset:
            return self._read_refusal() or ErrorCode.OFFSET_OUT_OF_RANGE
        if self.offline is not None or self.directory.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if offset < self.local_log_start_offset:
            return ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
        if offset >= end_offset or self.active is None:
            return empty_span(offset)
        try:
            return self._plan_read(offset, max_bytes, end_offset, min_one_batch)
        except (CorruptSegment, FileNotFoundError) as fault:
            _LOGGER.error("%s: %s", self.name, fault)
            return ErrorCode.KAFKA_STORAGE_ERROR
        except OSError as error:
            self.directory.fail(error)
            return ErrorCode.KAFKA_STORAGE_ERROR

    def _read_refusal(self) -> ErrorCode | None:
        return None if self.offline is None and self.directory.failure is None else ErrorCode.KAFKA_STORAGE_ERROR

    def _plan_read(self, offset: int, max_bytes: int, end_offset: int, min_one_batch: bool) -> FileSpan:
        directory = self.directory
        segments = self.segments
        at = len(segments) - 1
        if offset < segments[at].base_offset:
            at = max(0, segment_holding(segments, offset))  # in the pool retention may come first
        segment = segments[at]
        position = locate(segment, offset, directory.files, directory.cache)
        if at + 1 < len(segments):
            next_base = segments[at + 1].base_offset
            if position == segment.size_bytes and next_base < end_offset:  # compaction, too, keeps the last offset
                reason = f"it ends in front of offset {offset}, but the next segment starts at {next_base}"
                raise CorruptSegment(segment.path + ".log", position, reason)
        else:
            next_base = self.end_offset
        if end_offset >= next_base:
            end_position = segment.size_bytes
        else:
            end_position = locate(segment, end_offset, directory.files, directory.cache)
        if position >= end_position:
            return empty_span(offset)
        return plan_span(
            segment, offset, position, end_position, max_bytes, min_one_batch, directory.files, directory.cache
        )

    def read_bytes(self, offset: int, max_bytes: int, end_offset: int | None = None) -> bytes | ErrorCode:
        """Blocking. Whole batches from `offset` on; empty at the end of the log."""
        end = self.end_offset if end_offset is None else end_offset
        span = look_up(self, lambda: self.read(offset, max_bytes, end))
        return span.read() if isinstance(span, FileSpan) else span

    def find_by_timestamp(self, timestamp: int) -> RecordPlace | None:
        """Blocking. The first record whose timestamp is not below `timestamp`."""
        return None if self._read_refusal() else look_up(self, lambda: find_by_timestamp(self, timestamp))

    def max_timestamp_offset(self) -> RecordPlace | None:
        """Blocking. The record with the largest timestamp, the first of them. (KIP-734)"""
        return None if self._read_refusal() else look_up(self, lambda: find_max_timestamp(self))

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Loop-safe. The largest known epoch ≤ `epoch` and its end offset; (−1, −1) when unknown. (KIP-279)"""
        return self.leader_epochs.end_offset(epoch, self.end_offset)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Loop-safe. The end of what a read-committed consumer may see."""
        producers = self.producers
        producers.on_high_watermark(high_watermark)
        first_unstable = producers.first_unstable_offset()
        return high_watermark if first_unstable is None else min(first_unstable, high_watermark)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Loop-safe (a small read per segment not seen before). Producer id and first offset of those to skip."""
        return aborted_transactions(self, start_offset, end_offset) if self.segments else []

    # Forgetting ---------------------------------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> Refusal | None:
        """Loop-safe. Moves the log start offset; durable with the next checkpoint of the directory.

        Also drops whole segments below it, which is what a snapshot of the metadata log makes possible.
        """
        if offset > self.end_offset or offset < 0:
            return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.name} ends at {self.end_offset}, not at {offset}")
        self._move_start(offset)
        return None

    def apply_retention(self, now_ms: int, committed_end_offset: int = MAX_LONG) -> int:
        """Loop-safe (a small read per segment not seen before). Deletes what time or size has expired.

        Nothing at or above `committed_end_offset` (the high watermark) goes. Returns how many segments went.
        """
        if self._read_refusal() or not self.segments:
            return 0
        try:
            expired_end = expired_end_offset(self, now_ms, committed_end_offset)
        except OSError as error:
            self.directory.fail(error)
            return 0
        before = len(self.segments)
        active_base = self.segments[-1].base_offset
        self._move_start(min(expired_end, active_base))
        deleted = before - len(self.segments)
        if expired_end > active_base and self.roll():  # even the active segment has expired
            self._move_start(expired_end)
        return deleted

    def _move_start(self, offset: int) -> None:
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.local_log_start_offset = max(self.local_log_start_offset, offset)
            self.high_watermark = max(self.high_watermark, offset)
            self.leader_epochs.truncate_from_start(offset)
        delete_segments_below(self, self.log_start_offset)

    def truncate_to(self, offset: int) -> Refusal | None:
        """Removes everything at and behind `offset`. Called on the loop; blocks for a few file operations."""
        if offset >= self.end_offset:
            self.leader_epochs.truncate_to(offset)
            return self.offline
        return self.change_files(truncate_log, offset)

    def truncate_full_and_start_at(self, offset: int) -> Refusal | None:
        """Forgets everything; the next record gets `offset`. Called on the loop; blocks for a few file operations."""
        return self.change_files(truncate_fully, offset)

    def accept_loss(self) -> None:
        """Loop-safe. What recovery found lost is dealt with: from now on the log ends by right where it does."""
        if self.lost_records:
            self.lost_records = False
            self.directory.make_checkpoints_urgent()

    def expire_producers(self, now_ms: int) -> int:
        """Loop-safe. Forgets producers that were silent for `producer.id.expiration.ms`."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # Syncing ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Blocking. Syncs everything appended so far; for shutdown and for callers without a loop."""
        plan = None if self._read_refusal() else plan_sync(self, include_active=True)
        if plan is None:
            return
        try:
            plan.run(self.directory.disk)
        except OSError as error:
            self.directory.fail(error)
            return
        complete_sync(plan)

    def close(self) -> None:
        """Blocking. Completes indexes and producer snapshot, syncs, lets go of all files. Appending reopens them."""
        if not self.is_loaded or self._read_refusal() or self.active is None:
            return
        close_log(self)

    # For the modules of this room -----------------------------------------------------------------------------

    def change_files(self, change: Callable[["PartitionLog", int], None], offset: int) -> Refusal | None:
        """On the loop; what goes wrong is a refusal, and the log or its directory says so from now on."""
        if self._read_refusal() is None:
            try:
                change(self, offset)
            except NoRoom as error:
                return Refusal(ErrorCode.KAFKA_STORAGE_ERROR, error.message)
            except CorruptSegment as fault:  # where to cut, or who had written, cannot be read
                self._give_up(fault)
            except OSError as error:
                self.directory.fail(error)
        return self.offline or (self.directory.refusal if self.directory.failure is not None else None)

    def note_aborted(self, segment: Segment, completed: CompletedTransaction) -> None:
        """An abort marker was appended to `segment`."""
        note_aborted(self, segment, aborted_entry(self.producers, completed))


def _duplicate(batch: ProducerBatch, config: LogConfig) -> AppendResult:
    append_time_ms = batch.timestamp if config.log_append_time else -1
    return AppendResult(batch.base_offset, batch.last_offset + 1, append_time_ms, batch.timestamp, 0, True)
