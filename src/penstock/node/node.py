"""One node: data directories, logs, metadata, broker and listeners, started and stopped in the right order."""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.broker.broker import Broker
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.lifecycle import Presence, RegistrationRefused
from penstock.broker.metadata_driver import MetadataDriver, MetadataUnavailable
from penstock.broker.metadata_store import MetadataStore, MetadataUnreadable
from penstock.broker.peers import Peers, RaftTransport
from penstock.log.checkpoints import parse_directory_name
from penstock.log.disk import OsDisk
from penstock.log.store import LogStore, StoreSettings
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.model.ids import new_uuid
from penstock.model.lanes import IoPool
from penstock.model.ports import Clock, Disk, Rng, SystemClock, SystemRng
from penstock.net.connection import Connection
from penstock.net.server import Server
from penstock.node.identity import DirectoryLock, NodeIdentity, NodeRefused, load_identity
from penstock.node.loop_watch import LoopWatch
from penstock.node.net_settings import net_limits
from penstock.node.trouble import describe_os_error, full_disk, trouble_while_starting
from penstock.quorum.voters import Endpoint

if TYPE_CHECKING:
    from penstock.broker.controller_presence import ControllerPresence
    from penstock.broker.voter_presence import VoterPresence
    from penstock.node.metrics_listener import MetricsListener

log = logging.getLogger("penstock.node")

