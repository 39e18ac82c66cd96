"""Real brokers without sockets and without a quorum: decisions of the real controller reach them at once, and their
fetches are handed to each other's handlers as frames."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

from penstock.broker.broker import Broker
from penstock.broker.context import RequestContext
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.handlers import offset_for_leader_epoch
from penstock.broker.peers import PeerUnreachable
from penstock.controller.decision import Decision, View
from penstock.controller.directories import AssignedReplica, decide_assign_replicas_to_dirs
from penstock.controller.isr import Member, WantedIsr, decide_alter_partition
from penstock.controller.topics import NewTopic, decide_create_topics, decide_delete_topics
from penstock.log.store import LogStore, StoreSettings
from penstock.metadata.delta import MetadataDelta, replay
from penstock.metadata.image import MetadataImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import SystemClock, SystemRng
from penstock.net.requester import RequestFailed, ResponseFrame
from penstock.replication.partition import Partition
from penstock.sim.disk import CrashingDisk
from penstock.wire.generated.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from penstock.wire.generated.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from penstock.wire.generated.produce import ProduceRequest, ProduceResponse
from penstock.wire.header import decode_response_header
from penstock.wire.struct import RecordMessage
from tests.controller.cluster import Cluster, directory
from tests.log.logs import batch
from tests.waiting import eventually_async

AnswerT = TypeVar("AnswerT")
TOPIC_ID = bytes(range(16))


class FakeDriver:
    """Committed metadata, handed over by the test."""

    is_active = False
    leader_id = leader_address = silence_ms = None

    def __init__(self, settings: BrokerSettings) -> None:
        self.static_settings = self.settings = settings
        self.image = self.pending = MetadataImage()
        self._listeners: list[Callable[[MetadataDelta, MetadataImage], None]] = []

    def add_listener(self, listener: Callable[[MetadataDelta, MetadataImage], None]) -> None:
        self._listeners.append(listener)

    def add_leadership_listener(self, listener: object) -> None: ...

    def follow(self, history: list[RecordMessage]) -> None:
        delta = MetadataDelta(self.image)
        for record in history[self.image.end_offset :]:
            delta.replay(record)
        self.image = self.pending = delta.close(len(history), 0)
        own = self.image.broker_config(self.static_settings.node_id)
        self.settings = self.static_settings.overlay(self.image.cluster_config, own)
        for listener in self._listeners:
            listener(delta, self.image)


class FakeReply:
    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, parts: Any) -> None:
        data = [part if isinstance(part, bytes | bytearray) else _read(part) for part in parts]
        if not self.answer.done():
            self.answer.set_result(b"".join(data))


def _read(part: Any) -> bytes:
    data: bytes = part.file.read_at(part.position, part.length)
    return data


class FakePeers:
    """What one broker sees of the others."""

    def __init__(self, cluster: "Brokers", own: int) -> None:
        self.cluster = cluster
        self.own = own
        self.requests: list[FetchRequest] = []
        self.damage: Callable[[bytearray], None] | None = None

    def disconnect(self, address: tuple[str, int]) -> None:
        """Nothing is in flight on these."""

    async def request_frame(
        self, address: tuple[str, int], request: FetchRequest, timeout_ms: float, *, channel: str = ""
    ) -> ResponseFrame:
        await asyncio.sleep(0)
        target = self.cluster.brokers.get(int(address[0][1:]))
        if target is None or self.own not in self.cluster.brokers:
            raise RequestFailed("it is down", refused=True)
        self.requests.append(request)
        raw = bytearray((await call(target, request, 18))[4:])
        if target.node_id not in self.cluster.brokers:
            raise RequestFailed("it went down")
        if self.damage is not None:
            self.damage(raw)
        _, position = decode_response_header(memoryview(raw), 1, 18)
        return ResponseFrame(memoryview(raw), position, 18)

    async def request(
        self, address: tuple[str, int], request: Any, response_type: Any, timeout_ms: float, *, channel: str = ""
    ) -> Any:
        await asyncio.sleep(0)
        target = self.cluster.brokers.get(int(address[0][1:]))
        if target is None:
            raise PeerUnreachable("it is down", refused=True)
        return await offset_for_leader_epoch.handle(target, RequestContext(23, 4), request)

    async def stop(self) -> None: ...


async def call(broker: Broker, request: Any, version: int, listener: str = "PLAINTEXT") -> bytes:
    """The raw answer of a hot handler, as if it had come over a connection."""
    out = bytearray()
    request.encode(version, out)
    context = RequestContext(request.API_KEY, version, 7, listener_name=listener)
    handler: Any = broker.fetch if isinstance(request, FetchRequest) else broker.produce
    reply, connection = FakeReply(), object()
    if not handler.handle(connection, reply, context, memoryview(out), 0, None):
        prepared = await handler.prepare(context, memoryview(out), 0)
        handler.handle(connection, reply, context, memoryview(out), 0, prepared)
    return await reply.answer


class FakeChannel:
    def __init__(self, cluster: "Brokers", own: int) -> None:
        self.cluster = cluster
        self.own = own
        self.is_cut = False

    async def send(self, request: Any, response_type: Any, timeout_ms: float, *, channel: str = "") -> Any:
        await asyncio.sleep(0)
        if self.is_cut:
            raise ControllerUnavailable("cut off")
        if isinstance(request, AlterPartitionRequest):
            return self.cluster.alter_partition(request)
        return self.cluster.assign_directories(request)


class Brokers(Cluster):
    """`count` brokers; those in `brokers` run."""

    def __init__(self, count: int, **settings: str) -> None:
        self.history: list[RecordMessage] = []
        self.brokers: dict[int, Broker] = {}
        self.deaf: set[int] = set()
        """Brokers that hear nothing of the controller."""
        self._names = {name.replace("_", "."): value for name, value in settings.items()}
        self.disks = {number: CrashingDisk(number) for number in range(1, count + 1)}
        self.racks: dict[int, str] = {}
        self.directory_ids = {number: directory(number * 10) for number in range(1, count + 1)}
        self.paths: dict[int, dict[str, bytes]] = {}
        """Log directories and their ids, of brokers that have others than `/data`."""
        super().__init__(0, **settings)
        self.count = count

    # -- metadata ---------------------------------------------------------------------------------------------------

    def run(self, decide: Callable[[View], Decision[AnswerT]]) -> AnswerT:
        decision = decide(View(self.image, self.image.end_offset, 1_000))
        records = list(decision.records)
        self.image = replay(self.image, records)
        self.history += records
        self.publish()
        return decision.answer

    def publish(self) -> None:
        for number, broker in self.brokers.items():
            if number not in self.deaf and broker.driver.image.end_offset < len(self.history):
                broker.driver.follow(self.history)  # type: ignore[attr-defined]

    def alter_partition(self, request: Any) -> AlterPartitionResponse:
        wanted = [
            WantedIsr(
                topic.topic_id,
                row.partition_index,
                row.leader_epoch,
                row.partition_epoch,
                tuple(Member(member.broker_id, member.broker_epoch) for member in row.new_isr_with_epochs),
                row.leader_recovery_state,
            )
            for topic in request.topics
            for row in topic.partitions
        ]
        answers = self.run(
            lambda view: decide_alter_partition(view, request.broker_id, request.broker_epoch, wanted, self.settings)
        )
        if isinstance(answers, Refusal):
            return AlterPartitionResponse(error_code=answers.code)
        topics = []
        for want, answer in zip(wanted, answers, strict=True):
            row = AlterPartitionResponse.PartitionData(want.partition)
            if isinstance(answer, ErrorCode):
                row.error_code = answer
            else:
                row.leader_id, row.leader_epoch = answer.leader, answer.leader_epoch
                row.isr, row.partition_epoch = list(answer.isr), answer.partition_epoch
            topics.append(AlterPartitionResponse.TopicData(want.topic_id, [row]))
        return AlterPartitionResponse(topics=topics)

    def assign_directories(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        replicas = [
            AssignedReplica(entry.id, topic.topic_id, row.partition_index, row.partition_epoch)
            for entry in request.directories
            for topic in entry.topics
            for row in topic.partitions
        ]
        answers = self.run(
            lambda view: decide_assign_replicas_to_dirs(
                view.image, request.broker_id, request.broker_epoch, replicas, self.settings
            )
        )
        if isinstance(answers, Refusal):
            return AssignReplicasToDirsResponse(error_code=answers.code)
        kind = AssignReplicasToDirsResponse
        rows = [
            kind.DirectoryData(where, [kind.TopicData(topic_id, [kind.PartitionData(index, code)])])
            for (where, topic_id, index, _), code in zip(replicas, answers, strict=True)
        ]
        return kind(directories=rows)

    def create(self, topic: str = "a", replicas: tuple[int, ...] = (1, 2, 3), **configs: str) -> None:
        """One partition on these brokers; the first leads."""
        values = {name.replace("_", "."): value for name, value in configs.items()}
        wanted = NewTopic(topic, assignments={0: replicas}, configs=values)
        (answer,) = self.run(lambda view: decide_create_topics(view.image, [wanted], self.settings, self.rng))
        assert not isinstance(answer, Refusal), answer

    def delete(self, topic: str = "a") -> None:
        (answer,) = self.run(lambda view: decide_delete_topics(view.image, [topic], self.settings))
        assert not isinstance(answer, Refusal), answer

    # -- brokers ----------------------------------------------------------------------------------------------------

    async def start(self, number: int, *, clean: bool = True) -> Broker:
        """A new incarnation registers, catches up and is unfenced."""
        settings = BrokerSettings.from_mapping({"node.id": str(number), **self._names})
        if number in self.racks:
            settings = BrokerSettings.from_mapping(
                {"node.id": str(number), "broker.rack": self.racks[number], **self._names}
            )
        disk = self.disks[number]
        paths = self.paths.get(number, {"/data": self.directory_ids[number]})
        logs = LogStore(disk, SystemClock(), tuple(paths), StoreSettings())
        logs.load()
        logs.start(asyncio.get_running_loop(), None)
        driver: Any = FakeDriver(settings)
        peers: Any = FakePeers(self, number)
        directories = tuple(paths.values())
        broker = Broker("cluster", directories, driver, logs, SystemClock(), SystemRng(), None, peers)
        channel: Any = FakeChannel(self, number)
        broker.channel = channel
        epoch = self.register(
            number, directories=directories, rack=self.racks.get(number), clean=clean, unfence=False
        )
        assert isinstance(epoch, int), epoch
        lifecycle: Any = SimpleNamespace(
            incarnation_id=self.image.brokers[number].incarnation_id,
            directory_failed=lambda: None,
            heard_at=broker.clock.monotonic(),
            knows_its_place=lambda: True,
        )
        broker.lifecycle, broker.epoch = lifecycle, epoch
        self.brokers[number] = broker
        self.publish()
        if self.image.brokers[number].fenced:
            self.beat(number)
        return broker

    async def stop(self, number: int, *, power_loss: bool = False) -> None:
        """As a crash: nothing is finished."""
        broker = self.brokers.pop(number)
        broker.groups.stop()
        broker.transactions.stop()
        await broker.replicas.stop()
        for log_directory in broker.logs.directories:
            log_directory.stop()
        if power_loss:
            self.disks[number].crash()

    # -- what tests look at -----------------------------------------------------------------------------------------

    def replica(self, number: int, topic: str = "a", index: int = 0) -> Partition:
        found = self.brokers[number].partitions.find_replica(topic, index)
        assert isinstance(found, Partition), found
        return found

    def leader(self, topic: str = "a", index: int = 0) -> Partition:
        return self.replica(self.partition(topic, index).leader, topic, index)

    async def until(self, predicate: Callable[[], object], timeout_s: float = 10.0) -> None:
        def quietly() -> object:
            try:
                return predicate()
            except AssertionError:
                return False

        await eventually_async(quietly, timeout_s)

    async def until_in_sync(self, *numbers: int, topic: str = "a") -> None:
        await self.until(lambda: set(self.partition(topic).isr) == set(numbers))

    async def produce(self, *values: str, acks: int = -1, topic: str = "a", timeout_ms: int = 10_000) -> Any:
        """Over the leader's handler; the row of the answer."""
        broker = self.brokers[self.partition(topic).leader]
        return await produce_to(broker, *values, acks=acks, topic=topic, timeout_ms=timeout_ms)


