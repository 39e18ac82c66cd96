"""Three brokers in one loop of virtual time, with everything of theirs that transactions touch, and a bad network.

Coordinators, markers, verification, produce and partitions are the real ones; replication is not there: replicas of a
partition share one log, what is not synced may be lost when the leader changes, and a leader that was replaced and
does not know it yet can append and commit nothing. Brokers hear of elections late, each at a time of its own.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from penstock.broker.context import RequestContext
from penstock.broker.gate import Gate
from penstock.broker.group_driver import GroupService
from penstock.broker.group_partition import LedPartition
from penstock.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
    offset_fetch,
    txn_offset_commit,
    write_txn_markers,
)
from penstock.broker.handlers.produce import ProduceHandler
from penstock.broker.peers import PeerUnreachable
from penstock.broker.transaction_driver import TransactionService
from penstock.broker.transaction_marker_routes import RoutedMarkers
from penstock.broker.transaction_markers import LocalMarkers
from penstock.broker.transaction_producer_ids import SpareProducerIds
from penstock.broker.transaction_routes import TransactionRoutes
from penstock.log.config import LogConfig
from penstock.log.partition_log import PartitionLog
from penstock.log.store import LogStore, StoreSettings
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.features import TRANSACTION_VERSION
from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC, MetadataImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.replication.partition import Partition
from penstock.security.verdicts import AllowAll
from penstock.sim.clock import SimClock, SimRng
from penstock.sim.disk import CrashingDisk
from penstock.sim.loop import SimLoop
from penstock.wire.generated.records_metadata import (
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from penstock.wire.struct import ApiMessage

R = TypeVar("R", bound=ApiMessage)
Hold = Callable[[int, ApiMessage], Awaitable[Any] | None]

TOPIC = "t"
TOPICS = {TOPIC: 3, TRANSACTION_TOPIC: 2, OFFSETS_TOPIC: 2}
BROKERS = (1, 2, 3)
_NOT_LEADER = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another broker leads that partition")
_UNKNOWN = Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition")
_HANDLERS: dict[int, Any] = {
    module_key: module.handle
    for module_key, module in {
        9: offset_fetch,
        22: init_producer_id,
        24: add_partitions_to_txn,
        25: add_offsets_to_txn,
        26: end_txn,
        27: write_txn_markers,
        28: txn_offset_commit,
    }.items()
}


async def passes(seconds: float) -> None:
    """Virtual time goes by: the loop jumps over it."""
    await asyncio.sleep(seconds)


class Lost(Exception):
    """No answer came; what was asked may or may not have been done."""


def not_suspected(partition: Partition, offset: int) -> None:
    raise AssertionError(f"nothing is damaged in {partition.topic} at {offset}")


def topic_id(name: str) -> bytes:
    return name.encode()[:16].ljust(16, b".")


class Partitions:
    """What one broker leads, as its own image says."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.led: dict[TopicPartition, Partition] = {}
        self.opened = self.led

    def find(self, topic: str, index: int) -> Partition | Refusal:
        if self._node.image.partition(topic, index) is None:
            return _UNKNOWN
        return self.led.get(TopicPartition(topic, index), _NOT_LEADER)

    def find_all(self, topics: Sequence[tuple[str, Sequence[Any]]]) -> list[Partition | Refusal]:
        return [self.find(topic, part[0]) for topic, parts in topics for part in parts]

    async def open(self, topic: str, index: int) -> Partition | Refusal:
        return self.find(topic, index)

    async def open_all(self, wanted: Sequence[tuple[str, int]]) -> None: ...

    def follow(self, image: MetadataImage) -> None:
        world, node_id = self._node.world, self._node.node_id
        for where in world.logs:
            state = image.partition(*where)
            assert state is not None
            known = self.led.get(where)
            if known is not None and (state.leader, state.leader_epoch) != (node_id, known.leader_epoch):
                del self.led[where]
                known.leader_epoch = state.leader_epoch
                known.resign(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                known = None
            if known is None and state.leader == node_id:
                self.led[where] = world.take_over(where, state.leader_epoch)


class Node:
    """One start of one broker."""

    def __init__(self, world: "World", node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.alive = True
        self.clock = SimClock(world.loop)
        self.gate = Gate(AllowAll())
        self.settings = world.settings
        self.image = MetadataImage()
        self.position = 0  # in the world's metadata
        self.partitions = Partitions(self)
        table: Any = self.partitions
        rng = SimRng(f"{world.seed}:{node_id}")
        self.groups = GroupService(self.settings, node_id, self.clock, rng, None, self._open)
        self.markers = LocalMarkers(table, self.groups, self.clock)
        self.routed = RoutedMarkers(node_id, lambda: self.image, self.markers, self.ask)
        ids = SpareProducerIds(world.next_producer_id)
        self.producer_ids = SimpleNamespace(next_producer_id=world.next_producer_id)
        self.transactions = TransactionService(
            lambda: self.settings, node_id, self.clock, None, self._open, self.routed, ids
        )
        self.transaction_routes = TransactionRoutes(
            node_id, lambda: self.image, lambda: self.settings, self.transactions, self.ask
        )
        self.produce = ProduceHandler(self)  # type: ignore[arg-type]

    async def _open(self, wanted: bytes, index: int) -> LedPartition | Refusal:
        topic = self.image.topic_by_id(wanted)
        found = self.partitions.find(topic.name if topic is not None else "", index)
        return LedPartition(found, self.clock, not_suspected) if isinstance(found, Partition) else found

    def catch_up(self, position: int) -> None:
        """Hears of the metadata up to there, one commit at a time."""
        while self.alive and self.position < position:
            delta = MetadataDelta(self.image)
            for record in self.world.metadata[self.position]:
                delta.replay(record)
            self.position += 1
            self.image = image = delta.close(self.position, 0)
            self.partitions.follow(image)
            self.groups.on_metadata(delta, image)
            self.routed.on_metadata(delta, image)
            self.transactions.on_metadata(delta, image)
            self.transaction_routes.on_metadata(delta, image)

    def kill(self) -> None:
        self.alive = False
        for partition in self.partitions.led.values():
            self.world.cut_off(partition)
        self.transactions.stop()
        self.groups.stop()

    async def ask(
        self, broker_id: int, request: ApiMessage, response_type: type[R], timeout_ms: float, *, channel: str
    ) -> R:
        """A request to another broker, over the network."""
        try:
            answer: R = await self.world.carry(broker_id, request, request.MAX_VERSION, timeout_ms / 1000)
        except Lost as error:
            raise PeerUnreachable(str(error)) from None
        if not self.alive:  # nobody is there to hear it
            self.world.forgotten.append(asyncio.current_task())
            await asyncio.Future()
        return answer

    async def handle(self, request: ApiMessage, version: int) -> Any:
        """As it comes over the wire, and back."""
        out = bytearray()
        request.encode(version, out)
        context = RequestContext(request.API_KEY, version)
        if request.API_KEY == 0:
            return await self._produce(context, memoryview(out))
        decoded, _ = type(request).decode(memoryview(out), 0, version)
        response = await _HANDLERS[request.API_KEY](self, context, decoded)
        answer = bytearray()
        response.encode(version, answer)
        return type(response).decode(memoryview(answer), 0, version)[0]

    async def _produce(self, context: RequestContext, frame: memoryview) -> Any:
        from penstock.wire.generated.produce import ProduceResponse

        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        reply: Any = SimpleNamespace(send=lambda parts: answered.set_result(b"".join(map(bytes, parts))))
        handler: Any = self.produce
        if not handler.handle(None, reply, context, frame, 0, None):
            prepared = await handler.prepare(context, frame, 0)
            handler.handle(None, reply, context, frame, 0, prepared)
        head = 9 if context.api_version >= 9 else 8  # size, correlation id, no tagged fields
        return ProduceResponse.decode(memoryview(await answered), head, context.api_version)[0]


class World:
    """Make it with a loop; everything else inside it."""

    def __init__(self, seed: int, loop: SimLoop, **settings: Any) -> None:
        self.seed = seed
        self.loop = loop
        self.random = random.Random(f"{seed}:world")
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.settings = BrokerSettings.from_mapping(given)
        self.faults = False
        # Asked with the broker and the request: something to wait for before it, or its answer, is delivered.
        self.holds_request: Hold = lambda node_id, request: None
        self.holds_answer: Hold = lambda node_id, request: None
        self.forgotten: list[asyncio.Task[Any] | None] = []  # of brokers that died
        self.sent: list[tuple[int, ApiMessage]] = []
        self.metadata: list[list[Any]] = []
        self.nodes: dict[int, Node] = {}
        self._late: dict[asyncio.Future[Any], Node] = {}  # requests whose sender does not wait any more, and where
        self._next_id = 1000
        self._leading: dict[TopicPartition, tuple[int, Partition]] = {}
        store = LogStore(CrashingDisk(seed), SimClock(loop), ("/data",), StoreSettings())
        store.load()
        store.start(loop, None)
        self.logs: dict[TopicPartition, PartitionLog] = {
            TopicPartition(name, index): store.open(name, index, topic_id(name), LogConfig())
            for name, count in TOPICS.items()
            for index in range(count)
        }
        for each in self.logs.values():
            each.load()

    async def start(self) -> None:
        first: list[Any] = [FeatureLevelRecord(TRANSACTION_VERSION, 2)]
        for name, count in TOPICS.items():
            first.append(TopicRecord(name, topic_id(name)))
            for index in range(count):
                leader = self.random.choice(BROKERS)
                replicas = list(BROKERS)
                first.append(
                    PartitionRecord(index, topic_id(name), replicas, replicas, leader=leader, leader_epoch=0)
                )
        self.metadata.append(first)
        for node_id in BROKERS:
            self.nodes[node_id] = Node(self, node_id)
            self.nodes[node_id].catch_up(1)

    async def next_producer_id(self) -> int | Refusal:
        self._next_id += 1
        return self._next_id

    # -- leaders --------------------------------------------------------------------------------------------------

    def elect(self, where: TopicPartition, leader: int) -> None:
        self._publish([PartitionChangeRecord(where.partition, topic_id(where.topic), leader=leader)])

    def _publish(self, records: list[Any]) -> None:
        self.metadata.append(records)
        position = len(self.metadata)
        for node in self.nodes.values():
            if self.faults:
                self.loop.call_later(self.random.choice((0.001, 0.01, 0.1, 1.0)), node.catch_up, position)
            else:
                node.catch_up(position)

    def leader(self, where: TopicPartition) -> int:
        """As the newest metadata says."""
        return self.newest_image().partition(*where).leader  # type: ignore[union-attr]

    def newest_image(self) -> MetadataImage:
        return max(self.nodes.values(), key=lambda node: node.position).image

    def take_over(self, where: TopicPartition, leader_epoch: int) -> Partition:
        """A broker has heard that it leads. Whoever led before in an older epoch commits nothing from now on."""
        log = self.logs[where]
        epoch, before = self._leading.get(where, (-1, None))
        if leader_epoch > epoch:
            if before is not None:
                self.cut_off(before)
            if self.faults and self.random.random() < 0.5:
                log.truncate_to(log.synced_end_offset)
        on_synced = log.on_synced
        partition = Partition(where.topic, where.partition, topic_id(where.topic), log, leader_epoch)
        if leader_epoch > epoch:
            self._leading[where] = (leader_epoch, partition)
        else:  # another one was elected since
            log.on_synced = on_synced
            self.cut_off(partition)
        return partition

    def cut_off(self, partition: Partition) -> None:
        """It goes on, believing to lead, and gets nothing into the log any more."""
        cut: Any = SimpleNamespace(is_under_min_isr=True, high_watermark=lambda watermark, *_: watermark)
        partition.leader_state = cut
        partition.high_watermark = -1

    # -- brokers --------------------------------------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """Its partitions go to the others."""
        self.nodes[node_id].kill()
        others = [other for other in BROKERS if other != node_id and self.nodes[other].alive]
        for where in self.logs:
            if self._last_elected(where) == node_id:
                self.elect(where, self.random.choice(others))

    def restart(self, node_id: int) -> None:
        self.nodes[node_id] = node = Node(self, node_id)
        node.catch_up(len(self.metadata))

    def _last_elected(self, where: TopicPartition) -> int:
        for records in reversed(self.metadata):
            for record in records:
                if isinstance(record, (PartitionChangeRecord, PartitionRecord)) and (
                    record.topic_id,
                    record.partition_id,
                ) == (topic_id(where.topic), where.partition):
                    return record.leader
        raise AssertionError(where)

    def heal(self) -> None:
        """No more faults; everybody is there and knows everything."""
        self.faults = False
        for node_id, node in list(self.nodes.items()):
            if not node.alive:
                self.restart(node_id)
        for node in self.nodes.values():
            node.catch_up(len(self.metadata))

    # -- the network ----------------------------------------------------------------------------------------------

    async def carry(self, node_id: int, request: ApiMessage, version: int, timeout_s: float = 5.0) -> Any:
        """The answer of a broker. Raises `Lost`: the request did not arrive, the answer did not, or it is late."""
        node = self.nodes[node_id]
        self.sent.append((node_id, request))
        await passes(self.random.uniform(0.0001, 0.002))
        if (held := self.holds_request(node_id, request)) is not None:
            await held
        chance = self.random.random() if self.faults else 1.0
        if not node.alive or chance < 0.03:
            raise Lost("the request did not arrive")
        if chance < 0.05 and _may_come_late(request):
            self._deliver_later(node, request, version)
            raise Lost("the request is on its way")
        answering = asyncio.ensure_future(self._answer(node, request, version))
        try:
            answer = await asyncio.wait_for(asyncio.shield(answering), timeout_s)
        except TimeoutError:
            self._let_go(answering, node)
            raise Lost("the answer takes too long") from None
        if (held := self.holds_answer(node_id, request)) is not None:
            await held
        if not node.alive or chance < 0.08:
            raise Lost("the answer did not arrive")
        return answer

    async def _answer(self, node: Node, request: ApiMessage, version: int) -> Any:
        return await node.handle(request, version)

    def _deliver_later(self, node: Node, request: ApiMessage, version: int) -> None:
        async def later() -> None:
            await passes(self.random.uniform(0.1, 3))
            if node.alive:
                await node.handle(request, version)

        self._let_go(asyncio.ensure_future(later()), node)

    def _let_go(self, task: "asyncio.Future[Any]", node: Node) -> None:
        self._late[task] = node
        task.add_done_callback(lambda done: self._late.pop(done))

    @property
    def has_late_requests(self) -> bool:
        return any(node.alive for node in self._late.values())


def _may_come_late(request: Any) -> bool:
    """What carries nothing that tells it from the next of its kind is safe by the order of connections only: markers
    of transaction version 1. Everything else may be delayed for as long as the network likes."""
    if request.API_KEY == 27:
        return all(marker.transaction_version >= 2 for marker in request.markers)
    return request.API_KEY == 24 and bool(request.transactions)  # those of brokers


def run(seed: int, test: Callable[[World], Awaitable[None]], limit_s: float = 3600.0, **settings: Any) -> None:
    loop = SimLoop(seed)

    async def main() -> None:
        world = World(seed, loop, **settings)
        await world.start()
        await test(world)
        assert not loop.faults, loop.faults

    try:
        loop.run(main(), limit_s)
    except Exception as error:
        for fault in loop.faults:  # it may be why
            error.add_note(f"before that: {fault}")
        raise
