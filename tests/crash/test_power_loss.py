"""Power loss under a whole broker: what was acknowledged is there, whatever the disk forgot.

SIGKILL cannot show a missing fsync, because the operating system lives on. Here the broker runs on a disk that drops
every byte and name that was not synced, or tears it, at a random moment; then a new broker starts on what is left.
"""

import asyncio
import random
import struct
from typing import Any

import pytest

from penstock.metadata.settings import BrokerSettings
from penstock.node.node import Node, event_loop_factory
from penstock.records.batch import iter_headers
from penstock.records.builder import build_batch
from penstock.records.reader import read_records
from penstock.sim.disk import CrashingDisk, PowerLoss
from penstock.wire.apis import API_TABLE, APIS_BY_NAME
from penstock.wire.generated.create_topics import CreateTopicsRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.offset_commit import OffsetCommitRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.header import decode_response_header, encode_request_header

PARTITIONS = 3
ROUNDS = 3
VERSIONS = {"Produce": 9, "Fetch": 12, "CreateTopics": 7, "OffsetCommit": 8, "OffsetFetch": 7, "FindCoordinator": 3}


class Client:
    """Requests over a socket, one at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, node: Node) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", node.ports[0]))

    async def call(self, name: str, request: Any) -> Any:
        api, version = APIS_BY_NAME[name], VERSIONS[name]
        out = bytearray(4)
        encode_request_header(api.key, version, 1, "power-loss", out)
        request.encode(version, out)
        struct.pack_into(">i", out, 0, len(out) - 4)
        self.writer.write(out)
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        body = await self.reader.readexactly(size)
        _, position = decode_response_header(body, api.key, version)
        return API_TABLE[api.key].response_class().decode(body, position, version)[0]


class Mounted:
    """The disk as one broker sees it; after the power loss that ends this broker it sees nothing any more."""

    def __init__(self, disk: CrashingDisk) -> None:
        self._disk = disk
        self._crashes = disk.crashes

    def __getattr__(self, name: str) -> Any:
        if self._disk.crashes != self._crashes:
            raise PowerLoss("the machine is off")
        return getattr(self._disk, name)


class World:
    """One disk, the brokers that ran on it, and what they have acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = CrashingDisk(seed)
        self.topics: list[str] = []
        self.records: dict[tuple[str, int], dict[int, bytes]] = {}
        self.commits: dict[tuple[str, int], int] = {}
        self.sent = 0
        self.told = 0
        """Acknowledgements so far."""

    async def start(self) -> Node:
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": "/data/a,/data/b",
            "log.segment.bytes": str(self.random.choice([1500, 4000, 1 << 30])),
            "offsets.topic.num.partitions": "2",
            "io.threads": "2",
        }
        node = Node(BrokerSettings.from_mapping(settings), disk=Mounted(self.disk))
        await node.start()
        return node

    # -- work ---------------------------------------------------------------------------------------------------

    async def work(self, node: Node) -> None:
        """Uses the broker until it dies."""
        workers = [self.produce(node), self.produce(node), self.commit(node), self.create_topics(node)]
        results = await asyncio.gather(*workers, return_exceptions=True)
        for result in results:
            if not isinstance(result, ConnectionError | asyncio.IncompleteReadError):
                raise AssertionError("a worker ended before the broker did") from result  # type: ignore[arg-type]

    async def until_told(self, count: int, working: "asyncio.Future[None]") -> None:
        """Until so many more acknowledgements have come: how long that takes is the machine's affair."""
        goal = self.told + count
        while self.told < goal and not working.done():  # noqa: ASYNC110 - every turn counts here
            await asyncio.sleep(0)

    def lose_power(self, node: Node) -> None:
        """All at once: no answer leaves after this, and the disk forgets what was not synced."""
        for connection in list(node.connections()):
            connection.abort(None)
        self.disk.crash()

    async def create_topics(self, node: Node) -> None:
        client = await Client.connect(node)
        while True:
            await self.create_topic(client)
            for _ in range(self.random.randrange(30)):
                await asyncio.sleep(0)

    async def create_topic(self, client: Client) -> None:
        name = f"topic-{len(self.topics)}-{self.random.randrange(1 << 30)}"
        topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=1)
        response = await client.call("CreateTopics", CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        self.topics.append(name)
        self.told += 1

    async def produce(self, node: Node) -> None:
        client = await Client.connect(node)
        while True:
            if not self.topics:
                await self.create_topic(client)
            topic, index = self.random.choice(self.topics), self.random.randrange(PARTITIONS)
            payloads = []
            for _ in range(self.random.randrange(1, 4)):
                self.sent += 1
                payloads.append(b"%d:" % self.sent + bytes(self.random.randrange(200)))
            batch = build_batch([(None, payload) for payload in payloads], timestamp_ms=1_000)
            data = ProduceRequest.PartitionProduceData(index=index, records=bytes(batch))
            topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic_data])
            response = await client.call("Produce", request)
            told = response.responses[0].partition_responses[0]
            assert told.error_code == 0, told.error_code
            acknowledged = self.records.setdefault((topic, index), {})
            for delta, payload in enumerate(payloads):
                assert told.base_offset + delta not in acknowledged, "an offset was given out twice"
                acknowledged[told.base_offset + delta] = payload
                self.told += 1

    async def commit(self, node: Node) -> None:
        client = await Client.connect(node)
        await client.call("FindCoordinator", FindCoordinatorRequest(key="g", key_type=0))
        while True:
            if not self.topics:
                await self.create_topic(client)
            topic, index = self.topics[0], self.random.randrange(PARTITIONS)
            offset = self.commits.get((topic, index), 0) + 1
            partition = OffsetCommitRequest.OffsetCommitRequestPartition(index, offset, -1, "")
            asked = OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[partition])
            response = await client.call("OffsetCommit", OffsetCommitRequest(group_id="g", topics=[asked]))
            code = response.topics[0].partitions[0].error_code
            assert code in (0, 14, 15, 16), code
            if code == 0:
                self.commits[topic, index] = offset
                self.told += 1

    # -- checks -------------------------------------------------------------------------------------------------

    async def check(self, node: Node) -> None:
        client = await Client.connect(node)
        for name in self.topics:
            assert node.broker.image.topic(name) is not None, f"topic {name} was acknowledged and is gone"
        for (topic, index), expected in self.records.items():
            found = await self.read(client, topic, index)
            assert list(found) == list(range(len(found))), f"offsets of {topic}-{index} are not dense: {list(found)}"
            for offset, payload in expected.items():
                assert found.get(offset) == payload, f"{topic}-{index} offset {offset} was acknowledged and is gone"
        for (topic, index), offset in self.commits.items():
            assert await self.committed(client, topic, index) >= offset, f"the commit of {topic}-{index} is gone"

    async def read(self, client: Client, topic: str, index: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        offset = 0
        while True:
            wanted = FetchRequest.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            asked = FetchRequest.FetchTopic(topic=topic, partitions=[wanted])
            request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=[asked])
            response = await client.call("Fetch", request)
            data = response.responses[0].partitions[0]
            assert data.error_code == 0, data.error_code
            if not data.records:
                return found
            for position, header in iter_headers(data.records):
                for record in read_records(data.records, position):
                    found[record.offset] = bytes(record.value or b"")
                offset = header.next_offset

    async def committed(self, client: Client, topic: str, index: int) -> int:
        await client.call("FindCoordinator", FindCoordinatorRequest(key="g", key_type=0))
        asked = OffsetFetchRequest.OffsetFetchRequestTopic(topic, [index])
        while True:
            response = await client.call("OffsetFetch", OffsetFetchRequest(group_id="g", topics=[asked]))
            if response.error_code not in (14, 15, 16):
                assert response.error_code == 0
                offset: int = response.topics[0].partitions[0].committed_offset
                return offset


async def survive(seed: int) -> int:
    world = World(seed)
    for _ in range(ROUNDS):
        node = await world.start()
        await world.check(node)
        working = asyncio.ensure_future(world.work(node))
        await world.until_told(world.random.randrange(25), working)
        for _ in range(world.random.randrange(100)):
            await asyncio.sleep(0)
        world.lose_power(node)
        await node.abandon()
        await working
    node = await world.start()
    await world.check(node)
    await node.stop()
    return sum(len(records) for records in world.records.values()) + len(world.topics) + sum(world.commits.values())


def run_seeds(seeds: range) -> None:
    acknowledged = 0
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        for seed in seeds:
            try:
                acknowledged += runner.run(asyncio.wait_for(survive(seed), 60))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise
    print(f"{len(seeds)} seeds, {acknowledged} acknowledgements held")
    assert acknowledged > 20 * len(seeds), "too little was acknowledged to prove anything"


@pytest.mark.figures
def test_what_was_acknowledged_survives_power_loss() -> None:
    run_seeds(range(100))


@pytest.mark.soak
def test_what_was_acknowledged_survives_power_loss_500_times() -> None:
    run_seeds(range(1_000, 1_500))
