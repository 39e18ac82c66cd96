"""DescribeQuorum (key 55), versions 0–2: who votes, who follows, how far each has come.

v1: when each replica last fetched and last had everything. v2: directories, addresses and messages (KIP-853).
Answered by the leader; another node says NOT_LEADER_OR_FOLLOWER, and the router forwards to the active controller.
"""

import asyncio
from typing import TYPE_CHECKING

from penstock.metadata.image import METADATA_TOPIC
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.quorum.core import Quorum
from penstock.quorum.election_state import ReplicaKey
from penstock.quorum.leader import Leader
from penstock.security.verdicts import Operation
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

_PartitionData = DescribeQuorumResponse.PartitionData
_ReplicaState = DescribeQuorumResponse.ReplicaState


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    if not broker.gate.allows_cluster(context, Operation.DESCRIBE):
        return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = []
    for topic in request.topics:
        rows = [_partition(broker, topic.topic_name, each.partition_index) for each in topic.partitions]
        topics.append(DescribeQuorumResponse.TopicData(topic.topic_name, rows))
    if context.api_version < 2:
        _leave_directories_out(topics)
        return DescribeQuorumResponse(topics=topics)
    return DescribeQuorumResponse(topics=topics, nodes=_nodes(broker))


def _leave_directories_out(topics: list[DescribeQuorumResponse.TopicData]) -> None:
    """Version 1 has no room for them."""
    for topic in topics:
        for row in topic.partitions:
            for state in (*row.current_voters, *row.observers):
                state.replica_directory_id = ZERO_UUID


def _partition(broker: "Broker", topic: str, index: int) -> _PartitionData:
    quorum = broker.driver.quorum
    if topic != METADATA_TOPIC or index != 0:
        return _refused(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if quorum is None or quorum.leader is None:
        return _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    core, leader = quorum.core, quorum.leader
    offset_ms = broker.clock.now_ms() - asyncio.get_running_loop().time() * 1000
    voters, observers = [], []
    for voter in core.voters.by_id.values():
        voters.append(_state(core, leader, leader.heard_as(voter.key), offset_ms, broker.clock.now_ms()))
    for key in sorted(leader.progress):
        if key not in core.voters:
            observers.append(_state(core, leader, key, offset_ms, broker.clock.now_ms()))
    return _PartitionData(
        partition_index=0,
        leader_id=core.local.id,
        leader_epoch=core.epoch,
        high_watermark=-1 if leader.high_watermark is None else leader.high_watermark,
        current_voters=voters,
        observers=observers,
    )


def _refused(index: int, code: ErrorCode) -> _PartitionData:
    return _PartitionData(partition_index=index, error_code=code, error_message=code.message)


def _state(core: Quorum, leader: Leader, key: ReplicaKey, offset_ms: float, now_ms: int) -> _ReplicaState:
    """`offset_ms` leads from the loop's time to the wall clock's."""
    if key == core.local:
        return _ReplicaState(key.id, key.directory_id, leader.end_offset, now_ms, now_ms)
    progress = leader.progress.get(key)
    if progress is None:
        return _ReplicaState(key.id, key.directory_id, -1, -1, -1)
    fetched = int(progress.fetched_ms + offset_ms) if progress.fetched_ms >= 0 else -1
    caught_up = int(progress.caught_up_ms + offset_ms) if progress.caught_up_ms >= 0 else -1
    return _ReplicaState(key.id, key.directory_id, progress.end_offset, fetched, caught_up)


def _nodes(broker: "Broker") -> list[DescribeQuorumResponse.Node]:
    quorum = broker.driver.quorum
    if quorum is None:
        return []
    listener = DescribeQuorumResponse.Listener
    return [
        DescribeQuorumResponse.Node(voter.key.id, [listener(*endpoint) for endpoint in voter.endpoints])
        for voter in quorum.core.voters.by_id.values()
    ]
