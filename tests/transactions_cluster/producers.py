"""A transactional producer that asks again for as long as it takes, and remembers what it did and was told."""

from collections.abc import Callable
from typing import Any

from penstock.metadata.image import OFFSETS_TOPIC, TRANSACTION_TOPIC
from penstock.model.errors import ErrorCode
from penstock.model.hashing import coordinator_partition
from penstock.model.ids import TopicPartition
from penstock.records.builder import BatchBuilder
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest
from penstock.wire.struct import ApiMessage
from tests.transactions_cluster.world import TOPIC, TOPICS, Lost, World, passes

AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)


class Broken(Exception):
    """The producer cannot go on with its transaction."""


class Transaction:
    def __init__(self) -> None:
        self.values: list[tuple[int, bytes]] = []  # partition and value, acknowledged
        self.offset: int | None = None  # of the producer's group
        self.commits: bool | None = None  # None: the producer does not know

    def __repr__(self) -> str:
        return f"Transaction({self.values}, offset={self.offset}, commits={self.commits})"


async def asked(
    world: World, where: TopicPartition, request: ApiMessage, version: int, error_of: Callable[[Any], int]
) -> Any:
    """Asks the leader until the answer is not one that asks to try again."""
    while True:
        try:
            answer = await world.carry(world.leader(where), request, version)
            if error_of(answer) not in AGAIN:
                return answer
        except Lost:
            pass
        await passes(world.random.uniform(0.005, 0.05))


def coordinator(topic: str, name: str) -> TopicPartition:
    return TopicPartition(topic, coordinator_partition(name, TOPICS[topic]))


class Producer:
    """`version` is the transaction version. Its group has its name."""

    def __init__(self, world: World, name: str, version: int, timeout_ms: int = 600_000) -> None:
        self.world = world
        self.name = name
        self.version = version
        self.timeout_ms = timeout_ms
        self.identity = (-1, -1)
        self.transactions: list[Transaction] = []
        self.open: Transaction | None = None
        self._sequences: dict[int, int] = {}
        self._coordinator = coordinator(TRANSACTION_TOPIC, name)

    def _checked(self, error: int) -> None:
        if error != ErrorCode.NONE:
            raise Broken(f"{self.name}: {ErrorCode(error).name}")

    async def init(self) -> None:
        """Takes over; what was open is aborted."""
        request = InitProducerIdRequest(self.name, self.timeout_ms)
        answer = await asked(self.world, self._coordinator, request, 4, lambda answer: answer.error_code)
        self._checked(answer.error_code)
        self._become((answer.producer_id, answer.producer_epoch))
        if self.open is not None and self.open.commits is None:
            self.open.commits = False
        self.open = None

    def _become(self, identity: tuple[int, int]) -> None:
        if identity != self.identity:
            self._sequences.clear()
        self.identity = identity

    def _begun(self) -> Transaction:
        if self.open is None:
            self.open = Transaction()
            self.transactions.append(self.open)
        return self.open

    async def write(self, partition: int, value: bytes) -> None:
        transaction = self._begun()
        if self.version == 1:
            await self._add(partition)
        sequence = self._sequences.get(partition, 0)
        builder = BatchBuilder(
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        builder.append(None, value, timestamp_ms=self.world.nodes[1].clock.now_ms())
        data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(builder.build()))
        request = ProduceRequest(
            self.name, -1, 4_000, [ProduceRequest.TopicProduceData(TOPIC, partition_data=[data])]
        )
        answer = await asked(
            self.world,
            TopicPartition(TOPIC, partition),
            request,
            12 if self.version == 2 else 11,
            lambda answer: answer.responses[0].partition_responses[0].error_code,
        )
        self._checked(answer.responses[0].partition_responses[0].error_code)
        self._sequences[partition] = sequence + 1
        transaction.values.append((partition, value))

    async def _add(self, partition: int) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.identity[0],
            v3_and_below_producer_epoch=self.identity[1],
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(TOPIC, [partition])],
        )

        def error(answer: Any) -> int:
            result: int = answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            return result

        self._checked(error(await asked(self.world, self._coordinator, request, 3, error)))

    async def commit_offset(self, offset: int) -> None:
        transaction = self._begun()
        if self.version == 1:
            adding = AddOffsetsToTxnRequest(self.name, *self.identity, self.name)
            answer = await asked(self.world, self._coordinator, adding, 3, lambda answer: answer.error_code)
            self._checked(answer.error_code)
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(0, offset, -1, None)
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(TOPIC, partitions=[partition])
        request = TxnOffsetCommitRequest(self.name, self.name, *self.identity, topics=[topic])
        answer = await asked(
            self.world,
            coordinator(OFFSETS_TOPIC, self.name),
            request,
            5 if self.version == 2 else 4,
            lambda answer: answer.topics[0].partitions[0].error_code,
        )
        self._checked(answer.topics[0].partitions[0].error_code)
        transaction.offset = offset

    async def end(self, commit: bool) -> None:
        assert self.open is not None
        request = EndTxnRequest(self.name, *self.identity, commit)
        version = 5 if self.version == 2 else 4
        answer = await asked(self.world, self._coordinator, request, version, lambda answer: answer.error_code)
        self._checked(answer.error_code)
        self.open.commits = commit
        self.open = None
        if version == 5:
            self._become((answer.producer_id, answer.producer_epoch))


async def group_offset(world: World, group: str) -> int:
    """What is committed; asks until no transaction is in the way."""
    topic = OffsetFetchRequest.OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=[topic])], require_stable=True
    )

    def error(answer: Any) -> int:
        found = answer.groups[0]
        result: int = found.error_code or (found.topics[0].partitions[0].error_code if found.topics else 0)
        return result

    answer = await asked(world, coordinator(OFFSETS_TOPIC, group), request, 8, error)
    assert error(answer) == ErrorCode.NONE
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset
