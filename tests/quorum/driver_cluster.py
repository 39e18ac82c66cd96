"""Metadata drivers in one loop, with real files and a network in memory that speaks the real wire format."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from penstock.broker.controller_service import ControllerService
from penstock.broker.metadata_driver import MetadataDriver
from penstock.broker.metadata_store import MetadataStore
from penstock.broker.peers import PeerUnreachable
from penstock.broker.quorum_service import QuorumService
from penstock.controller.brokers import decide_bootstrap
from penstock.controller.configs import Change, Resource, decide_incremental_alter_configs
from penstock.log.disk import OsDisk
from penstock.metadata.settings import BrokerSettings
from penstock.model.ports import SystemClock
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.voters import Endpoint
from penstock.wire.generated.begin_quorum_epoch import BeginQuorumEpochRequest
from penstock.wire.generated.end_quorum_epoch import EndQuorumEpochRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.fetch_snapshot import FetchSnapshotRequest
from penstock.wire.generated.vote import VoteRequest
from penstock.wire.struct import ApiMessage
from tests.waiting import eventually_async

BROKER_RESOURCE = 4


def over_the_wire(message: Any) -> Any:
    """What arrives: encoded and decoded at the newest version."""
    out = bytearray()
    message.encode(type(message).MAX_VERSION, out)
    return type(message).decode(memoryview(bytes(out)), 0, type(message).MAX_VERSION)[0]


async def serve(service: QuorumService, message: Any) -> Any:
    """As the handlers do."""
    handle = {
        VoteRequest: service.vote,
        BeginQuorumEpochRequest: service.begin_epoch,
        EndQuorumEpochRequest: service.end_epoch,
        FetchRequest: service.fetch,
        FetchSnapshotRequest: service.fetch_snapshot,
    }[type(message)]
    return await handle(message)  # type: ignore[operator]


class Network:
    """Requests between the drivers of one cluster."""

    def __init__(self, cluster: "DriverCluster", number: int) -> None:
        self._cluster = cluster
        self._number = number

    async def request(
        self, address: tuple[str, int], message: ApiMessage, response_type: Any, timeout_ms: int
    ) -> Any:
        cluster = self._cluster
        target = address[1]
        node = cluster.running.get(target)
        if {self._number, target} & cluster.cut_off:
            await asyncio.sleep(timeout_ms / 1000)
            raise PeerUnreachable("cut off")
        if node is None or node.driver.quorum is None:
            raise PeerUnreachable("nobody listens", refused=True)
        cluster.requests[type(message).__name__] = cluster.requests.get(type(message).__name__, 0) + 1
        work = asyncio.ensure_future(serve(node.driver.quorum, over_the_wire(message)))
        node.serving.add(work)
        work.add_done_callback(node.serving.discard)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await work
        except (TimeoutError, asyncio.CancelledError):
            raise PeerUnreachable("no answer") from None
        if {self._number, target} & cluster.cut_off:
            raise PeerUnreachable("cut off")
        return over_the_wire(answer)


class DriverNode:
    def __init__(self, cluster: "DriverCluster", number: int, voters: str, **settings: object) -> None:
        self.number = number
        self.path = cluster.path / str(number)
        self.path.mkdir(exist_ok=True)
        self.key = ReplicaKey(number, cluster.directories.setdefault(number, bytes([number]) * 16))
        names = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(
            {
                "node.id": number,
                "listeners": f"PLAINTEXT://localhost:0,CONTROLLER://localhost:{number}",
                "controller.quorum.voters": voters,
                "controller.quorum.fetch.timeout.ms": 400,
                "controller.quorum.election.timeout.ms": 200,
                **names,
            }
        )
        clock = SystemClock()
        store = MetadataStore(OsDisk(), clock, str(self.path), self.settings)
        self.failures: list[OSError] = []
        self.serving: set[asyncio.Future[Any]] = set()
        self.driver = MetadataDriver(
            store,
            self.settings,
            self.key.directory_id,
            cluster.pool,
            self.failures.append,
            transport=Network(cluster, number),
            cluster_id=cluster.ids.get(number, "c"),
        )
        self.driver.controller_endpoints = (Endpoint("CONTROLLER", "localhost", number),)
        self.store = store
        self.controller = ControllerService(self.driver, clock)
        self.leaderships: list[bool] = []
        self.driver.add_leadership_listener(self.leaderships.append)

    async def change(self, value: int) -> None:
        """A committed change of metadata."""
        wanted = [(Resource(BROKER_RESOURCE, ""), [Change("num.partitions", 0, str(value))])]
        await self.controller.submit(lambda view: decide_incremental_alter_configs(view.image, wanted, self.settings))

    @property
    def value(self) -> str | None:
        return self.driver.image.cluster_config.get("num.partitions")


class DriverCluster:
    def __init__(self, path: Path, voters: int = 3, **settings: object) -> None:
        self.path = path
        self.voters = ",".join(f"{n}@localhost:{n}" for n in range(1, voters + 1))
        self.directories: dict[int, bytes] = {}
        self.ids: dict[int, str] = {}
        """Cluster ids of nodes that are not of this cluster."""
        self.running: dict[int, DriverNode] = {}
        self.cut_off: set[int] = set()
        self.requests: dict[str, int] = {}
        self.pool = ThreadPoolExecutor(4)
        self._count = voters
        self._settings = settings

    async def __aenter__(self) -> "DriverCluster":
        for number in range(1, self._count + 1):
            await self.start(number)
        return self

    async def __aexit__(self, *_: object) -> None:
        for number in list(self.running):
            await self.stop(number)
        self.pool.shutdown()

    async def start(self, number: int) -> DriverNode:
        node = DriverNode(self, number, self.voters, **self._settings)
        await node.driver.start()
        self.running[number] = node
        return node

    async def stop(self, number: int) -> None:
        node = self.running[number]
        await node.driver.stop()
        del self.running[number]

    async def kill(self, number: int) -> None:
        """As SIGKILL: what the page cache has stays, connections break."""
        node = self.running.pop(number)
        await node.driver.abandon()
        for work in list(node.serving):
            work.cancel()

    @property
    def active(self) -> DriverNode | None:
        return next((node for node in self.running.values() if node.driver.is_active), None)

    async def leader(self, timeout: float = 10.0) -> DriverNode:  # noqa: ASYNC109 - a deadline with a message
        found = await eventually_async(
            lambda: self.active if self.active and self.active.number not in self.cut_off else None,
            timeout,
            message="no active controller",
        )
        assert found is not None
        await found.controller.submit(lambda view: decide_bootstrap(view.image, found.settings))
        return found

    async def all_have(self, value: int) -> None:
        await eventually_async(
            lambda: all(node.value == str(value) for node in self.running.values()),
            message=f"not everywhere {value}: { {n: node.value for n, node in self.running.items()} }",
        )
