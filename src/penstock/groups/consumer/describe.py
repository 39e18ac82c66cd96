"""ConsumerGroupDescribe: a consumer group as administrators see it."""

from collections.abc import Collection, Mapping

from penstock.groups.consumer.checks import group_not_found, not_a_consumer_group
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.member import ConsumerMember, held_by
from penstock.groups.consumer.target import preferred_assignor
from penstock.metadata.image import MetadataImage
from penstock.wire.generated.consumer_group_describe import ConsumerGroupDescribeResponse

DescribedGroup = ConsumerGroupDescribeResponse.DescribedGroup
Assignment = ConsumerGroupDescribeResponse.Assignment
TopicPartitions = ConsumerGroupDescribeResponse.TopicPartitions

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def describe_consumer_group(
    group: object, group_id: str, assignors: tuple[str, ...], image: MetadataImage
) -> DescribedGroup:
    """`group` may be of any type, or None."""
    if not isinstance(group, ConsumerGroup):
        refusal = group_not_found(group_id) if group is None else not_a_consumer_group(group_id)
        return DescribedGroup(error_code=refusal.code, error_message=refusal.message, group_id=group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(group.members.values(), assignors),
        members=[_describe_member(group, member, image) for member in group.members.values()],
    )


def _describe_member(
    group: ConsumerGroup, member: ConsumerMember, image: MetadataImage
) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(held_by(member), image),
        target_assignment=_assignment(group.target_of(member.member_id), image),
        member_type=_CLASSIC_MEMBER if member.uses_classic_protocol else _CONSUMER_MEMBER,
    )


def _assignment(
    partitions: Mapping[bytes, Collection[int]], image: MetadataImage
) -> ConsumerGroupDescribeResponse.Assignment:
    topics = [(image.topic_by_id(topic_id), numbers) for topic_id, numbers in partitions.items()]
    return Assignment(
        [TopicPartitions(topic.id, topic.name, sorted(numbers)) for topic, numbers in topics if topic is not None]
    )