async def produce_to(
    broker: Broker, *values: str, acks: int = -1, topic: str = "a", timeout_ms: int = 10_000, version: int = 12
) -> Any:
    rows = [ProduceRequest.PartitionProduceData(0, bytes(batch(*values)))]
    topics = [ProduceRequest.TopicProduceData(name=topic, partition_data=rows)]
    raw = await call(broker, ProduceRequest(None, acks, timeout_ms, topics), version)
    body = memoryview(raw)[4:]
    _, position = decode_response_header(body, 0, version)
    response, _ = ProduceResponse.decode(body, position, version)
    return response.responses[0].partition_responses[0]


async def consume_from(
    broker: Broker, offset: int, *, rack: str = "", max_wait_ms: int = 0, topic: str = "a", epoch: int = -1
) -> FetchResponse.PartitionData:
    known = broker.image.topic(topic)
    assert known is not None
    row = FetchRequest.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=epoch
    )
    topics = [FetchRequest.FetchTopic(topic_id=known.id, partitions=[row])]
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics, rack_id=rack)
    raw = await call(broker, request, 18)
    body = memoryview(raw)[4:]
    _, position = decode_response_header(body, 1, 18)
    response, _ = FetchResponse.decode(body, position, 18)
    return response.responses[0].partitions[0]


@asynccontextmanager
async def running(count: int = 3, **settings: str) -> AsyncIterator[Brokers]:
    cluster = Brokers(count, **settings)
    try:
        for number in range(1, count + 1):
            await cluster.start(number)
        yield cluster
    finally:
        for number in list(cluster.brokers):
            await cluster.stop(number)
