"""ConsumerGroupDescribe (key 69), versions 0–1: consumer groups (KIP-848). v1: which protocol a member speaks.

A group is shown only to those who may describe it and every topic that its members subscribe to or are assigned.
"""

from typing import TYPE_CHECKING

from penstock.broker.handlers.consumer_group_heartbeat import serves_consumer_groups
from penstock.broker.turns import in_turns
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation, ResourceType
from penstock.wire.generated.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

DescribedGroup = ConsumerGroupDescribeResponse.DescribedGroup


async def handle(
    broker: "Broker", context: "RequestContext", request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    groups = [
        await _describe(broker, context, group_id, request.include_authorized_operations)
        async for group_id in in_turns(request.group_ids, str)
    ]
    return ConsumerGroupDescribeResponse(groups=groups)


async def _describe(
    broker: "Broker", context: "RequestContext", group_id: str, with_operations: bool
) -> DescribedGroup:
    if not serves_consumer_groups(broker):
        return _refused(group_id, ErrorCode.UNSUPPORTED_VERSION)
    if not broker.gate.allows_group(context, Operation.DESCRIBE, group_id):
        return _refused(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answer = await broker.groups.describe_consumer_group(group_id)
    if isinstance(answer, ErrorCode):
        return _refused(group_id, answer)
    if answer.error_code:
        return answer
    topics = _topics(answer)
    if not all(broker.gate.allows_topic(context, Operation.DESCRIBE, topic) for topic in topics):
        return _refused(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if with_operations:
        answer.authorized_operations = broker.gate.authorized_operations(context, ResourceType.GROUP, group_id)
    return answer


def _refused(group_id: str, error: ErrorCode) -> DescribedGroup:
    return DescribedGroup(error_code=error, error_message=error.message, group_id=group_id)


def _topics(group: DescribedGroup) -> set[str]:
    topics: set[str] = set()
    for member in group.members:
        topics.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            topics.update(topic.topic_name for topic in assignment.topic_partitions)
    return topics
