"""OffsetFetch (key 9), versions 1–10. An unknown group, topic or partition has the offset −1 and no error.

v2: null topics ask for all, errors of the group at the top. v7: require stable (KIP-447): what an open transaction
may change is UNSTABLE_OFFSET_COMMIT. v8: several groups (KIP-709). v9: member id and epoch, which mean nothing to a
classic group and must be up to date in a consumer group. v10: topics by id (KIP-848).
"""

from typing import TYPE_CHECKING

from penstock.broker.turns import in_turns
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

RequestGroup = OffsetFetchRequest.OffsetFetchRequestGroup
RequestTopic = OffsetFetchRequest.OffsetFetchRequestTopics
ResponseGroup = OffsetFetchResponse.OffsetFetchResponseGroup
ResponseTopic = OffsetFetchResponse.OffsetFetchResponseTopics
ResponsePartition = OffsetFetchResponse.OffsetFetchResponsePartitions

_MANY_GROUPS_FROM = 8
_TOPIC_IDS_FROM = 10


async def handle(broker: "Broker", context: "RequestContext", request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.api_version >= _MANY_GROUPS_FROM:
        return OffsetFetchResponse(
            groups=[
                await _fetch(broker, context, group, request.require_stable)
                async for group in in_turns(request.groups, lambda group: group.group_id)
            ]
        )
    group = RequestGroup(request.group_id, topics=None)
    if request.topics is not None:
        group.topics = [
            RequestTopic(topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics
        ]
    return _flattened(await _fetch(broker, context, group, request.require_stable), group)


async def _fetch(
    broker: "Broker", context: "RequestContext", group: RequestGroup, require_stable: bool
) -> ResponseGroup:
    if not broker.gate.allows_group(context, Operation.DESCRIBE, group.group_id):
        return ResponseGroup(group.group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused: list[ResponseTopic] = []
    wants_all = group.topics is None
    if group.topics is not None:
        group.topics = _resolve(broker, context, group.topics, refused)
    answer = await broker.groups.fetch_offsets(group, require_stable)
    if isinstance(answer, ErrorCode):
        # Both make a client look for its coordinator again; the other one is unknown to aiokafka here, and fatal.
        if answer == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            answer = ErrorCode.NOT_COORDINATOR
        return ResponseGroup(group.group_id, error_code=answer)
    if answer.error_code:
        return answer
    if wants_all:
        answer.topics = _visible(broker, context, answer.topics)
    answer.topics += refused
    return answer


def _resolve(
    broker: "Broker", context: "RequestContext", topics: list[RequestTopic], refused: list[ResponseTopic]
) -> list[RequestTopic]:
    """Topics with both name and id. Names that do not exist are asked for all the same: they have no offsets."""
    by_id = context.api_version >= _TOPIC_IDS_FROM
    resolved = []
    for topic in topics:
        known = broker.image.topic_by_id(topic.topic_id) if by_id else broker.image.topic(topic.name)
        if known is not None:
            topic.name, topic.topic_id = known.name, known.id
        elif by_id:
            refused.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            continue
        if broker.gate.allows_topic(context, Operation.DESCRIBE, topic.name):
            resolved.append(topic)
        else:
            refused.append(_refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return resolved


def _visible(broker: "Broker", context: "RequestContext", topics: list[ResponseTopic]) -> list[ResponseTopic]:
    """Of all topics, those that the client may see and, where ids are asked for, that still have one.

    A name may have gone to another topic while the answer waited: then the offsets are not that one's.
    """
    visible = []
    for topic in topics:
        known = broker.image.topic(topic.name)
        if known is not None and known.id != topic.topic_id:
            continue
        if known is None and context.api_version >= _TOPIC_IDS_FROM:
            continue
        if broker.gate.allows_topic(context, Operation.DESCRIBE, topic.name):
            visible.append(topic)
    return visible


def _refused(topic: RequestTopic, error: ErrorCode) -> ResponseTopic:
    partitions = [ResponsePartition(index, -1, error_code=error) for index in topic.partition_indexes]
    return ResponseTopic(topic.name, topic.topic_id, partitions)


def _flattened(answer: ResponseGroup, group: RequestGroup) -> OffsetFetchResponse:
    """The shape of versions that know one group. An error is at every partition too, where Kafka from v2 on has none:
    aiokafka looks only there, and takes silence for a group that has committed nothing."""
    if answer.error_code:
        answer.topics = [_refused(topic, ErrorCode(answer.error_code)) for topic in group.topics or []]
    topics = [
        OffsetFetchResponse.OffsetFetchResponseTopic(
            topic.name,
            [
                OffsetFetchResponse.OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
                for each in topic.partitions
            ],
        )
        for topic in answer.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=answer.error_code)
