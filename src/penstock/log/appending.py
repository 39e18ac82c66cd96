"""Writing batches to the active segment, and rolling to the next one.

The hot path is `append_checked`: patch, one write, bookkeeping. A disk that is full refuses the append and leaves
the log as it was; any other failed write fails the log directory.
"""

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.log.checkpoints import PARTITION_METADATA_FILE, encode_partition_metadata
from penstock.log.config import LogConfig
from penstock.log.producer_snapshot import encode_snapshot
from penstock.log.producers import ProducerBatch
from penstock.log.replay import replay_batch
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.log.truncation import begin_below_start, return_to_start
from penstock.log.write_back import ALIGNMENT
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Buffer
from penstock.records.batch import (
    NO_LEADER_EPOCH,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
    crc_is_valid,
    iter_headers,
    patch_offset_and_epoch,
)

if TYPE_CHECKING:
    from penstock.log.partition_log import PartitionLog

_LOGGER = logging.getLogger(__name__)
_make: Any = tuple.__new__  # a named tuple without its Python-level constructor


class AppendResult(NamedTuple):
    base_offset: int
    end_offset: int
    log_append_time_ms: int
    """−1 where the producer's timestamps count."""
    max_timestamp: int
    size_bytes: int
    duplicate: bool = False
    """The batch was in the log already; nothing was written."""


def append_checked(
    log: "PartitionLog", data: bytearray | memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
) -> AppendResult | Refusal:
    """Appends one batch that passed validation; offsets are assigned here."""
    config = log.config
    size = len(data)
    base_offset = log.end_offset
    last_offset = base_offset + header.last_offset_delta
    max_timestamp = header.max_timestamp
    if leader_epoch < log.leader_epochs.latest:
        return _refuse_epoch(log, leader_epoch)
    segment = log.active
    if segment is None or _must_roll(segment, size, last_offset, max_timestamp, now_ms, config):
        made = _next_segment(log, segment, size, now_ms)
        if isinstance(made, Refusal):
            return made
        segment = made
    patch_offset_and_epoch(data, 0, base_offset, leader_epoch)
    position = segment.size_bytes
    try:
        (segment.file or log.directory.files.open(segment)).write_at(position, (data,))
    except OSError as error:
        return _write_failed(log, segment, error)
    segment.size_bytes = position + size
    segment.dirty = segment.used = True
    if position == 0:
        segment.first_timestamp = max_timestamp
    segment.mark(base_offset, position)
    if segment.note_batch(position, size, last_offset, max_timestamp, config):
        hand_over(log, segment)
    if leader_epoch > log.leader_epochs.latest:
        log.leader_epochs.assign(leader_epoch, base_offset)
    if header.producer_id >= 0:
        _note_producer(log, header, base_offset, last_offset)
    log.end_offset = last_offset + 1
    log.size_bytes += size
    request_sync(log, config)
    append_time_ms = max_timestamp if config.log_append_time else -1
    result: AppendResult = _make(
        AppendResult, (base_offset, last_offset + 1, append_time_ms, max_timestamp, size, False)
    )
    return result


def _note_producer(log: "PartitionLog", header: BatchHeader, base_offset: int, last_offset: int) -> None:
    batch = ProducerBatch(header.base_sequence, header.last_sequence, base_offset, last_offset, header.max_timestamp)
    transactional = bool(header.attributes & TRANSACTIONAL_BIT)
    log.producers.replay_data(header.producer_id, header.producer_epoch, batch, transactional=transactional)


def _refuse_epoch(log: "PartitionLog", leader_epoch: int) -> Refusal:
    """Epochs never go back within a log; recovery relies on it."""
    return Refusal(
        ErrorCode.FENCED_LEADER_EPOCH,
        f"{log.name} has batches of leader epoch {log.leader_epochs.latest}, epoch {leader_epoch} is over",
    )


