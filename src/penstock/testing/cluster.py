"""A replicated cluster inside the test process, with faults at hand.

    with Cluster(brokers=3) as cluster:
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        cluster.kill(cluster.leader_of("orders"))
        cluster.partition([1], [2, 3])
        cluster.heal()

Each broker is a real one on a thread and event loop of its own: `pause` stops it as SIGSTOP would, `kill` as a crash,
`partition` lets nothing through between brokers (clients still reach all of them). Calls block; in asynchronous tests
use `async with Cluster()` and `await asyncio.to_thread(cluster.restart, 1)`.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self, TypeVar

from penstock.broker.broker import Broker as RunningBroker
from penstock.metadata.image import MetadataImage
from penstock.model.ids import format_uuid, new_uuid
from penstock.model.ports import SystemRng
from penstock.net.free_ports import free_ports
from penstock.testing.broker import Broker

T = TypeVar("T")

_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.005
_NAMED_SECONDS = 3.0
"""How long a partition may be unknown that was just created: longer, and its name is wrong."""


class Cluster:
    """Brokers have the ids 1 to `brokers`; each votes in the quorum."""

    def __init__(
        self, brokers: int = 3, settings: Mapping[str, str] | None = None, *, data_dir: str | Path | None = None
    ) -> None:
        self._owns_data = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="penstock-")) if data_dir is None else Path(data_dir)
        ports = free_ports(2 * brokers)
        pairs = {i + 1: (ports[2 * i], ports[2 * i + 1]) for i in range(brokers)}
        self._addresses: dict[int, tuple[int, ...]] = {**pairs}
        voters = ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, (_, port) in pairs.items())
        cluster_id = format_uuid(new_uuid(SystemRng().random_bytes))
        self._common = {"cluster.id": cluster_id, "controller.quorum.voters": voters, **(settings or {})}
        self.brokers = {
            node_id: self._member(node_id, f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}")
            for node_id, (client, controller) in pairs.items()
        }
        self._cut: set[frozenset[int]] = set()
        self._topics = 0

    def _member(self, node_id: int, listeners: str, **settings: str) -> Broker:
        own = {"node.id": str(node_id), "listeners": listeners, **settings}
        return Broker({**self._common, **own}, data_dir=self.data_dir / f"broker-{node_id}")

    @property
    def bootstrap(self) -> str:
        """What a client needs to connect: every broker, running or not."""
        return ",".join(f"127.0.0.1:{ports[0]}" for ports in self._addresses.values())

    @property
    def running(self) -> list[int]:
        return [node_id for node_id, broker in self.brokers.items() if broker.is_running]

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts what is not running, together, and waits until all of them serve."""
        self._start([node_id for node_id, broker in self.brokers.items() if not broker.is_running])
        return self

    def stop(self) -> None:
        """Stops every broker cleanly, the followers of the quorum first."""
        active = self.controller_id if self.running else None
        for node_id in sorted(self.running, key=lambda node_id: node_id == active):
            self.brokers[node_id].stop()

    def close(self) -> None:
        self.heal()
        with contextlib.ExitStack() as everything:
            if self._owns_data:
                everything.callback(shutil.rmtree, self.data_dir, ignore_errors=True)
            for broker in self.brokers.values():
                everything.callback(broker.kill)

    def restart(self, node_id: int) -> None:
        """Stops cleanly what runs, and starts on the same ports and data."""
        self._known(node_id).stop()
        self._start([node_id])

    def kill(self, node_id: int) -> None:
        """A crash: connections break, nothing is handed over or finished."""
        self._known(node_id).kill()

    def pause(self, node_id: int) -> None:
        self._known(node_id).pause()

    def resume(self, node_id: int) -> None:
        self._known(node_id).resume()

    def _known(self, node_id: int) -> Broker:
        if node_id not in self.brokers:
            raise ValueError(f"there is no broker {node_id}; the cluster has {', '.join(map(str, self.brokers))}")
        return self.brokers[node_id]

    def add_broker(self) -> int:
        """Starts one broker more, which does not vote; returns its id."""
        node_id = max(self.brokers) + 1
        (port,) = free_ports(1)
        self._addresses[node_id] = (port,)
        self.brokers[node_id] = self._member(node_id, f"PLAINTEXT://127.0.0.1:{port}", **{"process.roles": "broker"})
        self._start([node_id])
        return node_id

    def _start(self, node_ids: Iterable[int]) -> None:
        starting = [self.brokers[node_id] for node_id in node_ids]
        for broker in starting:
            broker.begin_start()
        for node_id in node_ids:
            self._apply_cuts(node_id)
        for broker in starting:
            broker.finish_start()

    # -- the network between brokers ----------------------------------------------------------------------------

    def partition(self, *sides: Iterable[int]) -> None:
        """Lets nothing through between brokers of different sides, until `heal`."""
        groups = [set(side) for side in sides]
        for node_id in set().union(*groups):
            self._known(node_id)
        self._cut = {
            frozenset((a, b))
            for i, group in enumerate(groups)
            for other in groups[i + 1 :]
            for a in group
            for b in other
        }
        self._apply_all_cuts()

    def isolate(self, node_id: int) -> None:
        """Cuts one broker off from all others."""
        self.partition([node_id], [other for other in self.brokers if other != node_id])

    def heal(self) -> None:
        self._cut = set()
        self._apply_all_cuts()

    def _apply_all_cuts(self) -> None:
        for node_id in self.running:
            self._apply_cuts(node_id)

    def _apply_cuts(self, node_id: int) -> None:
        cut = {
            ("127.0.0.1", port)
            for other, ports in self._addresses.items()
            if frozenset((node_id, other)) in self._cut
            for port in ports
        }
        broker = self.brokers[node_id]
        peers = broker.node.peers

        def apply() -> None:
            peers.is_cut_off = cut.__contains__ if cut else None
            for address in cut:
                peers.disconnect(address)

        broker.call_soon(apply)

    # -- what the cluster says of itself --------------------------------------------------------------------------

    @property
    def controller_id(self) -> int | None:
        """The active controller, or None while there is none."""
        return next((node_id for node_id in self.running if self._broker_of(node_id).driver.is_active), None)

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition; waits until one does. Raises `ValueError` where there is no such one."""
        named_by = monotonic() + _NAMED_SECONDS

        def leader() -> int | None:
            found = self.image().topic(topic)
            state = found.partition(partition) if found is not None else None
            if state is None and monotonic() > named_by:
                raise ValueError(f"there is no partition {topic}-{partition}")
            return state.leader if state is not None and state.leader in self.running else None

        return self.wait_for(leader, f"{topic}-{partition} has no leader")

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """The in-sync replicas as the active controller sees them."""
        found = self.image().topic(topic)
        state = found.partition(partition) if found is not None else None
        return set(state.isr) if state is not None else set()

    def wait_until_in_sync(self, topic: str) -> None:
        """Until every replica of the topic is in sync."""

        def whole() -> bool:
            found = self.image().topic(topic)
            return found is not None and all(set(each.isr) == set(each.replicas) for each in found.partitions)

        self.wait_for(whole, f"{topic} is not in sync")

    def image(self) -> MetadataImage:
        """The active controller's metadata; that of any running broker while there is none."""
        active = self.controller_id
        return self._broker_of(self.running[0] if active is None else active).image

    def wait_for(self, look: Callable[[], T | None], message: str) -> T:
        """Calls `look` until it answers something true."""
        deadline = monotonic() + _WAIT_SECONDS
        while not (found := look()):
            if monotonic() > deadline:
                raise TimeoutError(f"{message} after {_WAIT_SECONDS:.0f} s")
            sleep(_POLL_SECONDS)
        return found

    def _broker_of(self, node_id: int) -> RunningBroker:
        return self.brokers[node_id].node.broker

    # -- conveniences -------------------------------------------------------------------------------------------

    def unused_topic_name(self, stem: str = "topic") -> str:
        self._topics += 1
        return f"{stem}-{self._topics}"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Creates a topic without a client, and waits until every running broker knows it; returns its name."""
        creator = self.brokers[self.running[0]]
        creator.create_topic(name, partitions, config, replication_factor=replication_factor)
        for node_id in self.running:
            broker = self._broker_of(node_id)
            self.wait_for(partial(_knows, broker, name), f"broker {node_id} does not know {name}")
        return name

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


def _knows(broker: RunningBroker, topic: str) -> bool:
    return broker.image.topic(topic) is not None
