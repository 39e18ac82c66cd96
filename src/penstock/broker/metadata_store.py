"""The files of the metadata quorum: `__cluster_metadata-0` with its segments, snapshots and `quorum-state`.

Everything that blocks is here and runs in the pool. Hard rules: a snapshot is on stable storage, under its final
name, before the log in front of it may go (R13); the election state is replaced whole, never half written (R2, R3).
The disk usage guard does not apply: deleting a topic must be possible on a full disk.
"""

import contextlib
import logging
from collections.abc import Iterable
from typing import NamedTuple

from penstock.broker.metadata_floor import FILE_NAME as FLOOR_FILE_NAME
from penstock.broker.metadata_floor import MetadataFloor
from penstock.broker.quorum_addresses import METADATA_TOPIC_ID
from penstock.log.checkpoints import read_whole, write_atomically
from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.errors import CorruptSegment
from penstock.log.offset_index import IndexCache
from penstock.log.partition_log import PartitionLog
from penstock.log.segment import OpenFiles
from penstock.metadata.delta import MetadataDelta, UnsupportedRecord
from penstock.metadata.features import UnsupportedLevel
from penstock.metadata.image import METADATA_TOPIC, MetadataImage
from penstock.metadata.settings import BrokerSettings
from penstock.metadata.snapshot import (
    CorruptSnapshot,
    SnapshotId,
    encode_snapshot,
    parse_snapshot_name,
    replay_snapshot,
)
from penstock.model.ports import Buffer, Clock, Disk, DiskFile
from penstock.quorum.control_records import voters_in
from penstock.quorum.election_state import (
    FILE_NAME,
    CorruptElectionState,
    ElectionState,
    decode_election_state,
    encode_election_state,
)
from penstock.quorum.voters import VoterSet
from penstock.records.batch import CorruptBatch, iter_headers
from penstock.records.reader import read_records
from penstock.wire.errors import WireError

_READ_BYTES = 4 << 20
_PART = ".part"
"""Behind the name of a snapshot that is not whole yet."""
_DAMAGE = (CorruptElectionState, CorruptSnapshot, CorruptSegment, CorruptBatch, WireError)
_OPEN_FILES = 8

log = logging.getLogger("penstock.metadata")


class MetadataUnreadable(Exception):
    """The node must not start on this metadata. The message says why and what to do."""


class LoadedMetadata(NamedTuple):
    """What was on disk. `delta` holds all of it as one change of the empty image."""

    election: ElectionState
    delta: MetadataDelta
    end_offset: int
    last_epoch: int
    timestamp_ms: int
    snapshot: SnapshotId | None
    snapshot_voters: VoterSet | None
    voters: list[tuple[int, VoterSet]]
    """Voter sets in the log, with their offsets."""


class _MetadataDirectory(LogDirectory):
    """The directory as the metadata log alone sees it.

    Shares its path with the data logs, whose checkpoint files it must not touch: what they would hold for this log
    follows from the newest snapshot, and recovery always looks at the whole log, which snapshots keep short.
    """

    __slots__ = ()

    def prepare(self, log_name: str) -> None:
        """In place of `load`: makes sure of the path, and notes whether the log was there before."""
        self._create()
        if self.disk.exists(f"{self.path}/{log_name}"):
            self.on_disk[log_name] = None
        else:
            self.disk.make_dirs(f"{self.path}/{log_name}")
        # Also when it was there: an earlier start may have ended before. A vote in it must not vanish with its name.
        self.disk.sync_dir(self.path)

    def write_checkpoints(self, *, closing: bool = False) -> None:
        self._met(self._urgency)

    def write_log_start_offsets(self) -> None:
        pass

    def write_gaps(self, name: str) -> None:
        pass


class MetadataLogView:
    """The metadata log as the quorum sees it."""

    __slots__ = ("_flushes", "_log", "snapshot")

    def __init__(self, log: PartitionLog, flushes: bool) -> None:
        self._log = log
        self._flushes = flushes
        self.snapshot: SnapshotId | None = None
        """The newest one, whole and on stable storage."""

    @property
    def start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def synced_end_offset(self) -> int:
        return self._log.synced_end_offset if self._flushes else self._log.end_offset

    @property
    def last_epoch(self) -> int:
        return max(self._log.leader_epochs.latest, self.snapshot.epoch if self.snapshot is not None else 0)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self._log.epoch_end_offset(epoch)