def request_sync(log: "PartitionLog", config: LogConfig) -> None:
    """Asks for what `flush.mode` promises. Without a running group commit the owner calls `flush`."""
    commit = log.directory.commit
    if commit is None:
        return
    if config.flush_mode == "ack":
        commit.request(log)
    elif config.flush_mode == "interval":
        if log.end_offset - log.synced_end_offset >= config.flush_messages:
            commit.request(log)
        else:
            commit.defer(log, config.flush_ms)


def append_batches(
    log: "PartitionLog", data: bytearray | memoryview, leader_epoch: int, now_ms: int, *, any_size: bool
) -> AppendResult | Refusal:
    """Appends batches built by this broker: several at once, control batches allowed. Offsets are assigned here.

    `any_size`: one that is larger than a segment gets a segment of its own, and is not refused.
    """
    if leader_epoch < log.leader_epochs.latest:
        return _refuse_epoch(log, leader_epoch)
    batches = []
    offset = log.end_offset
    try:
        for pos, header in iter_headers(data):
            batches.append((pos, header._replace(base_offset=offset, partition_leader_epoch=leader_epoch)))
            offset += header.last_offset_delta + 1
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if not batches or batches[-1][0] + batches[-1][1].size_bytes != len(data):
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the last batch is cut off")
    for pos, header in batches:
        patch_offset_and_epoch(data, pos, header.base_offset, leader_epoch)
    return _append_runs(log, data, batches, now_ms, whole=True, any_size=any_size)


def append_followed(log: "PartitionLog", data: Buffer, leader_epoch: int) -> AppendResult | Refusal:
    """Appends batches as a leader sent them. A batch cut off at the end, as Fetch may deliver, is left out, and so
    are those that found no room when more came than a segment holds: the result tells where the log ends now."""
    batches: list[tuple[int, BatchHeader]] = []
    next_offset = log.end_offset
    epoch = log.leader_epochs.latest
    has_gaps = False
    try:
        for pos, header in iter_headers(data):
            if header.base_offset != next_offset:
                if header.base_offset > next_offset:
                    has_gaps = True
                elif batches or not _holds_start(log, header):
                    return _refuse_offset(log, next_offset, header)
            if header.last_offset_delta < 0:
                return _refuse_offset(log, next_offset, header)
            if not crc_is_valid(data, pos, header):
                return Refusal(ErrorCode.CORRUPT_MESSAGE, f"CRC mismatch in the batch at offset {header.base_offset}")
            batch_epoch = header.partition_leader_epoch
            if batch_epoch != epoch and batch_epoch != NO_LEADER_EPOCH:
                if batch_epoch < epoch:
                    return _refuse_epoch(log, batch_epoch)
                epoch = batch_epoch
            if batch_epoch > leader_epoch:
                text = f"a batch of epoch {batch_epoch} from the leader of epoch {leader_epoch}"
                return Refusal(ErrorCode.FENCED_LEADER_EPOCH, text)
            batches.append((pos, header))
            next_offset = header.next_offset
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if not batches:
        return AppendResult(log.end_offset, log.end_offset, -1, -1, 0)
    if batches[0][1].base_offset < log.end_offset:
        result = _append_below_start(log, data, batches)
    else:
        result = _append_runs(log, data, batches, log.directory.clock.now_ms(), whole=False, any_size=True)
    if has_gaps:  # early enough: syncs are planned in a later turn, or by whoever called this
        log.directory.note_gaps(log.name)
    return result


def _refuse_offset(log: "PartitionLog", end_offset: int, header: BatchHeader) -> Refusal:
    return Refusal(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{log.name} ends at {end_offset}, a batch at {header.base_offset} cannot be appended",
    )


def _holds_start(log: "PartitionLog", header: BatchHeader) -> bool:
    """Whether an empty log starts within this batch: records were deleted up to there; leaders send whole batches."""
    start = log.log_start_offset
    return log.end_offset == start and header.base_offset < start <= header.last_offset


def _append_below_start(
    log: "PartitionLog", data: Buffer, batches: list[tuple[int, BatchHeader]]
) -> AppendResult | Refusal:
    """What was deleted before the start comes along, as it lies in the leader's log, and stays hidden."""
    refusal = log.change_files(begin_below_start, batches[0][1].base_offset)
    result = refusal or _append_runs(log, data, batches, log.directory.clock.now_ms(), whole=False, any_size=True)
    if log.end_offset < log.log_start_offset:
        log.change_files(return_to_start, log.log_start_offset)
    log.leader_epochs.truncate_from_start(log.log_start_offset)
    return result


def _append_runs(
    log: "PartitionLog",
    data: Buffer,
    batches: list[tuple[int, BatchHeader]],
    now_ms: int,
    *,
    whole: bool,
    any_size: bool,
) -> AppendResult | Refusal:
    """Writes runs of batches, each with one write, rolling between runs where a segment is full.

    What fits into one segment goes into one: a full disk takes all of it or nothing. What must be `whole` goes into
    one even if it is larger; otherwise some runs may be written when one is refused, and that is no refusal.
    """
    view = memoryview(data)
    config = log.config
    max_timestamp = -1
    at = 0
    refusal: Refusal | None = None
    total_bytes = batches[-1][0] + batches[-1][1].size_bytes
    while at < len(batches):
        pos, header = batches[at]
        segment = log.active
        size = total_bytes - pos if whole or total_bytes - pos <= config.segment_bytes else header.size_bytes
        last_offset = (batches[-1][1] if whole else header).last_offset
        if segment is None or _must_roll(segment, size, last_offset, header.max_timestamp, now_ms, config):
            # A follower takes what its leader took, also if segment.bytes is smaller by now: in a segment of its own.
            largest = max(batch.size_bytes for _, batch in batches) if not any_size else 0
            made = _next_segment(log, segment, largest, now_ms)
            if isinstance(made, Refusal):
                refusal = made
                break
            segment = made
        end = len(batches) if whole else _run_end(segment, batches, at, config)
        run_bytes = batches[end - 1][0] + batches[end - 1][1].size_bytes - pos
        position = segment.size_bytes
        try:
            (segment.file or log.directory.files.open(segment)).write_at(position, (view[pos : pos + run_bytes],))
        except OSError as error:
            refusal = _write_failed(log, segment, error)
            break
        for batch_pos, batch in batches[at:end]:
            _note_batch(log, segment, batch, data, batch_pos, position + batch_pos - pos)
            max_timestamp = max(max_timestamp, batch.max_timestamp)
        at = end
    if at:
        request_sync(log, config)
    if refusal is not None and (at == 0 or log.directory.failure is not None):
        return refusal
    written = batches[at][0] if at < len(batches) else len(view)
    return AppendResult(batches[0][1].base_offset, log.end_offset, -1, max_timestamp, written)


def _run_end(segment: Segment, batches: list[tuple[int, BatchHeader]], start: int, config: LogConfig) -> int:
    """How many batches from `start` on fit into the segment; at least one."""
    room = config.segment_bytes - segment.size_bytes
    end = start
    while end < len(batches):
        pos, header = batches[end]
        if pos + header.size_bytes - batches[start][0] > room and end > start:
            break
        if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
            break
        end += 1
    return end


def _note_batch(
    log: "PartitionLog", segment: Segment, header: BatchHeader, data: Buffer, pos: int, position: int
) -> None:
    size = header.size_bytes
    segment.size_bytes = position + size
    segment.dirty = segment.used = True
    if position == 0:
        segment.first_timestamp = header.max_timestamp
    segment.mark(header.base_offset, position)
    if segment.note_batch(position, size, header.last_offset, header.max_timestamp, log.config):
        hand_over(log, segment)
    completed = replay_batch(header, data, pos, log.leader_epochs, log.producers)
    if completed is not None and completed.aborted:
        log.note_aborted(segment, completed)
    log.end_offset = header.next_offset
    log.size_bytes += size


def _must_roll(
    segment: Segment, size: int, last_offset: int, max_timestamp: int, now_ms: int, config: LogConfig
) -> bool:
    used = segment.size_bytes
    if used + size > config.segment_bytes or last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if used == 0:
        return False
    if segment.first_timestamp >= 0:
        waited_ms = max_timestamp - segment.first_timestamp
    else:
        waited_ms = now_ms - segment.created_ms
    return waited_ms > config.segment_ms or segment.is_full


