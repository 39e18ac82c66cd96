"""A transactional producer made of single requests, so that a test can stop anywhere between two of them.

`version` is the transaction version: 1 adds partitions and offsets before it sends them, 2 leaves that to the broker
and takes a new epoch with each end.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from penstock.model.errors import ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.builder import BatchBuilder
from penstock.records.reader import read_records
from penstock.wire.generated.add_offsets_to_txn import AddOffsetsToTxnRequest
from penstock.wire.generated.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.generated.end_txn import EndTxnRequest
from penstock.wire.generated.fetch import FetchRequest
from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.generated.offset_fetch import OffsetFetchRequest
from penstock.wire.generated.produce import ProduceRequest
from penstock.wire.generated.txn_offset_commit import TxnOffsetCommitRequest
from tests.conformance.raw import RawConnection
from tests.waiting import eventually

PATIENCE_SECONDS = 20.0
AGAIN = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def settled(ask: Callable[[], Any], error_of: Callable[[Any], int]) -> Any:
    """Asks until the answer is not one that asks to try again."""
    answers: list[Any] = []

    def ask_once() -> bool:
        answers.append(ask())
        return error_of(answers[-1]) not in AGAIN

    eventually(ask_once, PATIENCE_SECONDS)
    return answers[-1]


class RawProducer:
    def __init__(self, bootstrap: str, transactional_id: str, version: int = 2, timeout_ms: int = 60_000) -> None:
        self.connection = RawConnection(bootstrap)
        self.transactional_id = transactional_id
        self.version = version
        self.timeout_ms = timeout_ms
        self.producer_id = -1
        self.epoch = -1
        self.ongoing = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}
        find = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        settled(lambda: self.connection.call(find, 4).coordinators[0], lambda answer: answer.error_code)

    # -- requests ---------------------------------------------------------------------------------------------------

    def init(self, *, two_phase: bool = False, keep: bool = False, api_version: int | None = None) -> ErrorCode:
        """Takes the transactional id over."""
        version = api_version if api_version is not None else (6 if two_phase or keep else 4)
        request = InitProducerIdRequest(
            self.transactional_id, self.timeout_ms, enable2_pc=two_phase, keep_prepared_txn=keep
        )
        answer = settled(lambda: self.connection.call(request, version), lambda answer: answer.error_code)
        if answer.error_code == ErrorCode.NONE:
            self._become(answer.producer_id, answer.producer_epoch)
            self.ongoing = (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)
        return ErrorCode(answer.error_code)

    def add(self, topic: str, *partitions: int, api_version: int = 3) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(topic, list(partitions))],
        )
        answer = settled(
            lambda: self.connection.call(request, api_version).results_by_topic_v3_and_below[0].results_by_partition,
            lambda results: results[0].partition_error_code,
        )
        return [result.partition_error_code for result in answer]

    def send(self, topic: str, *values: bytes, partition: int = 0) -> ErrorCode:
        if self.version == 1:
            assert self.add(topic, partition) == [0]
        return self.send_unasked(topic, *values, partition=partition)

    def send_unasked(
        self, topic: str, *values: bytes, partition: int = 0, api_version: int | None = None
    ) -> ErrorCode:
        """Without adding the partition, where that is the client's business."""
        sequence = self._sequences.get((topic, partition), 0)
        builder = BatchBuilder(
            producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence, transactional=True
        )
        for value in values:
            builder.append(None, value, timestamp_ms=int(time.time() * 1000))
        data = ProduceRequest.PartitionProduceData(index=partition, records=bytes(builder.build()))
        topic_data = ProduceRequest.TopicProduceData(name=topic, partition_data=[data])
        request = ProduceRequest(self.transactional_id, -1, 30_000, [topic_data])
        version = api_version or (12 if self.version == 2 else 9)
        answer = settled(
            lambda: self.connection.call(request, version).responses[0].partition_responses[0],
            lambda result: result.error_code,
        )
        if answer.error_code == ErrorCode.NONE:
            self._sequences[topic, partition] = sequence + len(values)
        return ErrorCode(answer.error_code)

    def add_offsets(self, group: str, api_version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        answer = settled(lambda: self.connection.call(request, api_version), lambda answer: answer.error_code)
        return ErrorCode(answer.error_code)

    def commit_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], api_version: int | None = None, **member: Any
    ) -> list[int]:
        find_group(self.connection, group)
        if self.version == 1:
            assert self.add_offsets(group) is ErrorCode.NONE
        partition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
        request = TxnOffsetCommitRequest(
            self.transactional_id,
            group,
            self.producer_id,
            self.epoch,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    topic, partitions=[partition(index, offset, -1, None) for index, offset in offsets.items()]
                )
            ],
            **member,
        )
        version = api_version or (5 if self.version == 2 else 3)
        answer = settled(
            lambda: self.connection.call(request, version).topics[0].partitions,
            lambda results: results[0].error_code,
        )
        return [result.error_code for result in answer]

    def end(self, commit: bool, api_version: int | None = None) -> ErrorCode:
        version = api_version if api_version is not None else (5 if self.version == 2 else 3)
        request = EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)
        answer = settled(lambda: self.connection.call(request, version), lambda answer: answer.error_code)
        if answer.error_code == ErrorCode.NONE and version >= 5:
            self._become(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def commit(self) -> None:
        assert self.end(True) is ErrorCode.NONE

    def abort(self) -> None:
        assert self.end(False) is ErrorCode.NONE

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()


def find_group(connection: RawConnection, group: str) -> None:
    find = FindCoordinatorRequest(coordinator_keys=[group])
    settled(lambda: connection.call(find, 4).coordinators[0], lambda answer: answer.error_code)


# -- what others see ------------------------------------------------------------------------------------------------


class Reading:
    """One answer of Fetch."""

    def __init__(self, values: list[bytes], last_stable_offset: int, high_watermark: int) -> None:
        self.values = values
        self.last_stable_offset = last_stable_offset
        self.high_watermark = high_watermark


def fetch(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> Reading:
    """All values of a partition as a consumer of that isolation level sees them."""
    part = FetchRequest.FetchPartition(partition, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=int(committed),
        topics=[FetchRequest.FetchTopic(topic, partitions=[part])],
    )
    with RawConnection(bootstrap) as connection:
        answer = connection.call(request, 12).responses[0].partitions[0]
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    aborted = sorted((each.first_offset, each.producer_id) for each in answer.aborted_transactions or ())
    values: list[bytes] = []
    skipping: set[int] = set()
    data = bytes(answer.records or b"")
    for position, header in iter_headers(data):
        while aborted and aborted[0][0] <= header.last_offset:
            skipping.add(aborted.pop(0)[1])
        if header.is_control:
            skipping.discard(header.producer_id)
        elif header.producer_id not in skipping or not header.is_transactional:
            values += [record.value or b"" for record in read_records(data, position)]
    return Reading(values, answer.last_stable_offset, answer.high_watermark)


def committed_values(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    return fetch(bootstrap, topic, partition).values


def all_values(bootstrap: str, topic: str, partition: int = 0) -> list[bytes]:
    return fetch(bootstrap, topic, partition, committed=False).values


def group_offset(
    bootstrap: str, group: str, topic: str, partition: int = 0, *, require_stable: bool = False
) -> int | ErrorCode:
    """The committed offset of a group, or why it is not told."""
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(topic, partition_indexes=[partition])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group, topics=[wanted])], require_stable=require_stable
    )
    with RawConnection(bootstrap) as connection:
        find_group(connection, group)
        found = settled(lambda: connection.call(request, 8).groups[0], lambda answer: answer.error_code)
    assert found.error_code == 0
    result = found.topics[0].partitions[0]
    return ErrorCode(result.error_code) if result.error_code else result.committed_offset