class MetadataStore:
    """All methods but `log`'s own block."""

    def __init__(self, disk: Disk, clock: Clock, path: str, settings: BrokerSettings) -> None:
        self.disk = disk
        self.clock = clock
        self.flushes = settings.metadata_log_flush
        self.directory = _MetadataDirectory(path, disk, clock, OpenFiles(disk, _OPEN_FILES), IndexCache(disk))
        config = LogConfig(
            segment_bytes=settings.metadata_log_segment_bytes,
            segment_ms=settings.metadata_log_segment_ms,
            retention_ms=-1,
            max_message_bytes=settings.metadata_log_segment_bytes,
            flush_mode="ack" if self.flushes else "os",
            file_delete_delay_ms=0,
        )
        self.log = PartitionLog(self.directory, METADATA_TOPIC, 0, METADATA_TOPIC_ID, config)
        self.view = MetadataLogView(self.log, self.flushes)
        self.floor = MetadataFloor(disk, self.log.path)

    def load(self) -> LoadedMetadata:
        """Reads everything. Raises `MetadataUnreadable`, and OSError where the disk is at fault or full."""
        self.directory.prepare(self.log.name)
        voters: list[tuple[int, VoterSet]] = []
        try:
            content = read_whole(self.disk, f"{self.log.path}/{FILE_NAME}")
            election = decode_election_state(content) if content is not None else ElectionState()
            snapshot = max(self._snapshots(), default=None)
            if snapshot is not None:
                self.view.snapshot = snapshot
                self.directory.log_start_offsets[self.log.name] = snapshot.end_offset
            self._check_floor(snapshot.end_offset if snapshot is not None else 0)
            self.log.load()
            if self.directory.failure is not None:
                raise self.directory.failure
            self._know_epoch_of_snapshot()
            delta = MetadataDelta(MetadataImage())
            timestamp_ms, snapshot_voters = self._replay_snapshot(snapshot, delta)
            timestamp_ms = self._replay_log(snapshot.end_offset if snapshot else 0, delta, timestamp_ms, voters)
        except _DAMAGE as error:
            raise MetadataUnreadable(f"the metadata of this node cannot be read: {error}") from error
        except (UnsupportedRecord, UnsupportedLevel) as error:
            raise MetadataUnreadable(str(error)) from error
        end_offset, last_epoch = self.log.end_offset, self.view.last_epoch
        return LoadedMetadata(
            election, delta, end_offset, last_epoch, timestamp_ms, snapshot, snapshot_voters, voters
        )

    def _check_floor(self, start_offset: int) -> None:
        """Before recovery cuts anything."""
        self.floor.load()
        damage = self.floor.damage(start_offset)
        if damage is not None:
            raise MetadataUnreadable(
                f"{damage}; but everything below offset {self.floor.offset} was committed, so nothing is cut off. "
                f"Restore all files of {self.log.path} from one backup. Where other voters have a majority, move the "
                "data directory aside instead and start this node with an empty one: it joins as a new voter. A node "
                f"that is alone goes on without what lies behind the damage once its {FLOOR_FILE_NAME} is removed"
            )

    def replay_behind(self, image: MetadataImage) -> tuple[MetadataDelta, MetadataImage]:
        """What the log holds behind `image`, after its end was cut off. Raises `MetadataUnreadable`."""
        delta = MetadataDelta(image)
        timestamp_ms = image.timestamp_ms
        offset = image.end_offset
        try:
            if self.view.snapshot is not None and offset < self.view.snapshot.end_offset:
                timestamp_ms, _ = self._replay_snapshot(self.view.snapshot, delta)
                offset = self.view.snapshot.end_offset
            timestamp_ms = self._replay_log(offset, delta, timestamp_ms, [])
        except (*_DAMAGE, UnsupportedRecord, UnsupportedLevel) as error:
            raise MetadataUnreadable(f"the metadata of this node cannot be read: {error}") from error
        return delta, delta.close(self.log.end_offset, self.view.last_epoch, timestamp_ms)

    def _know_epoch_of_snapshot(self) -> None:
        """A log that begins behind a snapshot knows the epoch in front of its first entry from it alone."""
        snapshot = self.view.snapshot
        if snapshot is not None and self.log.leader_epochs.latest < snapshot.epoch:
            self.log.leader_epochs.assign(snapshot.epoch, snapshot.end_offset)

    def write_election_state(self, state: ElectionState) -> None:
        path = f"{self.log.path}/{FILE_NAME}"
        content = encode_election_state(state)
        if self.flushes:
            write_atomically(self.disk, path, content)
            self.disk.sync_dir(self.log.path)
        else:
            self._write_file(path + ".tmp", [content])
            self.disk.rename(path + ".tmp", path)

    def write_snapshot(self, image: MetadataImage, voters: VoterSet | None) -> SnapshotId:
        """Writes the image beside the log and removes older snapshots. The log in front of it may go afterwards."""
        snapshot = SnapshotId(image.end_offset, image.epoch)
        part = f"{self.log.path}/{snapshot.file_name}{_PART}"
        try:
            self._write_file(part, encode_snapshot(image, self.clock.now_ms(), voters))
        except OSError:
            with contextlib.suppress(OSError):  # the next one has another name
                self.disk.remove(part)
            raise
        self._publish_snapshot(snapshot)
        return snapshot

    def _publish_snapshot(self, snapshot: SnapshotId) -> None:
        path = f"{self.log.path}/{snapshot.file_name}"
        self.disk.rename(path + _PART, path)
        if self.flushes:
            self.disk.sync_dir(self.log.path)
        for name in self.disk.list_dir(self.log.path):
            old = parse_snapshot_name(name.removesuffix(_PART))
            if old is not None and old < snapshot:
                self.disk.remove(f"{self.log.path}/{name}")

    # --- snapshots on their way from node to node -----------------------------------------------------------------

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        """Size of the file and a piece of it; None when it is gone."""
        try:
            file = self.disk.open(f"{self.log.path}/{snapshot.file_name}", writable=False)
        except FileNotFoundError:
            return None
        try:
            return file.size(), file.read_at(position, max_bytes)
        finally:
            file.close()

    def write_chunk(self, snapshot: SnapshotId, position: int, data: Buffer) -> None:
        file = self._open_part(snapshot)
        try:
            file.truncate(position)
            file.write_at(position, [data])
        finally:
            file.close()

    def receive_snapshot(self, snapshot: SnapshotId) -> tuple[MetadataImage, VoterSet | None]:
        """The last piece is there: reads it, and makes it durable under its name. Raises `MetadataUnreadable`."""
        path = f"{self.log.path}/{snapshot.file_name}"
        file = self._open_part(snapshot)
        try:
            content = file.read_at(0, file.size())
            if self.flushes:
                file.sync()
        finally:
            file.close()
        delta = MetadataDelta(MetadataImage())
        try:
            timestamp_ms = replay_snapshot(content, snapshot, delta)
            voters = voters_in(content)
        except (*_DAMAGE, UnsupportedRecord, UnsupportedLevel) as error:
            self.disk.remove(path + _PART)
            raise MetadataUnreadable(f"the snapshot {snapshot.file_name} cannot be read: {error}") from error
        self._publish_snapshot(snapshot)
        image = delta.close(snapshot.end_offset, snapshot.epoch, timestamp_ms)
        return image, voters[-1][1] if voters else None

    def begin_behind(self, snapshot: SnapshotId) -> None:
        """On the loop: the log is replaced by the snapshot that was received."""
        self.view.snapshot = max(snapshot, self.view.snapshot or snapshot)
        self.log.truncate_full_and_start_at(snapshot.end_offset)
        self._know_epoch_of_snapshot()

    def _open_part(self, snapshot: SnapshotId) -> DiskFile:
        return self.disk.open(f"{self.log.path}/{snapshot.file_name}{_PART}", create=True)

    def close(self) -> None:
        """After the directory was stopped. On a full disk the indexes stay behind: the next start completes them."""
        if self.directory.failure is None:
            try:
                self.log.close()
                self.directory.deletions.finish()
            except OSError as error:
                log.warning("the metadata log was not closed cleanly, its indexes will be rebuilt: %s", error)

    def _write_file(self, path: str, chunks: Iterable[Buffer]) -> None:
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            position = 0
            for chunk in chunks:
                position += file.write_at(position, [chunk])
            if self.flushes:
                file.sync()
        finally:
            file.close()

    def _snapshots(self) -> list[SnapshotId]:
        found = (parse_snapshot_name(name) for name in self.disk.list_dir(self.log.path))
        return [snapshot for snapshot in found if snapshot is not None]

    def _replay_snapshot(self, snapshot: SnapshotId | None, delta: MetadataDelta) -> tuple[int, VoterSet | None]:
        """Answers the snapshot's last contained timestamp and the voters it names."""
        if snapshot is None:
            return -1, None
        content = read_whole(self.disk, f"{self.log.path}/{snapshot.file_name}") or b""
        timestamp_ms = replay_snapshot(content, snapshot, delta)
        voters = voters_in(content)
        return timestamp_ms, voters[-1][1] if voters else None

    def _replay_log(
        self, offset: int, delta: MetadataDelta, timestamp_ms: int, voters: list[tuple[int, VoterSet]]
    ) -> int:
        """Replays from `offset` to the end; answers the timestamp of the last batch, and adds to `voters`."""
        log = self.log
        if log.log_start_offset > offset:
            raise MetadataUnreadable(
                f"the metadata log begins at offset {log.log_start_offset}, but there is no snapshot of what came "
                f"before; restore the newest *.checkpoint file of {log.path} from a backup"
            )
        while offset < log.end_offset:
            content = log.read_bytes(offset, _READ_BYTES)
            if not isinstance(content, bytes) or not content:
                raise MetadataUnreadable(f"the metadata log cannot be read at offset {offset}")
            timestamp_ms = replay_batches(content, offset, delta)
            voters += voters_in(content)
            offset = next_offset(content)
        return timestamp_ms


def replay_batches(content: Buffer, offset: int, delta: MetadataDelta) -> int:
    """Replays the records from `offset` on; answers the timestamp of the last batch."""
    timestamp_ms = -1
    for pos, header in iter_headers(content):
        if header.next_offset > offset and not header.is_control:
            for record in read_records(content, pos):
                if record.offset >= offset:
                    delta.replay_encoded(record.value or b"", record.offset)
        timestamp_ms = header.max_timestamp
    return timestamp_ms


def next_offset(content: Buffer) -> int:
    """Where these batches end."""
    return max(header.next_offset for _, header in iter_headers(content))