def _next_segment(log: "PartitionLog", segment: Segment | None, size: int, now_ms: int) -> Segment | Refusal:
    if size > log.config.segment_bytes:
        return Refusal(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch of {size} bytes is larger than segment.bytes = {log.config.segment_bytes}",
        )
    try:
        if segment is None:
            return create_first_segment(log, log.end_offset, now_ms)
        if segment.size_bytes == 0 and segment.base_offset == log.end_offset:
            return segment
        return roll_segment(log, segment, now_ms)
    except OSError as error:
        return _write_failed(log, None, error)


def create_first_segment(log: "PartitionLog", base_offset: int, now_ms: int) -> Segment:
    """The partition's directory and its first segment: nothing of it exists before the first append."""
    if log.directory.checkpoints_urgent:
        log.directory.write_checkpoints()
    disk = log.directory.disk
    path = log.path
    disk.make_dirs(path)
    content = encode_partition_metadata(log.topic_id)
    file = disk.open(f"{path}/{PARTITION_METADATA_FILE}", create=True)
    file.write_at(0, (content,))
    file.close()
    segment = create_segment(log, base_offset, now_ms)
    log.unsynced.add_small_file(PARTITION_METADATA_FILE, content)
    return segment


def create_segment(log: "PartitionLog", base_offset: int, now_ms: int) -> Segment:
    """A new active segment behind the others. Its file exists at once: it alone tells where an empty log ends."""
    segment = Segment(log.path, base_offset, created_ms=now_ms)
    # A log of this name that was deleted while it was recovered, or read, may have left its index there.
    log.directory.cache.forget(segment.path + ".index")
    log.directory.files.open(segment, create=True)
    segment.become_active()
    segment.aborted = []
    log.segments = (*log.segments, segment)
    log.active = segment
    log.unsynced.names = True
    return segment


def roll_segment(log: "PartitionLog", segment: Segment, now_ms: int) -> Segment:
    """Closes the active segment and starts the next one at the end of the log."""
    directory = log.directory
    if directory.checkpoints_urgent:
        # A closed segment must not lie below a recovery point from before a truncation.
        directory.write_checkpoints()
    segment.flush_indexes(directory.disk, directory.cache, complete=True)
    successor = create_segment(log, log.end_offset, now_ms)
    log.clean_end_offset = -1
    segment.become_closed()
    log.unsynced.add_closed(segment)
    log.unsynced.add_small_file(f"{successor.base_offset:020d}.snapshot", encode_snapshot(log.producers))
    if directory.commit is not None:
        directory.commit.request(log)
    return successor


def hand_over(log: "PartitionLog", segment: Segment) -> None:
    """Every few megabytes: index entries go from memory to the files, and the kernel is to begin with the batches.

    On a full disk the entries simply stay in memory. In mode ack each append is synced: there is nothing to begin."""
    directory = log.directory
    try:
        segment.flush_indexes(directory.disk, directory.cache)
    except OSError as error:
        if error.errno not in NO_SPACE_ERRORS:
            directory.fail(error)
    piece = range(segment.begun_bytes, segment.size_bytes // ALIGNMENT * ALIGNMENT)
    if piece:
        segment.begun_bytes = piece.stop
        if directory.commit is not None and segment.file is not None and log.config.flush_mode != "ack":
            directory.commit.write_back(segment.file, piece)


def _write_failed(log: "PartitionLog", segment: Segment | None, error: OSError) -> Refusal:
    directory = log.directory
    if error.errno in NO_SPACE_ERRORS:
        try:
            if segment is not None and segment.file is not None:
                segment.file.truncate(segment.size_bytes)
        except OSError as second:
            directory.fail(second)
        else:
            _LOGGER.warning("%s: no space left for an append: %s", log.name, error)
            return Refusal(
                ErrorCode.KAFKA_STORAGE_ERROR, f"no space left on the disk of {directory.path}; free space and retry"
            )
    else:
        directory.fail(error)
    assert directory.refusal is not None
    return directory.refusal
