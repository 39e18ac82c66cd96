"""Whom the consumer asks: the leader, or the replica that the leader has named. (KIP-392)"""

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from penstock.client.cluster import Cluster
from penstock.client.consumer.fetcher import Fetcher, FetchOptions
from penstock.client.consumer.partitions import PartitionState
from penstock.client.errors import ConnectionFailed
from penstock.client.metadata import BrokerInfo, ClusterMetadata, PartitionInfo, TopicInfo
from penstock.client.options import ConnectionOptions
from penstock.client.types import TopicPartition
from penstock.model.errors import ErrorCode
from penstock.records.builder import build_batch
from penstock.wire.generated.fetch import FetchRequest, FetchResponse
from tests.client.virtual_time import run_virtual

TP = TopicPartition("t", 0)
TOPIC_ID = b"0123456789abcdef"
LEADER, FOLLOWER, STRANGER = 1, 2, 3
Answer = FetchResponse.PartitionData | Exception


def said(code: ErrorCode = ErrorCode.NONE, preferred: int = -1, records: bytes = b"") -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(0, code, 1, 1, 0, preferred_read_replica=preferred, records=records)


class ScriptedCluster:
    """Answers fetches in the order of a script, of (who is asked, what it says); then never again."""

    def __init__(self, script: list[tuple[int, Answer]]) -> None:
        brokers = {number: BrokerInfo(number, f"n{number}", 9092) for number in (LEADER, FOLLOWER)}
        topic = TopicInfo("t", TOPIC_ID, [PartitionInfo(0, LEADER, 0, (1, 2), (1, 2))])
        self.metadata = ClusterMetadata(brokers=brokers, topics={"t": topic})
        self.options = ConnectionOptions()
        self.interest: set[str] = set()
        self.refreshes = 0
        self.asked: list[tuple[int, float]] = []
        self._script = script

    def request_refresh(self) -> None:
        self.refreshes += 1

    async def call(self, node_id: int, request: FetchRequest, *_: Any, **__: Any) -> Any:
        await asyncio.sleep(0.001)
        self.asked.append((node_id, asyncio.get_running_loop().time()))
        if not self._script:
            await asyncio.Event().wait()
        expected, answer = self._script.pop(0)
        assert node_id == expected
        if isinstance(answer, Exception):
            raise answer
        topic = FetchResponse.FetchableTopicResponse("t", TOPIC_ID, [answer])
        return SimpleNamespace(error_code=0, throttle_time_ms=0, responses=[topic])


def fetch(*script: tuple[int, Answer]) -> tuple[ScriptedCluster, Fetcher, PartitionState]:
    """Reads for a second."""

    async def story() -> tuple[ScriptedCluster, Fetcher, PartitionState]:
        cluster = ScriptedCluster(list(script))
        fetcher = Fetcher(cast(Cluster, cluster), FetchOptions(rack="here"))
        state = fetcher.add(TP)
        state.seek(0)
        fetcher.fetch()
        await asyncio.sleep(1.0)
        await fetcher.stop()
        assert not cluster._script
        return cluster, fetcher, state

    return run_virtual(story())


def who(cluster: ScriptedCluster) -> list[int]:
    return [node_id for node_id, _ in cluster.asked]


def test_it_reads_where_the_leader_says_and_stays_there() -> None:
    batch = bytes(build_batch([(None, b"a")], timestamp_ms=1))
    cluster, _, state = fetch((LEADER, said(preferred=FOLLOWER)), (FOLLOWER, said(records=batch)), (FOLLOWER, said()))
    assert who(cluster) == [LEADER, FOLLOWER, FOLLOWER, FOLLOWER]
    assert state.fetch_offset == 1


def test_only_the_leader_can_say_that_an_offset_is_out_of_range() -> None:
    out = said(ErrorCode.OFFSET_OUT_OF_RANGE)
    there = (LEADER, said(preferred=FOLLOWER))
    cluster, fetcher, _ = fetch(there, (FOLLOWER, out), (LEADER, said()))
    assert who(cluster) == [LEADER, FOLLOWER, LEADER, LEADER]
    assert not fetcher.out_of_range
    _, fetcher, _ = fetch(there, (FOLLOWER, out), (LEADER, out))
    assert fetcher.out_of_range == {TP}


def test_it_goes_back_to_the_leader_when_the_other_fails() -> None:
    for failure in (ConnectionFailed("gone"), said(ErrorCode.OFFSET_NOT_AVAILABLE)):
        cluster, _, _ = fetch((LEADER, said(preferred=FOLLOWER)), (FOLLOWER, failure))
        assert who(cluster) == [LEADER, FOLLOWER, LEADER]


def test_a_replica_that_is_not_known_is_looked_up_and_the_leader_is_not_asked_at_once() -> None:
    cluster, _, _ = fetch((LEADER, said(preferred=STRANGER)), (LEADER, said(preferred=STRANGER)))
    assert cluster.refreshes == 2
    times = [at for _, at in cluster.asked]
    assert min(after - before for before, after in pairwise(times)) > 0.04
