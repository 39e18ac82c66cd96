"""The broker: joins metadata, logs, partitions, groups and the router, and follows committed metadata.

It keeps no lasting state of its own. What is here was composed by `node/`; what it does is done by its parts.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from penstock.broker.addresses import peer_address, peer_address_of
from penstock.broker.broker_probes import BrokerProbes
from penstock.broker.controller_channel import ControllerChannel
from penstock.broker.controller_clock import ControllerClock
from penstock.broker.controller_service import ControllerService
from penstock.broker.fetch_sessions import FetchSessionCache
from penstock.broker.gate import Gate
from penstock.broker.group_driver import GroupService
from penstock.broker.group_partition import LedPartition
from penstock.broker.handlers.fetch import FetchHandler
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.image_watch import ImageWatch
from penstock.broker.lifecycle import Lifecycle, Presence
from penstock.broker.metadata_driver import MetadataDriver
from penstock.broker.partitions import PartitionTable
from penstock.broker.peers import Peers, PeerUnreachable
from penstock.broker.reachability import ReachabilityWatch
from penstock.broker.replica_changes import ReplicaChanges
from penstock.broker.replica_throttles import ReplicaThrottles
from penstock.broker.router import Router
from penstock.broker.transaction_driver import TransactionService
from penstock.broker.transaction_marker_routes import RoutedMarkers
from penstock.broker.transaction_markers import LocalMarkers
from penstock.broker.transaction_producer_ids import ProducerIdBlocks, SpareProducerIds, allocate_over
from penstock.broker.transaction_routes import TransactionRoutes
from penstock.log.config import LogConfig
from penstock.log.directory import LogDirectory
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, TopicImage
from penstock.metadata.log_settings import topic_log_config
from penstock.metadata.partition import PartitionImage
from penstock.metadata.settings import BrokerSettings, TopicSettings
from penstock.model.errors import Refusal
from penstock.model.ports import Clock, Rng
from penstock.net.connection import Connection
from penstock.replication.partition import Partition
from penstock.security.verdicts import AllowAll
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)

log = logging.getLogger("penstock.broker")


class Broker:
    def __init__(
        self,
        cluster_id: str,
        directory_ids: Sequence[bytes],
        driver: MetadataDriver,
        logs: LogStore,
        clock: Clock,
        rng: Rng,
        pool: Executor | None,
        peers: Peers | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.node_id = driver.static_settings.node_id
        self.epoch = -1
        """Of this incarnation, from its registration; -1 before."""
        self.lifecycle: Lifecycle | None = None
        """There once the broker joins its cluster."""
        self.shares_address = False
        """Brokers of this host are behind one address: clients find all of them at the host by which they came."""
        self.on_last_directory_failed: Callable[[OSError], None] | None = None
        self.clock = clock
        self.rng = rng
        self.pool = pool
        self.logs = logs
        self.driver = driver
        self.controller = ControllerService(driver, clock)
        self.controller_clock = ControllerClock(self)
        self.probes = BrokerProbes(self, self.controller_clock.dead)
        self.peers = peers or Peers(f"broker-{self.node_id}")
        self.channel = ControllerChannel(driver, self.peers, lambda request: self.router.handle_locally(request))
        self.image_watch = ImageWatch(lambda: driver.image)
        self.gate = Gate(AllowAll())
        self.partitions = PartitionTable(self.node_id, lambda: driver.image, self._open_log, pool)
        self.throttles = ReplicaThrottles(self)
        self.replicas = ReplicaChanges(self)
        self.fetch_sessions = FetchSessionCache(self.settings.max_incremental_fetch_session_cache_slots, rng)
        self.reachability = ReachabilityWatch()
        self.groups = GroupService(self.settings, self.node_id, clock, rng, pool, self._open_coordinator_partition)
        self.producer_ids = ProducerIdBlocks(allocate_over(self.channel, self.node_id, lambda: self.broker_epoch))
        self.markers = LocalMarkers(self.partitions, self.groups, clock)
        routed_markers = RoutedMarkers(self.node_id, lambda: driver.image, self.markers, self.ask_broker)
        self.transactions = TransactionService(
            lambda: self.settings,
            self.node_id,
            clock,
            pool,
            self._open_coordinator_partition,
            routed_markers,
            SpareProducerIds(self.producer_ids.next_producer_id),
        )
        self.transaction_routes = TransactionRoutes(
            self.node_id, lambda: driver.image, lambda: self.settings, self.transactions, self.ask_broker
        )
        self.fetch = FetchHandler(self)
        self.produce = ProduceHandler(self)
        self.router = Router(self, self.produce, self.fetch)
        self._directories = dict(zip(directory_ids, logs.directories, strict=True))
        logs.on_directory_failed = self._directory_failed
        self._listen(routed_markers)

    def _listen(self, routed_markers: RoutedMarkers) -> None:
        """Who is told of committed metadata, in this order: partitions before the coordinators that stand on them."""
        driver = self.driver
        driver.add_listener(self._follow_metadata)
        driver.add_listener(self.groups.on_metadata)
        driver.add_listener(routed_markers.on_metadata)
        driver.add_listener(self.transactions.on_metadata)
        driver.add_listener(self.transaction_routes.on_metadata)
        driver.add_listener(self.image_watch.on_metadata)
        driver.add_leadership_listener(self.probes.term_began)

    @property
    def settings(self) -> BrokerSettings:
        """The settings in force: what the node was started with, and dynamic values over it."""
        return self.driver.settings

    @property
    def static_settings(self) -> BrokerSettings:
        """What the node was started with."""
        return self.driver.static_settings

    @property
    def image(self) -> MetadataImage:
        """Committed metadata."""
        return self.driver.image

    @property
    def broker_epoch(self) -> int:
        """Of this broker's registration as committed metadata has it; −1 when it has none."""
        registered = self.image.brokers.get(self.node_id)
        return registered.epoch if registered is not None else -1

    def connection_closed(self, connection: Connection) -> None:
        self.fetch.connection_closed(connection)

    async def join(self, presence: Presence) -> None:
        """Returns when this broker has its place in the cluster. Raises `RegistrationRefused`."""
        self.lifecycle = Lifecycle(self, presence)
        await self.lifecycle.start()

    def heartbeats_ended(self, broker_id: int, broker_epoch: int) -> None:
        """The connection by which a broker reported to this node was lost."""
        self.probes.connection_lost(broker_id, broker_epoch)

    async def ask_broker(
        self, broker_id: int, request: ApiMessage, response_type: type[R], timeout_ms: float, *, channel: str
    ) -> R:
        """The answer of another broker; raises `PeerUnreachable`."""
        address = peer_address(self, broker_id)
        if address is None:
            raise PeerUnreachable(f"no address of broker {broker_id} is known")
        return await self.peers.request(address, request, response_type, timeout_ms, channel=channel)

    # -- logs -----------------------------------------------------------------------------------------------------

    def log_config(self, topic: str) -> LogConfig:
        settings = self.settings
        return topic_log_config(TopicSettings.resolve(settings, self.image.topic_config(topic)), settings)

    def directory_of(self, state: PartitionImage) -> LogDirectory:
        """The log directory that a partition of this broker was assigned to, also where that one failed: an empty log
        elsewhere would be taken for the one that is in it. One that is in none that is here may go to any."""
        return self._directories.get(state.directory_of(self.node_id)) or self.logs.emptiest()

    def _open_log(self, topic: TopicImage, index: int, state: PartitionImage) -> PartitionLog:
        config = self.log_config(topic.name)
        return self.logs.open(topic.name, index, topic.id, config, directory=self.directory_of(state))

    async def _open_coordinator_partition(self, topic_id: bytes, index: int) -> LedPartition | Refusal:
        partition = await self.partitions.open(topic_id, index)
        if not isinstance(partition, Partition):
            return partition
        return LedPartition(partition, self.clock, self.replicas.repairs.suspect)

    def directory_id(self, directory: LogDirectory) -> bytes:
        return next(key for key, known in self._directories.items() if known is directory)

    def has_directory(self, directory_id: bytes) -> bool:
        return directory_id in self._directories

    def offline_directories(self) -> list[bytes]:
        """Ids of the log directories that failed."""
        return [key for key, directory in self._directories.items() if directory.failure is not None]

    def _directory_failed(self, directory: LogDirectory, error: OSError) -> None:
        self.partitions.fail_directory(directory)
        if self.lifecycle is not None:
            self.lifecycle.directory_failed()
        if self.on_last_directory_failed is not None and all(each.failure for each in self.logs.directories):
            self.on_last_directory_failed(error)

    # -- committed metadata ---------------------------------------------------------------------------------------

    def _follow_metadata(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for topic in delta.deleted_topics.values():
            self._delete_logs(topic)
        if any(resource_type == BROKER_RESOURCE for resource_type, _ in delta.changed_configs):
            self.logs.set_max_usage(self.settings.log_dir_max_usage)
            self._refresh_configs(None)
        else:
            self._refresh_configs({name for kind, name in delta.changed_configs if kind == TOPIC_RESOURCE})
        # After the settings: an in-sync set is judged by the min.insync.replicas of its time.
        self.replicas.on_metadata(delta, image)
        self._leave_former_incarnations(delta)

    def _leave_former_incarnations(self, delta: MetadataDelta) -> None:
        """What a broker was asked before it started anew it never answers. After a loss of power nothing tells so,
        and what is asked now would wait behind that until its time is up."""
        for broker_id, now in delta.changed_brokers.items():
            before = delta.image.brokers.get(broker_id)
            if before is not None and now is not None and now.epoch != before.epoch:
                address = peer_address_of(self, before)
                if address is not None:
                    self.peers.disconnect(address)

    def _refresh_configs(self, topics: set[str] | None) -> None:
        """Hands changed settings to the logs of these topics; None means all."""
        if topics is not None and not topics:
            return
        for partition in self.partitions:
            if topics is None or partition.topic in topics:
                self.replicas.refresh_settings(partition)

    def _delete_logs(self, topic: TopicImage) -> None:
        self.partitions.close_topic(topic)
        for index in range(len(topic.partitions)):
            opened = self.logs.get(topic.name, index)
            if opened is not None and opened.topic_id == topic.id:
                self.logs.delete(opened)
            elif opened is None and self.logs.has_files(topic.name, index):
                self.logs.delete(self.logs.open(topic.name, index, topic.id, LogConfig()))
