"""Runs the quorum over the metadata log: elects, appends, syncs, commits, replays, publishes, snapshots.

    append(records) -> log, pending image -> fsync -> high watermark -> committed image -> listeners, waiters

Two images: `pending` has everything appended, so that the next decision builds on the one before it without waiting
for the disk; `image` has what is committed, and only that is ever shown. Log order makes this safe: if an entry is
lost, so is everything decided after it.
Hard rules: nothing is published or answered before its bytes are on stable storage; a failed sync ends the node.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import NamedTuple, Protocol, TypeVar

from penstock.broker.metadata_store import LoadedMetadata, MetadataStore
from penstock.log.directory import LogDirectory
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import record_version
from penstock.metadata.image import BROKER_RESOURCE, MetadataImage
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.metadata.snapshot import SnapshotId
from penstock.model.errors import Refusal
from penstock.model.ports import SystemRng
from penstock.quorum.control_records import build_leader_change
from penstock.quorum.core import Bundle, LeaderChange, Quorum
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import VoterHistory, VoterSet
from penstock.records.builder import BatchBuilder
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import Message, RecordMessage

log = logging.getLogger("penstock.metadata")

Listener = Callable[[MetadataDelta, MetadataImage], None]
LeadershipListener = Callable[[bool], None]
Address = tuple[str, int]
ResponseT = TypeVar("ResponseT", bound=Message)
_RECORDS_PER_TURN = 1_000


class MetadataUnavailable(Exception):
    """The metadata log takes no records: its disk is full, it failed, or the node is stopping."""


class NotController(MetadataUnavailable):
    """This node is not the active controller, or stopped being it before the change was committed."""


class Transport(Protocol):
    """How raft requests reach another node."""

    async def request(
        self, address: Address, message: Message, response_type: type[ResponseT], timeout_ms: int
    ) -> ResponseT: ...


class _Pending(NamedTuple):
    """A change that is appended but not committed."""

    delta: MetadataDelta
    image: MetadataImage
    size_bytes: int


class MetadataDriver:
    """Used on the loop. `start`, then `append` and `committed`; `stop` at the end."""

    def __init__(
        self,
        store: MetadataStore,
        static_settings: BrokerSettings,
        directory_id: bytes,
        pool: Executor | None,
        on_failed: Callable[[OSError], None],
    ) -> None:
        self.static_settings = static_settings
        self.settings = static_settings
        """With dynamic values laid over; what the broker goes by."""
        self.image = MetadataImage()
        """Everything committed."""
        self.pending = MetadataImage()
        """Everything appended; what the next decision looks at."""
        self._store = store
        self._log = store.log
        self._local = ReplicaKey(static_settings.node_id, directory_id)
        self._pool = pool
        self._on_failed = on_failed
        self._quorum: Quorum | None = None
        self._listeners: list[Listener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._is_active = False
        self._leader_known = asyncio.Event()
        self._uncommitted: deque[_Pending] = deque()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._unavailable: str | None = "the node is starting"
        self._bytes_since_snapshot = 0
        self._snapshot_due: asyncio.TimerHandle | None = None
        self._snapshot_wanted = False
        self._snapshot_task: asyncio.Task[None] | None = None

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.end_offset

    @property
    def epoch(self) -> int:
        return self._quorum.epoch if self._quorum is not None else 0

    @property
    def is_leader(self) -> bool:
        return self._quorum is not None and self._quorum.leader is not None

    @property
    def is_active(self) -> bool:
        """Leader, with an entry of its own epoch committed: decisions may build on `pending`."""
        return self._is_active

    @property
    def leader_id(self) -> int | None:
        """The leader of the quorum as far as this node knows; None while there is none."""
        return self._local.id if self.is_leader else None

    @property
    def leader_address(self) -> Address | None:
        """Where the leader's controller listener is; None while it is not known, and on the leader itself."""
        return None

    async def wait_active_controller_known(self) -> None:
        """Returns when there is a leader to speak to: another node, or this one once it is active."""
        await self._leader_known.wait()

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Called with True when this node becomes the active controller and with False when it stops being it."""
        self._leadership_listeners.append(listener)

    def add_listener(self, listener: Listener) -> None:
        """Called with every committed change, in order. Those added before `start` see all there is as the first."""
        self._listeners.append(listener)

    # --- starting and stopping ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads and becomes leader; what was loaded is committed with the first append. `MetadataUnreadable`."""
        loop = asyncio.get_running_loop()
        loaded, bundle = await loop.run_in_executor(self._pool, self._load_and_stand)
        image = loaded.delta.close(loaded.end_offset, loaded.last_epoch, loaded.timestamp_ms)
        self.pending = image
        self._uncommitted.append(_Pending(loaded.delta, image, 0))
        self._bytes_since_snapshot = self._log.size_bytes
        self._store.directory.on_failed = self._directory_failed
        self._store.directory.start(loop, self._pool, sync_workers=1)
        self._log.on_synced = self._synced
        self._unavailable = None
        self._carry_out(bundle)

    def _load_and_stand(self) -> tuple[LoadedMetadata, Bundle]:
        """In the pool: reads what there is and makes this node's vote for itself durable."""
        loaded = self._store.load()
        history = VoterHistory(VoterSet([self._local]))
        self._quorum = quorum = Quorum(self._local, history, loaded.election, self._store.view, SystemRng())
        bundle = quorum.start(0)
        while bundle.persist is not None:
            self._store.write_election_state(bundle.persist)
            bundle = quorum.persisted(bundle.persist, 0)
        return loaded, bundle

    async def stop(self) -> None:
        """Commits what is appended, then lets go of the files."""
        while self._uncommitted and self._unavailable is None:
            await self.committed(self._log.end_offset)
        if self._snapshot_due is not None:
            self._snapshot_due.cancel()
        if self._snapshot_task is not None:
            await self._snapshot_task
        if self._quorum is not None:
            self._quorum.resign(0)
        self._set_active(False)
        self._fail_waiters("the node is stopping")
        directory = self._store.directory
        if directory.commit is not None:
            await directory.commit.drain()
        directory.stop()
        await asyncio.get_running_loop().run_in_executor(self._pool, self._store.close)

    # --- appending and committing ---------------------------------------------------------------------------

    async def append(self, records: Iterable[RecordMessage], now_ms: int) -> int:
        """Appends the records of one decision as one batch; answers the end offset that commits them.

        Callers take turns. Raises `MetadataUnavailable`, and then nothing has changed.
        """
        self._check_available()
        builder = BatchBuilder()
        delta = MetadataDelta(self.pending)
        offset = self._log.end_offset
        for record in records:
            builder.append(None, encode_metadata_record(record, record_version(record)), (), now_ms)
            delta.replay(record, offset + builder.record_count - 1)
            if builder.record_count % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not builder.record_count:
            return offset
        end_offset = offset + builder.record_count
        image = delta.close(end_offset, self.epoch, now_ms)
        self._append_batch(builder.build(), delta, image)
        return end_offset

    async def committed(self, end_offset: int) -> None:
        """Returns when everything below `end_offset` is committed and published. Raises `MetadataUnavailable`."""
        if self.image.end_offset >= end_offset:
            return
        self._check_available()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((end_offset, waiter))
        await waiter

    def _check_available(self) -> None:
        if self._unavailable is not None:
            raise MetadataUnavailable(f"the metadata log takes no records: {self._unavailable}")

    def _append_batch(self, batch: bytearray, delta: MetadataDelta, image: MetadataImage) -> None:
        result = self._log.append_as_leader(batch, self.epoch, image.timestamp_ms, origin="coordinator")
        if isinstance(result, Refusal):
            raise MetadataUnavailable(result.message)
        assert self._quorum is not None
        self.pending = image
        self._uncommitted.append(_Pending(delta, image, len(batch)))
        self._quorum.appended(self.epoch, result.end_offset, 0)
        if not self._store.flushes:
            self._carry_out(self._quorum.synced(result.end_offset, 0))

    def _synced(self, end_offset: int) -> None:
        assert self._quorum is not None
        self._carry_out(self._quorum.synced(end_offset, 0))

    def _carry_out(self, bundle: Bundle) -> None:
        """The rest of a bundle: its election state is durable already."""
        for change in bundle.append:
            assert isinstance(change, LeaderChange)
            now_ms = self._store.clock.now_ms()
            delta = MetadataDelta(self.pending)
            image = delta.close(self._log.end_offset + 1, change.epoch, now_ms)
            self._append_batch(build_leader_change(change, now_ms), delta, image)
        if bundle.high_watermark is not None:
            self._commit(bundle.high_watermark)

    def _commit(self, high_watermark: int) -> None:
        while self._uncommitted and self._uncommitted[0].image.end_offset <= high_watermark:
            change = self._uncommitted.popleft()
            self.image = change.image
            self._bytes_since_snapshot += change.size_bytes
            if not change.delta.is_empty:
                self._publish(change.delta)
        if not self._is_active and self.is_leader:
            self._set_active(True)
        while self._waiters and self._waiters[0][0] <= self.image.end_offset:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        self._consider_snapshot()

    def _set_active(self, is_active: bool) -> None:
        if self._is_active == is_active:
            return
        self._is_active = is_active
        if is_active:
            self._leader_known.set()
        else:
            self._leader_known.clear()
        for listener in self._leadership_listeners:
            listener(is_active)

    def _publish(self, delta: MetadataDelta) -> None:
        if any(resource_type == BROKER_RESOURCE for resource_type, _ in delta.changed_configs):
            self._refresh_settings()
        for listener in self._listeners:
            listener(delta, self.image)

    def _refresh_settings(self) -> None:
        image = self.image
        try:
            own = image.broker_config(self._local.id)
            self.settings = self.static_settings.overlay(image.cluster_config, own)
        except SettingError as error:  # it was fine when it was stored; the static settings around it have changed
            log.error("the stored dynamic settings do not fit the configuration and are ignored: %s", error)

    # --- failure --------------------------------------------------------------------------------------------

    def _directory_failed(self, _directory: LogDirectory, error: OSError) -> None:
        self._fail_waiters(f"the log directory failed ({error})")
        self._on_failed(error)

    def _fail_waiters(self, reason: str) -> None:
        self._unavailable = reason
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(MetadataUnavailable(f"the change was not committed: {reason}"))

    # --- snapshots ------------------------------------------------------------------------------------------

    def _consider_snapshot(self) -> None:
        """Starts a snapshot when enough was written, at a moment when all of the log is committed.

        Then the log can be split exactly there, and the part in front goes once the snapshot is durable.
        """
        if self._snapshot_task is not None or not self._bytes_since_snapshot or self._unavailable is not None:
            return
        settings = self.settings
        if self._bytes_since_snapshot >= settings.metadata_log_max_record_bytes_between_snapshots:
            self._snapshot_wanted = True
        if self._snapshot_wanted and self._log.end_offset == self.image.end_offset:
            self._start_snapshot()
        elif self._snapshot_due is None and settings.metadata_log_max_snapshot_interval_ms:
            loop = asyncio.get_running_loop()
            delay = settings.metadata_log_max_snapshot_interval_ms / 1000
            self._snapshot_due = loop.call_later(delay, self._snapshot_is_due)

    def _snapshot_is_due(self) -> None:
        self._snapshot_due = None
        self._snapshot_wanted = True
        self._consider_snapshot()

    def _start_snapshot(self) -> None:
        self._snapshot_wanted = False
        self._bytes_since_snapshot = 0
        if self._snapshot_due is not None:
            self._snapshot_due.cancel()
            self._snapshot_due = None
        self._log.roll()
        self._snapshot_task = asyncio.get_running_loop().create_task(self._snapshot(self.image))

    async def _snapshot(self, image: MetadataImage) -> None:
        loop = asyncio.get_running_loop()
        try:
            snapshot: SnapshotId = await loop.run_in_executor(self._pool, self._store.write_snapshot, image)
        except OSError as error:  # the log is still whole; the next one may succeed
            log.error("writing a metadata snapshot failed: %s", error)
        else:
            self._log.delete_records_before(snapshot.end_offset)
            log.info("metadata snapshot %s written", snapshot.file_name)
        finally:
            self._snapshot_task = None
