"""OffsetCommit (key 8), versions 2–10.

v2–4: a retention for these offsets alone. v6: leader epochs (KIP-320). v7: static members (KIP-345). v9: an unknown
group is GROUP_ID_NOT_FOUND (KIP-848). v10: topics by id (KIP-848).
"""

from typing import TYPE_CHECKING

from penstock.metadata.image import TopicImage
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

RequestTopic = OffsetCommitRequest.OffsetCommitRequestTopic
ResponseTopic = OffsetCommitResponse.OffsetCommitResponseTopic
ResponsePartition = OffsetCommitResponse.OffsetCommitResponsePartition

_TOPIC_IDS_FROM = 10


async def handle(broker: "Broker", context: "RequestContext", request: OffsetCommitRequest) -> OffsetCommitResponse:
    if not broker.gate.allows_group(context, Operation.READ, request.group_id):
        return _refused(request.topics, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    asked = request.topics
    checked = [_check(broker, context, topic) for topic in asked]
    request.topics = [accepted for accepted, _ in checked if accepted.partitions]
    refused = [refusal for _, refusal in checked]
    if not request.topics:
        return OffsetCommitResponse(topics=refused)
    answer = await broker.groups.commit_offsets(request, context.api_version)
    if isinstance(answer, ErrorCode):
        answer = _refused(request.topics, answer)
    return _merged(refused, answer)


def _check(broker: "Broker", context: "RequestContext", topic: RequestTopic) -> tuple[RequestTopic, ResponseTopic]:
    """The topic with the partitions that may be committed, and the answer for the others."""
    by_id = context.api_version >= _TOPIC_IDS_FROM
    known = broker.image.topic_by_id(topic.topic_id) if by_id else broker.image.topic(topic.name)
    name = known.name if known is not None else topic.name
    topic_id = known.id if known is not None else topic.topic_id
    accepted = RequestTopic(name, topic_id)
    refused = ResponseTopic(name, topic_id)
    for partition in topic.partitions:
        error = _check_partition(known, partition.partition_index, by_id)
        if known is not None and not broker.gate.allows_topic(context, Operation.READ, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if error:
            refused.partitions.append(ResponsePartition(partition.partition_index, error))
        else:
            accepted.partitions.append(partition)
    return accepted, refused


def _check_partition(topic: TopicImage | None, index: int, by_id: bool) -> ErrorCode:
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if topic.partition(index) is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _refused(topics: list[RequestTopic], error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            ResponseTopic(
                topic.name,
                topic.topic_id,
                [ResponsePartition(partition.partition_index, error) for partition in topic.partitions],
            )
            for topic in topics
        ]
    )


def _merged(refused: list[ResponseTopic], answer: OffsetCommitResponse) -> OffsetCommitResponse:
    """`refused` has every topic that was asked for, in that order; most of them with nothing refused."""
    answered = {topic.name: topic for topic in answer.topics}
    for topic in refused:
        found = answered.get(topic.name)
        if found is not None:
            topic.partitions += found.partitions
            found.partitions = []  # should the client have named the topic twice
    return OffsetCommitResponse(topics=refused)
