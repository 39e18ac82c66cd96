"""One node: data directories, logs, metadata, broker and listeners, started and stopped in the right order."""

import asyncio
import gc
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.broker import Broker
from penstock.broker.housekeeping import Housekeeping
from penstock.broker.metadata_driver import MetadataDriver
from penstock.broker.metadata_store import MetadataStore, MetadataUnreadable
from penstock.controller.brokers import Registration
from penstock.log.checkpoints import parse_directory_name
from penstock.log.disk import OsDisk
from penstock.log.store import LogStore, StoreSettings
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import Refusal
from penstock.model.ids import new_uuid
from penstock.model.ports import Clock, Disk, Rng, SystemClock, SystemRng
from penstock.net.connection import Connection
from penstock.net.limits import NetLimits
from penstock.net.server import Server
from penstock.node.identity import DirectoryLock, NodeIdentity, NodeRefused, load_identity

log = logging.getLogger("penstock.node")

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
    ) -> None:
        self.settings = settings
        self.ports: list[int] = []
        self._disk = disk or OsDisk()
        self._clock = clock or SystemClock()
        self._rng = rng or SystemRng()
        self._locks: list[DirectoryLock] = []
        self._pool = ThreadPoolExecutor(settings.io_threads, thread_name_prefix="penstock-io")
        self._directories = [os.path.abspath(path) for path in settings.log_dirs]

    # -- starting -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises `NodeRefused` with a sentence for the operator, or OSError when a port is taken."""
        self.failed: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            for lock in self._locks:
                lock.release()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(self._disk, OsDisk):
            self._locks = [DirectoryLock(path) for path in {*self._directories, self._metadata_directory}]
        identity = load_identity(
            self._disk, self._directories, self.settings.node_id, self.settings.cluster_id, self._rng
        )
        logs = self._logs = LogStore(self._disk, self._clock, self._directories, self._store_settings())
        await loop.run_in_executor(self._pool, logs.load)
        logs.start(loop, self._pool)
        store = MetadataStore(self._disk, self._clock, self._metadata_directory, self.settings)
        driver = self._driver = MetadataDriver(
            store, self.settings, identity.directory_ids[0], self._pool, self._metadata_failed
        )
        broker = self.broker = Broker(
            identity.cluster_id, identity.directory_ids, driver, logs, self._clock, self._rng, self._pool
        )
        server = self._server = Server(self._net_limits(), broker.router)
        listeners = await self._bind(server)
        try:
            await driver.start()
        except MetadataUnreadable as error:
            raise NodeRefused(str(error)) from error
        await self._register(identity, listeners)
        await loop.run_in_executor(self._pool, self._move_strays_aside)
        self._housekeeping = Housekeeping(broker)
        self._housekeeping.start()
        await server.serve()
        # What was made so far stays: the collector need not look at it again.
        gc.collect()
        gc.freeze()

    async def _bind(self, server: Server) -> list[Listener]:
        bound = []
        for listener in self.settings.listener_list:
            try:
                port = await server.bind(listener.name, listener.host, listener.port)
            except OSError as error:
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise NodeRefused(f"cannot listen on {listener.host or '*'}:{listener.port}: {reason}") from error
            self.ports.append(port)
            bound.append(listener._replace(host=listener.host or "localhost", port=port))
        return bound

    async def _register(self, identity: NodeIdentity, listeners: list[Listener]) -> None:
        advertised = {listener.name: listener for listener in self.settings.advertised_listener_list}
        registration = Registration(
            identity.node_id,
            new_uuid(self._rng.random_bytes),
            tuple(advertised.get(listener.name, listener) for listener in listeners),
            self.settings.broker_rack,
            identity.directory_ids,
            clean=all(directory.was_clean for directory in self._logs.directories),
        )
        epoch = await self.broker.controller.register(registration)
        if isinstance(epoch, Refusal):
            raise NodeRefused(epoch.message)

    def _move_strays_aside(self) -> None:
        """Partition directories of topics that no longer exist; a new topic of that name must not find them."""
        image = self.broker.image
        for directory in self._logs.directories:
            for name in list(directory.on_disk):
                found = parse_directory_name(name)
                if found is not None and name != "__cluster_metadata-0" and image.partition(*found) is None:
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

    def _net_limits(self) -> NetLimits:
        settings = self.settings
        unlimited = 1 << 62
        return NetLimits(
            max_frame_bytes=settings.socket_request_max_bytes,
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_ip,
            max_inflight_requests=settings.max_inflight_requests_per_connection,
            max_inflight_bytes=settings.max_inflight_bytes_per_connection,
            # At least one request of any allowed size must fit.
            max_queued_bytes=max(settings.queued_max_request_bytes, settings.socket_request_max_bytes)
            if settings.queued_max_request_bytes >= 0
            else unlimited,
            idle_timeout_s=settings.connections_max_idle_ms / 1000
            if settings.connections_max_idle_ms >= 0
            else unlimited,
            stall_timeout_s=settings.socket_send_stall_timeout_ms / 1000,
            listen_backlog=settings.socket_listen_backlog_size,
            send_buffer_bytes=settings.socket_send_buffer_bytes,
            receive_buffer_bytes=settings.socket_receive_buffer_bytes,
        )

    def _metadata_failed(self, error: OSError) -> None:
        log.critical("the metadata log failed, this node cannot go on: %s", error)
        if not self.failed.done():
            self.failed.set_result(error)

    # -- stopping -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Finishes what is running, syncs, and marks the shutdown as clean."""
        loop = asyncio.get_running_loop()
        self._server.stop_listening()
        await self._housekeeping.stop()
        self.broker.fetch.answer_parked()
        self.broker.transactions.stop()
        self.broker.groups.stop()
        await self._server.drain(_DRAIN_SECONDS)
        await self._server.close()
        await self._logs.stop()
        await loop.run_in_executor(self._pool, self._logs.close)
        await self._driver.stop()
        self._release()

    def connections(self) -> list[Connection]:
        return self._server.connections()

    async def abandon(self) -> None:
        """Ends the node as a crash would: nothing is finished, nothing is written. For tests."""
        self._server.stop_listening()
        await self._housekeeping.stop()
        for directory in self._logs.directories:
            if directory.commit is not None:
                directory.commit.stop()
        self.broker.transactions.stop()
        self.broker.groups.stop()
        await self._server.close()
        self._release()

    def _release(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for lock in self._locks:
            lock.release()
