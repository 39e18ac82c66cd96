"""DescribeTopicPartitions (key 75), version 0: topics page by page (KIP-966).

Eligible leader replicas are empty arrays, never null: Java clients fail on null.
"""

from typing import TYPE_CHECKING

from penstock.metadata.image import TopicImage
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation, ResourceType
from penstock.wire.generated.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Response = DescribeTopicPartitionsResponse
Topic = Response.DescribeTopicPartitionsResponseTopic
Partition = Response.DescribeTopicPartitionsResponsePartition
_MOST_PARTITIONS = 2_000


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    room = max(1, min(request.response_partition_limit, _MOST_PARTITIONS))
    response = Response()
    first = max(0, request.cursor.partition_index) if request.cursor is not None else 0
    for name in _names(broker, request):
        if not broker.gate.allows_topic(context, Operation.DESCRIBE, name):
            if request.topics:
                response.topics.append(Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name))
            continue
        start = first if request.cursor is not None and name == request.cursor.topic_name else 0
        if room == 0:
            response.next_cursor = Response.Cursor(name, start)
            break
        topic = broker.image.topic(name)
        if topic is None:
            response.topics.append(Topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name))
            continue
        end = min(len(topic.partitions), start + room)
        response.topics.append(_describe(broker, context, topic, start, end))
        room -= end - start
        if end < len(topic.partitions):
            response.next_cursor = Response.Cursor(name, end)
            break
    return response


def _names(broker: "Broker", request: DescribeTopicPartitionsRequest) -> list[str]:
    """Topics in the order of pages, from the cursor on."""
    names = sorted({topic.name for topic in request.topics} if request.topics else broker.image.topics)
    if request.cursor is None:
        return names
    return [name for name in names if name >= request.cursor.topic_name]


def _describe(broker: "Broker", context: "RequestContext", topic: TopicImage, start: int, end: int) -> Topic:
    alive = {which.id for which in broker.image.brokers.values() if not which.fenced}
    return Topic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(number, topic.partitions[number], alive) for number in range(start, end)],
        topic_authorized_operations=broker.gate.authorized_operations(context, ResourceType.TOPIC, topic.name),
    )


def _partition(number: int, state: PartitionImage, alive: set[int]) -> Partition:
    return Partition(
        error_code=ErrorCode.NONE if state.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=number,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.eligible_leader_replicas),
        last_known_elr=list(state.last_known_elr),
        offline_replicas=[replica for replica in state.replicas if replica not in alive],
    )
