"""Runs the quorum over the metadata log on every node: appends as leader, replicates as follower, commits, publishes.

    leader:    append(records) -> log, pending image -> fsync here and on a majority -> high watermark -> listeners
    follower:  fetched batches -> log, pending image -> fsync, next fetch -> leader's high watermark -> listeners

Log and images are `MetadataReplica`'s; who leads is `quorum.core`'s to say; here both meet those who decide, wait and
listen. Hard rules: nothing is published or answered before it is committed; a leader that is overthrown answers
`NotController` to whoever waits; a failed sync ends the node, and a full disk ends its leadership only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from penstock.broker.metadata_changes import RECORDS_PER_TURN
from penstock.broker.metadata_floor import FloorKeeper
from penstock.broker.metadata_replica import NO_SPACE_RETRY_S, MetadataReplica
from penstock.broker.metadata_snapshots import SnapshotSchedule
from penstock.broker.metadata_store import MetadataStore
from penstock.broker.quorum_addresses import Address, AddressBook, Place, Sender
from penstock.broker.quorum_runner import QuorumRunner, Transport
from penstock.broker.quorum_start import build_core, reachable_endpoints
from penstock.log.directory import LogDirectory
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import record_version
from penstock.metadata.image import BROKER_RESOURCE, MetadataImage
from penstock.metadata.settings import BrokerSettings, SettingError
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import Rng, SystemRng
from penstock.quorum.bundle import LeaderChange, SnapshotChunk, VotersChange
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import NOBODY, ElectionState, ReplicaKey
from penstock.quorum.silence import knows_since, silence_ms
from penstock.quorum.voters import Endpoint, VoterSet
from penstock.records.builder import BatchBuilder
from penstock.wire.records import encode_metadata_record
from penstock.wire.struct import RecordMessage

if TYPE_CHECKING:
    from penstock.broker.context import RequestContext
    from penstock.broker.quorum_service import QuorumService
    from penstock.wire.generated.fetch import FetchRequest, FetchResponse

log = logging.getLogger("penstock.metadata")

Listener = Callable[[MetadataDelta, MetadataImage], None]
LeadershipListener = Callable[[bool], None]
_FAREWELL_S = 0.3  # how long a leader that stops waits for the others to hear of it
_LAST_COMMIT_S = 2.0
_MAKE_WAY_AGAIN_S = 10.0
_MIN_ISR = "min.insync.replicas"


class MetadataUnavailable(Exception):
    """The metadata log takes no records: its disk is full, it failed, or the node is stopping."""


class NotController(MetadataUnavailable):
    """This node is not the active controller, or stopped being it before the change was committed."""


class AmongStrangers(Exception):
    """So many voters are of another cluster that no majority is left without them. Says which."""


class MetadataDriver:
    """Used on the loop. `start`, then `append` and `committed`; `stop` at the end."""

    def __init__(
        self,
        store: MetadataStore,
        static_settings: BrokerSettings,
        directory_id: bytes,
        pool: Executor | None,
        on_failed: Callable[[OSError], None],
        *,
        transport: Transport | None = None,
        rng: Rng | None = None,
        cluster_id: str | None = None,
    ) -> None:
        self.static_settings = static_settings
        self.settings = static_settings
        """With dynamic values laid over; what the broker goes by."""
        self.image = MetadataImage()
        """Everything committed; only this is ever shown."""
        self.controller_endpoints: tuple[Endpoint, ...] = ()
        """Where this node serves the quorum: set before `start`, which makes of it how others reach it."""
        self.cluster_id = cluster_id
        self._replica = MetadataReplica(store, pool)
        self._store = store
        self._log = store.log
        self._local = ReplicaKey(static_settings.node_id, directory_id)
        self._pool = pool
        self._on_failed = on_failed
        self._transport = transport
        self._rng = rng or SystemRng()
        self._addresses = AddressBook(Place(*voter) for voter in static_settings.quorum_voter_list)
        self._core: Quorum | None = None
        self._runner: QuorumRunner | None = None
        self._service: QuorumService | None = None
        self._listeners: list[Listener] = []
        self._leadership_listeners: list[LeadershipListener] = []
        self._active_epoch: int | None = None
        self._leader_known = asyncio.Event()
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waiters_epoch = -1
        self._unavailable: str | None = "the node is starting"
        self._failure: BaseException | None = None
        self._may_make_way_at_s = 0.0
        self._told_min_isr: str | None = None
        self._snapshots = SnapshotSchedule(self)
        self._floor = FloorKeeper(store.floor, pool, self._settled_offset)

    @property
    def pending(self) -> MetadataImage:
        """Everything in the log; what the next decision looks at."""
        return self._replica.pending

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        return self._log.end_offset

    @property
    def epoch(self) -> int:
        return self._core.epoch if self._core is not None else 0

    @property
    def is_leader(self) -> bool:
        return self._core is not None and self._core.leader is not None

    @property
    def is_active(self) -> bool:
        """Leader, with an entry of its own epoch committed: decisions may build on `pending`."""
        return self._active_epoch is not None and self.is_leader and self._active_epoch == self.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader of the quorum as far as this node knows; None while there is none."""
        if self._core is None or self._core.leader_id == NOBODY:
            return None
        return self._core.leader_id

    @property
    def leader_address(self) -> Address | None:
        """Where the leader's controller listener is; None while it is not known, and on the leader itself."""
        leader_id = self.leader_id
        if leader_id is None or leader_id == self._local.id or self._core is None:
            return None
        return self._addresses.find(leader_id, self._core.voters)

    @property
    def lacks_room(self) -> bool:
        """Whether the last that was to be written for the quorum found no room on the disk."""
        return self._replica.lacks_room

    @property
    def is_sole_voter(self) -> bool:
        return self._core is not None and self._core.is_voter and len(self._core.voters) == 1

    @property
    def silence_ms(self) -> float | None:
        """See `quorum.silence`."""
        return silence_ms(self._core, asyncio.get_running_loop().time() * 1000) if self._core is not None else None

    def knows_since(self, age_ms: float) -> bool:
        """See `quorum.silence`; as of so long ago."""
        now_ms = asyncio.get_running_loop().time() * 1000
        return self._core is not None and knows_since(self._core, now_ms - age_ms)

    @property
    def quorum(self) -> "QuorumService | None":
        """What other nodes and operators ask of the quorum; there from `start` on."""
        if self._service is None and self._runner is not None:
            from penstock.broker.quorum_service import QuorumService

            self._service = QuorumService(self._runner, self._store, self._addresses, self._pool, self)
        return self._service

    async def wait_active_controller_known(self) -> None:
        """Returns when there is a leader to speak to: another node, or this one once it is active.

        Raises `AmongStrangers` where there will be none.
        """
        await self._leader_known.wait()
        if self._strangers and not self._has_leader:
            raise AmongStrangers(", ".join(map(str, self._strangers)))

    @property
    def _has_leader(self) -> bool:
        return self.is_active or self.leader_address is not None

    @property
    def _strangers(self) -> list[int]:
        """Voters of another cluster, where they are too many for a majority without them."""
        if self._core is None or self._runner is None:
            return []
        voters = self._core.voters
        strangers = sorted(node_id for node_id in self._runner.strangers if node_id in voters.by_id)
        return strangers if 2 * len(strangers) >= len(voters) else []

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Called with True when this node becomes the active controller and with False when it stops being it."""
        self._leadership_listeners.append(listener)

    def add_listener(self, listener: Listener) -> None:
        """Called with every committed change, in order. Those added before `start` see all there is as the first."""
        self._listeners.append(listener)

    # --- starting and stopping ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads and joins the quorum; with one voter it leads it already. Raises `MetadataUnreadable`, OSError."""
        loop = asyncio.get_running_loop()
        loaded = await self._replica.load()
        self._snapshots.bytes_since = self._log.size_bytes
        self._store.directory.on_failed = self._directory_failed
        self._store.directory.start(loop, self._pool, sync_workers=1)
        self._log.on_synced = self._synced
        endpoints = reachable_endpoints(self._local.id, self.controller_endpoints, self.static_settings)
        self.controller_endpoints = endpoints
        core = self._core = build_core(
            self._local, self.controller_endpoints, self.static_settings, loaded, self._store.view, self._rng
        )
        runner = self._runner = QuorumRunner(
            core,
            self,
            self._addresses,
            self._transport,
            Sender(self.cluster_id, self.controller_endpoints),
            self.static_settings.controller_quorum_request_timeout_ms,
        )
        runner.on_bug = self._quorum_failed
        self._unavailable = None
        runner.post(core.start)
        if self.is_sole_voter:
            await self._leader_known.wait()
            if self._failure is not None:
                raise self._failure

    async def stop(self) -> None:
        """Commits what is appended, hands leadership over, then lets go of the files."""
        if self.is_leader and self._replica.has_uncommitted and self._unavailable is None:
            try:
                await asyncio.wait_for(self.committed(self._log.end_offset), _LAST_COMMIT_S)
            except (TimeoutError, MetadataUnavailable) as error:
                log.warning("stopping with changes that are not committed: %s", error)
        await self._snapshots.stop()
        if self._runner is not None:
            await self._runner.resign(_FAREWELL_S)
            await self._runner.stop()
        self._set_active(None)
        self._fail_waiters(MetadataUnavailable("the change was not committed: the node is stopping"))
        self._unavailable = "the node is stopping"
        directory = self._store.directory
        if directory.commit is not None:
            await directory.commit.drain()
        await self._floor.stop(cleanly=directory.failure is None)
        directory.stop()
        await asyncio.get_running_loop().run_in_executor(self._pool, self._store.close)

    async def abandon(self) -> None:
        """Ends as a crash would: nothing is said, nothing is written. For tests."""
        self._unavailable = "the node was abandoned"
        await self._snapshots.stop()
        await self._floor.stop(cleanly=False)
        if self._runner is not None:
            await self._runner.stop()
        if self._store.directory.commit is not None:
            self._store.directory.commit.stop()

    # --- appending and committing ---------------------------------------------------------------------------

    async def append(self, records: Iterable[RecordMessage], now_ms: int) -> int:
        """Appends the records of one decision as one batch; answers the end offset that commits them.

        Callers take turns. Raises `MetadataUnavailable` or `NotController`, and then nothing has changed.
        """
        self._check_available()
        epoch = self.epoch
        builder = BatchBuilder()
        delta = MetadataDelta(self.pending)
        offset = self._log.end_offset
        for record in records:
            builder.append(None, encode_metadata_record(record, record_version(record)), (), now_ms)
            delta.replay(record, offset + builder.record_count - 1)
            if builder.record_count % RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        if not builder.record_count:
            return offset
        self._check_available()
        if self.epoch != epoch or self._log.end_offset != offset:
            raise NotController("leadership changed while the decision was written down")
        end_offset = offset + builder.record_count
        image = delta.close(end_offset, epoch, now_ms)
        outcome = self._replica.append(builder.build(), delta, image)
        if isinstance(outcome, Refusal):
            raise self._refused(outcome)
        self._wrote()
        runner = self._runner
        assert runner is not None
        runner.post(lambda at_ms: runner.quorum.appended(epoch, end_offset, at_ms))
        return end_offset

    async def committed(self, end_offset: int) -> None:
        """Returns when everything below `end_offset` is committed and published.

        Raises `MetadataUnavailable`, or `NotController` when this node stops being leader before that.
        """
        if self.image.end_offset >= end_offset:
            return
        self._check_available()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters_epoch = self.epoch
        self._waiters.append((end_offset, waiter))
        await waiter

    def _check_available(self) -> None:
        if self._unavailable is not None:
            raise MetadataUnavailable(f"the metadata log takes no records: {self._unavailable}")
        if not self.is_leader:
            raise NotController("this node is not the active controller")

    def _refused(self, refusal: Refusal) -> MetadataUnavailable:
        """A leader without room decides nothing, and nobody else may while it leads: where there are other voters it
        makes way. Not again and again: all of them may be full."""
        core, runner = self._core, self._runner
        assert core is not None
        assert runner is not None
        now_s = asyncio.get_running_loop().time()
        if not self._replica.lacks_room or len(core.voters) == 1 or now_s < self._may_make_way_at_s:
            return MetadataUnavailable(refusal.message)
        log.warning("this controller has no room for a decision and makes way for another: %s", refusal.message)
        self._may_make_way_at_s = now_s + _MAKE_WAY_AGAIN_S
        runner.post(core.resign)
        return NotController(f"this controller makes way for another: {refusal.message}")

    def _wrote(self) -> None:
        if not self._store.flushes:
            asyncio.get_running_loop().call_soon(self._synced, self._log.end_offset)

    def _synced(self, _end_offset: int) -> None:
        self._floor.consider()
        runner = self._runner
        if runner is not None:
            view = self._store.view
            runner.post(lambda now_ms: runner.quorum.synced(view.synced_end_offset, now_ms))

    # --- what the quorum asks for (`MetadataKeeper`) ----------------------------------------------------------

    async def persist(self, state: ElectionState) -> bool:
        while not await self._replica.persist(state):
            if not self.is_sole_voter:
                return False
            await asyncio.sleep(NO_SPACE_RETRY_S)  # there is nobody to listen to
        return True

    def append_control(self, change: LeaderChange | VotersChange) -> int | Refusal:
        core = self._core
        outcome = self._replica.append_control(change, first_voters=core is not None and core.history.is_first)
        if not isinstance(outcome, Refusal):
            self._wrote()
        return outcome

    async def replicate(self, records: Any) -> list[tuple[int, VoterSet]] | Refusal:
        outcome = await self._replica.replicate(records, self.epoch)
        if not isinstance(outcome, Refusal):
            self._wrote()
        return outcome

    async def truncate(self, end_offset: int) -> None:
        await self._replica.truncate(end_offset)

    async def take_chunk(self, chunk: SnapshotChunk) -> VoterSet | bool | None:
        return await self._replica.take_chunk(chunk)

    def commit(self, high_watermark: int) -> None:
        for change in self._replica.take_committed(high_watermark):
            self.image = change.image
            self._snapshots.bytes_since += change.size_bytes
            if not change.delta.is_empty:
                self._publish(change.delta)
        while self._waiters and self._waiters[0][0] <= self.image.end_offset:
            waiter = self._waiters.popleft()[1]
            if not waiter.done():
                waiter.set_result(None)
        self._snapshots.consider()
        self._floor.consider()

    def _settled_offset(self) -> int:
        """Everything below is committed, and on stable storage here."""
        return min(self.image.end_offset, self._log.synced_end_offset) if self._store.flushes else 0

    def settle(self) -> None:
        """Leadership may have changed."""
        core = self._core
        assert core is not None
        leader = core.leader
        if self._waiters and (leader is None or self._waiters_epoch != core.epoch):
            self._fail_waiters(NotController("this node is not the active controller any more"))
        has_committed = leader is not None and (len(core.voters) == 1 or leader.high_watermark is not None)
        is_active = has_committed and self._unavailable is None  # its log may fail in the turn that settles this
        self._set_active(core.epoch if is_active else None)
        if self._has_leader or self._strangers:
            self._leader_known.set()
        else:
            self._leader_known.clear()

    def _set_active(self, epoch: int | None) -> None:
        before, self._active_epoch = self._active_epoch, epoch
        if before == epoch:
            return
        for is_active in ([False] if before is not None else []) + ([True] if epoch is not None else []):
            log.info("node %d is %s the active controller", self._local.id, "now" if is_active else "no longer")
            for listener in self._leadership_listeners:
                listener(is_active)

    def _publish(self, delta: MetadataDelta) -> None:
        if any(resource_type == BROKER_RESOURCE for resource_type, _ in delta.changed_configs):
            self._refresh_settings()
        for listener in self._listeners:
            listener(delta, self.image)

    def _refresh_settings(self) -> None:
        try:
            own = self.image.broker_config(self._local.id)
            self.settings = self.static_settings.overlay(self.image.cluster_config, own)
        except SettingError as error:  # it was fine when it was stored; the static settings around it have changed
            log.error("the stored dynamic settings do not fit the configuration and are ignored: %s", error)
        self._compare_min_isr(self.image.cluster_config.get(_MIN_ISR))

    def _compare_min_isr(self, written: str | None) -> None:
        """It is written down once, from the static settings of the controller of that time."""
        own = str(self.static_settings.min_insync_replicas)
        is_other = _MIN_ISR in self.static_settings.explicit_names and written not in (None, own)
        if is_other and written != self._told_min_isr:
            log.warning(
                "this node was started with %s=%s, which is not in force: the cluster has %s; change it there",
                _MIN_ISR,
                own,
                written,
            )
        self._told_min_isr = written

    async def handle_fetch(self, context: "RequestContext", request: "FetchRequest") -> "FetchResponse":
        """A fetch of `__cluster_metadata`, by a voter or an observer."""
        from penstock.broker.quorum_wire import in_version
        from penstock.wire.generated.fetch import FetchResponse

        if self.quorum is None:
            return FetchResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE)
        return in_version(await self.quorum.fetch(request), context.api_version)

    # --- failure --------------------------------------------------------------------------------------------

    def _directory_failed(self, _directory: LogDirectory, error: OSError) -> None:
        self._become_unavailable(f"the log directory failed ({error})")
        self._on_failed(error)

    def _quorum_failed(self, error: BaseException) -> None:
        self._failure = error
        self._become_unavailable(f"the quorum failed ({error})")
        self._on_failed(error if isinstance(error, OSError) else OSError(str(error)))
        self._leader_known.set()  # whoever waits looks again

    def _become_unavailable(self, reason: str) -> None:
        self._unavailable = reason
        self._set_active(None)
        self._fail_waiters(MetadataUnavailable(f"the change was not committed: {reason}"))

    def _fail_waiters(self, error: MetadataUnavailable) -> None:
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    # --- snapshots ------------------------------------------------------------------------------------------

    @property
    def can_snapshot(self) -> bool:
        """Whether all of the log is committed: then it can be split exactly at its end."""
        return self._unavailable is None and self._replica.is_all_committed

    def replace_log(self, damage: str) -> None:
        """By a snapshot: what is committed is whole in memory."""
        log.error("%s: %s; a snapshot takes the place of what is committed", self._log.path, damage)
        self._snapshots.wish()

    def split_log(self) -> MetadataImage:
        """A new segment begins where this image ends, so that what lies in front can go."""
        self._log.roll()
        return self.image

    async def write_snapshot(self, image: MetadataImage) -> None:
        """Into a file; then the log in front of it goes. Raises OSError."""
        core = self._core
        assert core is not None
        voters = core.history.at(image.end_offset)
        is_written = core.history.is_written and voters.is_pinned
        await self._replica.write_snapshot(image, voters if is_written else None)
