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
    """Broker 1 has its own answer for each partition; broker 2 is silent; nobody leads partition 3."""

    def __init__(self, codes: dict[int, list[ErrorCode]]) -> None:
        super().__init__(ConnectionOptions(retry_backoff_ms=1))
        rows = [PartitionInfo(partition, leader, 0, (1,), (1,)) for partition, leader in LED_BY.items()]
        brokers = {node_id: BrokerInfo(node_id, "h", node_id) for node_id in (1, 2)}
        self.metadata = ClusterMetadata("c", 1, brokers, {"t": TopicInfo("t", b"t" * 16, rows)})
        self.codes = codes

    async def refresh(self) -> None:
        pass

    async def call(self, node_id: int, request: Any, response_type: Any, **_: Any) -> Any:
        assert isinstance(request, ListOffsetsRequest)
        if node_id == 2:
            await asyncio.Event().wait()
        kind = ListOffsetsResponse
        rows = []
        for asked in request.topics[0].partitions:
            left = self.codes.get(asked.partition_index, [])
            code = left.pop(0) if left else ErrorCode.NONE
            rows.append(kind.ListOffsetsPartitionResponse(asked.partition_index, code, timestamp=-1, offset=7))
        return kind(topics=[kind.ListOffsetsTopicResponse("t", rows)])


def known(codes: dict[int, list[ErrorCode]], timeout_ms: int) -> list[int]:
    found = asyncio.run(list_known_offsets(Script(codes), WANTED, timeout_ms=timeout_ms))
    return sorted(tp.partition for tp in found)


def test_a_partition_that_is_refused_does_not_hide_the_others() -> None:
    assert known({1: [ErrorCode.OFFSET_NOT_AVAILABLE] * 10_000}, 100) == [0]


def test_what_passes_is_waited_for() -> None:
    assert known({1: [ErrorCode.OFFSET_NOT_AVAILABLE] * 2}, 500) == [0, 1]