_WATCH_S = 0.25
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DRAIN_SECONDS = 3.0  # how long answers may take to leave when the node stops


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop where there is one: about half the CPU per request on plaintext."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Node:
    """`await start()`, serve, `await stop()`. `failed` ends when the node cannot go on."""

    def __init__(
        self,
        settings: BrokerSettings,
        disk: Disk | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
        bootstrap: Sequence[socket.socket] = (),
    ) -> None:
        """`bootstrap`: listening sockets that the brokers of this host share."""
        self.settings = settings
        self._bootstrap = bootstrap
        self.ports: list[int] = []
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRng()
        self.peers = Peers(f"penstock-{settings.node_id}")
        # A world with a clock of its own is the same each time it is run; the processor's time is not.
        cpu_seconds = time.thread_time if clock is None else lambda: 0.0
        self._loop_watch = LoopWatch(self._clock.monotonic, cpu_seconds)
        self._is_composed = False
        self._locks: list[DirectoryLock] = []
        self._pool = IoPool(settings.io_threads)
        self._housekeeping: Housekeeping | None = None
        self.metrics: MetricsListener | None = None
        self._controller_presence: ControllerPresence | None = None
        self._voter_presence: VoterPresence | None = None
        self._directories = [os.path.abspath(path) for path in settings.log_dirs]

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `NodeRefused` with a sentence for the operator: also when a disk fails or is full meanwhile."""
        self.failed: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        self._loop_watch.start()
        starting = asyncio.ensure_future(self._start())
        try:
            await self._watch_start(starting)
        except BaseException as error:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await self.abandon()
            if isinstance(error, OSError):
                raise NodeRefused(describe_os_error(error, self._directories)) from error
            raise

    async def _watch_start(self, starting: "asyncio.Future[None]") -> None:
        """Who waits for a disk that has failed, or has no room, waits for ever: this looks at the disks meanwhile."""
        waiting: set[asyncio.Future[Any]] = {starting, self.failed}
        done = False
        while not done:
            await asyncio.wait(waiting, timeout=_WATCH_S, return_when=asyncio.FIRST_COMPLETED)
            done = starting.done()
            if done:
                starting.result()
            if self._is_composed:
                failed = self.failed.result() if self.failed.done() else None
                trouble = trouble_while_starting(failed, self._logs, self._driver, self._metadata_directory)
                if trouble is not None:
                    raise NodeRefused(trouble)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self._disk, OsDisk):
            self._locks = [DirectoryLock(path) for path in {*self._directories, self._metadata_directory}]
        settings = self.settings
        identity = load_identity(
            self._disk,
            self._directories,
            settings.node_id,
            settings.cluster_id,
            self._rng,
            settings.controller_quorum_voters,
        )
        controllers = settings.controller_listener_set
        broker = self._compose(identity)
        logs, server = self._logs, self._server
        await loop.run_in_executor(self._pool, logs.load)
        logs.start(loop, self._pool)
        listeners = await self._bind(server)
        as_controller = [listener for listener in listeners if listener.name in controllers]
        self._driver.controller_endpoints = tuple(Endpoint(at.name, at.host, at.port) for at in as_controller)
        try:
            await self._driver.start()
        except MetadataUnreadable as error:
            raise NodeRefused(str(error)) from error
        except MetadataUnavailable as error:
            raise NodeRefused(full_disk(self._metadata_directory)) from error
        await server.serve(controllers)
        await self._begin_measuring()
        if settings.is_controller and as_controller:
            from penstock.broker.controller_presence import ControllerPresence

            self._controller_presence = ControllerPresence(broker, new_uuid(self._rng.random_bytes), as_controller)
            self._controller_presence.start()
            self._begin_voting()
        if settings.is_broker:
            await self._begin_serving(server, self._presence(identity, listeners))

    async def _begin_measuring(self) -> None:
        if self.settings.metrics_listener is not None:
            from penstock.node.metrics_listener import MetricsListener

            self.metrics = MetricsListener(self.broker, self.settings.metrics_listener)
            await self.metrics.start()

    def _begin_voting(self) -> None:
        from penstock.broker.voter_presence import VoterPresence

        self._voter_presence = VoterPresence(self.broker)
        self._voter_presence.start()

    def _compose(self, identity: NodeIdentity) -> Broker:
        """Everything there is, joined; nothing works yet."""
        settings = self.settings
        logs = self._logs = LogStore(self._disk, self._clock, self._directories, self._store_settings())
        store = MetadataStore(self._disk, self._clock, self._metadata_directory, settings)
        peers = self.peers
        driver = self._driver = MetadataDriver(
            store,
            settings,
            identity.directory_ids[0],
            self._pool,
            self._metadata_failed,
            transport=RaftTransport(peers),
            rng=self._rng,
            cluster_id=identity.cluster_id,
        )
        self.broker = Broker(
            identity.cluster_id, identity.directory_ids, driver, logs, self._clock, self._rng, self._pool, peers
        )
        self.broker.shares_address = bool(self._bootstrap)
        self.broker.on_last_directory_failed = self._storage_failed
        self._server = Server(net_limits(settings), self.broker.router, uncounted=settings.controller_listener_set)
        self._is_composed = True
        return self.broker

    async def _begin_serving(self, server: Server, presence: Presence) -> None:
        """Clients are let in when this broker has its place in the cluster."""
        loop = asyncio.get_running_loop()
        try:
            await self.broker.join(presence)
        except RegistrationRefused as error:
            raise NodeRefused(str(error)) from error
        except MetadataUnavailable as error:
            if not self._driver.lacks_room:
                raise NodeRefused(f"this node cannot write down that it is there: {error}") from error
            raise NodeRefused(full_disk(self._metadata_directory)) from error
        for directory in self._logs.directories:
            directory.broker_epoch = self.broker.epoch
        await loop.run_in_executor(self._pool, self._move_strays_aside)
        self._housekeeping = Housekeeping(self.broker)
        self._housekeeping.start()
        await server.serve(self._client_listeners)

    async def _bind(self, server: Server) -> list[Listener]:
        bound = []
        for listener in self.settings.listener_list:
            try:
                port = await server.bind(listener.name, listener.host, listener.port)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise NodeRefused(f"cannot listen on {listener.host or '*'}:{listener.port}: {reason}") from error
            self.ports.append(port)
            bound.append(self._advertised(listener._replace(port=port)))
            if listener.name == self.settings.inter_broker_listener:
                for shared in self._bootstrap:
                    await server.adopt(listener.name, shared, port)
        return bound

    def _advertised(self, listener: Listener) -> Listener:
        """What others are told: as the settings say, else the host that was bound, else a name for this machine."""
        for advertised in self.settings.advertised_listener_list:
            if advertised.name == listener.name:
                return advertised
        if listener.host in ("", "0.0.0.0", "::"):
            return listener._replace(host=self._own_host(listener))
        return listener

    def _own_host(self, listener: Listener) -> str:
        """A controller's address is written down for other nodes: it is never "localhost" unless that was said."""
        settings = self.settings
        if listener.name in settings.controller_listener_set:
            advertised = (other.host for other in settings.advertised_listener_list if other.host)
            return next(advertised, None) or socket.gethostname()
        elsewhere = any(voter.host not in _LOOPBACK for voter in settings.quorum_voter_list)
        return socket.gethostname() if elsewhere else "localhost"  # whose voters are here has all its brokers here

    def _presence(self, identity: NodeIdentity, listeners: list[Listener]) -> Presence:
        epochs = {directory.broker_epoch for directory in self._logs.directories}
        return Presence(
            new_uuid(self._rng.random_bytes),
            tuple(listener for listener in listeners if listener.name in self._client_listeners),
            identity.directory_ids,
            clean=all(directory.was_clean for directory in self._logs.directories),
            previous_epoch=epochs.pop() if len(epochs) == 1 else -1,
        )

    @property
    def _client_listeners(self) -> set[str]:
        return {listener.name for listener in self.settings.listener_list} - self.settings.controller_listener_set

    def _move_strays_aside(self) -> None:
        """Partition directories of topics that are gone or that others keep now: no new one may find them."""
        image, own = self.broker.image, self.settings.node_id
        for directory in self._logs.directories:
            for name in list(directory.on_disk):
                found = parse_directory_name(name)
                if found is None or name == "__cluster_metadata-0":
                    continue
                state = image.partition(*found)
                if state is None or own not in state.replicas:
                    self._logs.move_stray_aside(directory, name)

    @property
    def _metadata_directory(self) -> str:
        return os.path.abspath(self.settings.metadata_log_dir or self.settings.log_dirs[0])

    def _store_settings(self) -> StoreSettings:
        return StoreSettings(
            max_open_files=self.settings.log_open_files_max,
            max_usage=self.settings.log_dir_max_usage,
            sync_workers=self.settings.io_threads,
        )

    def _metadata_failed(self, error: OSError) -> None:
        self._give_up("the metadata log failed", error)

    def _storage_failed(self, error: OSError) -> None:
        """A broker that refuses everything helps nobody: who watches over it has to see that it is gone."""
        self._give_up("no log directory is left", error)

    def _give_up(self, reason: str, error: OSError) -> None:
        if not self.failed.done():
            log.critical("%s, this node cannot go on: %s", reason, error)
            self.failed.set_result(error)

    # -- stopping -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hands over, finishes what is running, syncs, and marks the shutdown as clean."""
        loop = asyncio.get_running_loop()
        broker, server = self.broker, self._server
        if broker.lifecycle is not None:
            await broker.lifecycle.hand_over()
        server.stop_listening(self._client_listeners)
        await self._stop_chores()
        broker.fetch.answer_parked()
        broker.transactions.stop()
        broker.groups.stop()
        await server.drain(_DRAIN_SECONDS, self._client_listeners)
        await server.close(self._client_listeners)
        # The quorum goes on without this node before its own listener closes: others need not find out by silence.
        await self._driver.stop()
        await server.close()
        await self._logs.stop()
        await loop.run_in_executor(self._pool, self._logs.close)
        await self.peers.stop()
        self._release()

    async def _stop_chores(self) -> None:
        broker = self.broker
        if self.metrics is not None:
            await self.metrics.stop()
        if self._housekeeping is not None:
            await self._housekeeping.stop()
        if self._controller_presence is not None:
            await self._controller_presence.stop()
        if self._voter_presence is not None:
            await self._voter_presence.stop()
        await broker.probes.stop()
        await broker.controller_clock.stop()
        await broker.replicas.stop()

    def connections(self) -> list[Connection]:
        return self._server.connections()

    async def abandon(self) -> None:
        """Ends the node as a crash would: nothing is finished, nothing is written. Also after half a start."""
        if not self._is_composed:
            self._release()
            return
        broker = self.broker
        self._server.stop_listening()
        if broker.lifecycle is not None:
            await broker.lifecycle.stop()
        await self._stop_chores()
        for directory in self._logs.directories:
            if directory.commit is not None:
                directory.commit.stop()
        broker.transactions.stop()
        broker.groups.stop()
        await self._driver.abandon()
        await self._server.close()
        await self.peers.stop()
        self._release()

    def _release(self) -> None:
        self._loop_watch.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for lock in self._locks:
            lock.release()
