"""Offsets of the partitions whose leaders tell them; the others are left out, and nobody waits for them for long."""

import asyncio
from typing import Any

from penstock.client.cluster import Cluster
from penstock.client.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from penstock.client.offsets import list_known_offsets
from penstock.client.options import ConnectionOptions
from penstock.client.types import LATEST, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.wire.generated.list_offsets import ListOffsetsRequest, ListOffsetsResponse

LED_BY = {0: 1, 1: 1, 2: 2, 3: -1}
WANTED = {TopicPartition("t", partition): LATEST for partition in LED_BY}


class Script(Cluster):
    """Broker 1 has its own answer for each partition; broker 2 is silent, 3 is slow; nobody leads partition 3."""

    def __init__(self, codes: dict[int, list[ErrorCode]]) -> None:
        super().__init__(ConnectionOptions(retry_backoff_ms=1))
        rows = [PartitionInfo(partition, leader, 0, (1,), (1,)) for partition, leader in LED_BY.items()]
        brokers = {node_id: BrokerInfo(node_id, "h", node_id) for node_id in (1, 2)}
        self.metadata = ClusterMetadata("c", 1, brokers, {"t": TopicInfo("t", b"t" * 16, rows)})
        self.codes = codes
        self.moved: set[int] = set()  # not led by broker 1 any more, as the metadata tell when asked

    async def refresh(self) -> None:
        pass

    def request_refresh(self) -> None:
        for partition in self.moved:
            self.metadata.topics["t"].partitions[partition] = PartitionInfo(partition, 3, 1, (1,), (1,))

    async def call(self, node_id: int, request: Any, response_type: Any, **_: Any) -> Any:
        assert isinstance(request, ListOffsetsRequest)
        if node_id == 2:
            await asyncio.Event().wait()
        if node_id == 3:
            await asyncio.sleep(0.05)
        kind = ListOffsetsResponse
        rows = []
        for asked in request.topics[0].partitions:
            left = self.codes.get(asked.partition_index, [])
            code = left.pop(0) if left else ErrorCode.NONE
            if node_id == 1 and asked.partition_index in self.moved:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            rows.append(kind.ListOffsetsPartitionResponse(asked.partition_index, code, timestamp=-1, offset=7))
        return kind(topics=[kind.ListOffsetsTopicResponse("t", rows)])


def known(codes: dict[int, list[ErrorCode]], timeout_ms: int) -> list[int]:
    found = asyncio.run(list_known_offsets(Script(codes), WANTED, timeout_ms=timeout_ms))
    return sorted(tp.partition for tp in found)


def test_a_partition_that_is_refused_does_not_hide_the_others() -> None:
    assert known({1: [ErrorCode.OFFSET_NOT_AVAILABLE] * 10_000}, 100) == [0]


def test_a_partition_that_is_refused_for_good_does_not_end_the_wait_for_another() -> None:
    codes = {0: [ErrorCode.OFFSET_NOT_AVAILABLE] * 2, 1: [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 10_000}
    assert known(codes, 500) == [0]


def test_what_passes_is_waited_for() -> None:
    assert known({1: [ErrorCode.OFFSET_NOT_AVAILABLE] * 2}, 500) == [0, 1]


def test_a_new_leader_is_asked_instead() -> None:
    script = Script({})
    script.moved = {1}
    found = asyncio.run(list_known_offsets(script, WANTED, timeout_ms=500))
    assert sorted(tp.partition for tp in found) == [0, 1]


def test_who_is_slower_than_one_that_refuses_is_waited_for() -> None:
    """Else its answer would change what was given out."""
    script = Script({0: [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]})
    script.moved = {1}
    wanted = {TopicPartition("t", partition): LATEST for partition in (0, 1)}
    found = asyncio.run(list_known_offsets(script, wanted, timeout_ms=500))
    assert [tp.partition for tp in found] == [1]
