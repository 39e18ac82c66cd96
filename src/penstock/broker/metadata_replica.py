"""This node's copy of the metadata: the log on disk, and the two images of what it holds.

`pending` has everything in the log, so that a decision builds on the one before it without waiting, and a new leader
has nothing to load; `image` has what is committed. What is cut off the log is cut off `pending`.

Hard rules: log and `pending` change in one turn of the loop; `image` moves only by `take_committed`; what a full
disk does not take is refused, every other fault of it is raised.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, NamedTuple

from penstock.broker.metadata_changes import delta_between, replay_in_turns
from penstock.broker.metadata_store import (
    LoadedMetadata,
    MetadataStore,
    MetadataUnreadable,
    next_offset,
    replay_batches,
)
from penstock.log.appending import AppendResult
from penstock.log.sync import NO_SPACE_ERRORS
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.quorum.bundle import LeaderChange, SnapshotChunk, VotersChange
from penstock.quorum.control_records import build_leader_change, build_voters, voters_in
from penstock.quorum.election_state import ElectionState
from penstock.quorum.voters import VoterSet
from penstock.records.batch import CorruptBatch, crc_is_valid, iter_headers

log = logging.getLogger("penstock.metadata")

NO_SPACE_RETRY_S = 0.5


class Change(NamedTuple):
    """A change that is in the log but was not known to be committed."""

    delta: MetadataDelta
    image: MetadataImage
    size_bytes: int


class MetadataReplica:
    """Used on the loop; what blocks is done in the pool."""

    def __init__(self, store: MetadataStore, pool: Executor | None) -> None:
        self.store = store
        self.log = store.log
        self.image = MetadataImage()
        """Everything committed."""
        self.pending = MetadataImage()
        """Everything in the log."""
        self._uncommitted: deque[Change] = deque()
        self._pool = pool
        self._waits_for_room = False
        self._full_until_s = 0.0
        self.snapshots_written = self.snapshots_taken = 0
        """Own ones, and ones of a leader, since the start."""

    @property
    def lacks_room(self) -> bool:
        """Whether the last that was to be written found no room on the disk."""
        return self._waits_for_room or self.log.lacks_room

    @property
    def has_uncommitted(self) -> bool:
        return bool(self._uncommitted)

    async def load(self) -> LoadedMetadata:
        """Reads all there is; nothing of it is known to be committed. Raises `MetadataUnreadable`, OSError."""
        loaded = await asyncio.get_running_loop().run_in_executor(self._pool, self.store.load)
        self.pending = loaded.delta.close(loaded.end_offset, loaded.last_epoch, loaded.timestamp_ms)
        self._uncommitted.append(Change(loaded.delta, self.pending, 0))
        return loaded

    async def persist(self, state: ElectionState) -> bool:
        """False: the disk is full, or was a moment ago."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._full_until_s:
            return False
        try:
            await loop.run_in_executor(self._pool, self.store.write_election_state, state)
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise
            log.warning("the election state waits for room on the disk: %s", error)
            self._waits_for_room = True
            self._full_until_s = loop.time() + NO_SPACE_RETRY_S
            return False
        self._waits_for_room = False
        return True

    # --- writing ------------------------------------------------------------------------------------------------

    def append(self, batch: bytearray, delta: MetadataDelta, image: MetadataImage) -> int | Refusal:
        """As leader; `image` is `pending` with `delta`. Answers the new end of the log."""
        result = self.log.append_as_leader(batch, image.epoch, image.timestamp_ms, origin="quorum")
        self._note_room(result)
        if isinstance(result, Refusal):
            return result
        self._took(delta, image, len(batch))
        return result.end_offset

    def append_control(self, change: LeaderChange | VotersChange, *, first_voters: bool) -> int | Refusal:
        now_ms = self.store.clock.now_ms()
        if isinstance(change, LeaderChange):
            batch = build_leader_change(change, now_ms)
        else:
            batch = build_voters(change.voters, change.epoch, now_ms, with_version=first_voters)
            log.info("the voters are now %s", sorted(change.voters.ids))
        count = next(header.record_count for _, header in iter_headers(batch))
        delta = MetadataDelta(self.pending)
        image = delta.close(self.log.end_offset + count, change.epoch, now_ms)
        return self.append(batch, delta, image)

    async def replicate(self, records: Any, epoch: int) -> list[tuple[int, VoterSet]] | Refusal:
        """Writes what the leader sent, and replays it into `pending`."""
        start = self.log.end_offset
        if (refusal := _refuse_damaged(records, start)) is not None:
            return refusal
        delta = MetadataDelta(self.pending)
        timestamp_ms = await replay_in_turns(records, delta)
        result = self.log.append_as_follower(records, epoch)
        self._note_room(result)
        if isinstance(result, Refusal):
            return result
        if self.log.end_offset != next_offset(records):  # the disk filled up in between
            records = memoryview(records)[: result.size_bytes]
            delta = MetadataDelta(self.pending)
            timestamp_ms = replay_batches(records, start, delta)
        self._took(delta, delta.close(self.log.end_offset, self.store.view.last_epoch, timestamp_ms), len(records))
        return voters_in(records)

    def _note_room(self, result: AppendResult | Refusal) -> None:
        """There are other reasons to refuse: a failed disk, and batches that are not as they should be."""
        is_refused = isinstance(result, Refusal) and result.code is ErrorCode.KAFKA_STORAGE_ERROR
        self._waits_for_room = is_refused and self.store.directory.failure is None

    def _took(self, delta: MetadataDelta, image: MetadataImage, size_bytes: int) -> None:
        self.pending = image
        self._uncommitted.append(Change(delta, image, size_bytes))

    async def truncate(self, end_offset: int) -> None:
        """The leader has another history: ours is cut, in the log and in `pending`."""
        if end_offset < self.store.floor.offset:
            raise MetadataUnreadable(
                f"the leader wants {self.log.path} cut at offset {end_offset}, but everything below "
                f"{self.store.floor.offset} was committed: it, and others, have lost what was acknowledged"
            )
        log.info("the metadata log is cut from %d to %d", self.log.end_offset, end_offset)
        self.log.truncate_to(end_offset)
        if self.log.fault is not None:
            raise self.log.fault
        end_offset = self.log.end_offset
        while self._uncommitted and self._uncommitted[-1].image.end_offset > end_offset:
            self._uncommitted.pop()
        kept = self._uncommitted[-1].image if self._uncommitted else self.image
        if kept.end_offset < end_offset:
            loop = asyncio.get_running_loop()
            delta, image = await loop.run_in_executor(self._pool, self.store.replay_behind, kept)
            self._uncommitted.append(Change(delta, image, 0))
            kept = image
        self.pending = kept
        if self.store.directory.commit is not None:
            self.store.directory.commit.request(self.log, end_offset)

    def take_committed(self, high_watermark: int) -> Iterator[Change]:
        """What is committed by that, change by change; `image` has each when it is yielded."""
        while self._uncommitted and self._uncommitted[0].image.end_offset <= high_watermark:
            change = self._uncommitted.popleft()
            self.image = change.image
            yield change

    # --- snapshots ----------------------------------------------------------------------------------------------

    async def take_chunk(self, chunk: SnapshotChunk) -> VoterSet | bool | None:
        """A piece of the leader's snapshot. True: more to come; False: it is of no use now."""
        loop = asyncio.get_running_loop()
        write, receive = self.store.write_chunk, self.store.receive_snapshot
        try:
            await loop.run_in_executor(self._pool, write, chunk.snapshot, chunk.position, chunk.data)
            if not chunk.is_last:
                return True
            image, voters = await loop.run_in_executor(self._pool, receive, chunk.snapshot)
        except MetadataUnreadable as error:
            log.error("the leader's snapshot is of no use: %s", error)
            return False
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise
            log.warning("the leader's snapshot waits for room on the disk: %s", error)
            return False
        delta = await loop.run_in_executor(self._pool, delta_between, self.image, image)
        self.store.begin_behind(chunk.snapshot)
        self._uncommitted.clear()
        self._took(delta, image, 0)
        self.snapshots_taken += 1
        log.info("metadata snapshot %s taken from the leader", chunk.snapshot.file_name)
        return voters

    @property
    def is_all_committed(self) -> bool:
        """Whether the log can be split exactly at its end."""
        return self.log.end_offset == self.image.end_offset

    async def write_snapshot(self, image: MetadataImage, voters: VoterSet | None) -> None:
        """Into a file; then the log in front of it goes. Raises OSError."""
        loop = asyncio.get_running_loop()
        snapshot = await loop.run_in_executor(self._pool, self.store.write_snapshot, image, voters)
        view = self.store.view
        if view.snapshot is None or view.snapshot < snapshot:
            view.snapshot = snapshot
        self.log.delete_records_before(snapshot.end_offset)
        self.snapshots_written += 1
        log.info("metadata snapshot %s written", snapshot.file_name)


def _refuse_damaged(records: Any, end_offset: int) -> Refusal | None:
    """Before anything is replayed: what a flipped bit makes of a record is nothing that a leader ever decided. Nor is
    an offset ever left out: what a gap stood for would be missing here for good."""
    start = end_offset
    try:
        for position, header in iter_headers(records):
            if header.base_offset != end_offset:
                text = f"behind offset {end_offset} the leader sent a batch at {header.base_offset}"
                return Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, text)
            end_offset = header.next_offset
            if not crc_is_valid(records, position, header):
                text = f"the batch at offset {header.base_offset} fails its checksum"
                return Refusal(ErrorCode.CORRUPT_MESSAGE, text)
    except CorruptBatch as error:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, str(error))
    if end_offset == start:
        return Refusal(ErrorCode.CORRUPT_MESSAGE, "the leader sent no whole batch")
    return None
