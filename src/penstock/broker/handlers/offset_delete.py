"""OffsetDelete (key 47), version 0: offsets of topics that the group does not subscribe to. (KIP-496)"""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

RequestTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
ResponseTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
ResponsePartition = OffsetDeleteResponse.OffsetDeleteResponsePartition


async def handle(broker: "Broker", context: "RequestContext", request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    if not broker.gate.allows_group(context, Operation.DELETE, request.group_id):
        return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused = []
    accepted = []
    for topic in request.topics:
        good, bad = _check(broker, context, topic)
        if good.partitions:
            accepted.append(good)
        if bad.partitions:
            refused.append(bad)
    answer = await broker.groups.delete_offsets(OffsetDeleteRequest(request.group_id, accepted))
    if isinstance(answer, ErrorCode):
        return OffsetDeleteResponse(error_code=answer)
    answered = {topic.name: topic for topic in answer.topics}
    for bad in refused:
        if bad.name in answered:
            answered[bad.name].partitions += bad.partitions
        else:
            answer.topics.append(bad)
    return answer


def _check(broker: "Broker", context: "RequestContext", topic: RequestTopic) -> tuple[RequestTopic, ResponseTopic]:
    """The topic with the partitions to delete, and the answer for the others."""
    known = broker.image.topic(topic.name)
    allowed = broker.gate.allows_topic(context, Operation.READ, topic.name)
    good, bad = RequestTopic(topic.name), ResponseTopic(topic.name)
    for partition in topic.partitions:
        index = partition.partition_index
        if not allowed:
            bad.partitions.append(ResponsePartition(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        elif known is None or known.partition(index) is None:
            bad.partitions.append(ResponsePartition(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            good.partitions.append(partition)
    return good, bad
