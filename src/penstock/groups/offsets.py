"""OffsetCommit, OffsetFetch and OffsetDelete: positions of groups, and of consumers that only store offsets here.

A commit without a member to a group that does not exist makes a "simple" one, which has no protocol type.
"""

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.rebalance import keep_session
from penstock.groups.committer import Committer, Group, PartitionCheck, check_committer, check_reader
from penstock.groups.decision import Turn, Waiter
from penstock.groups.group_records import offset_record, offset_tombstone
from penstock.groups.offset_store import CommittedOffset, OffsetStore, TopicOffsets
from penstock.groups.transactional_offsets import TransactionalOffsets
from penstock.metadata.image import MetadataImage
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from penstock.wire.generated.records_group import OffsetCommitValue

_NO_OFFSET = CommittedOffset(-1, -1, "", -1)


# -- commit ---------------------------------------------------------------------------------------------------------


def commit_offsets(
    turn: Turn, group: Group | None, request: OffsetCommitRequest, api_version: int, waiter: Waiter
) -> None:
    """Topics must carry both name and id: the caller has looked up the one by the other."""
    epoch = request.generation_id_or_member_epoch
    check = check_committer(group, Committer(request.member_id, request.group_instance_id, epoch, api_version))
    if isinstance(check, ErrorCode):
        turn.answer(waiter, check)
        return
    if isinstance(group, ClassicGroup):
        member = group.members.get(request.member_id)
        if member is not None:
            keep_session(turn, member)
    response = OffsetCommitResponse()
    for topic in request.topics:
        results = [_commit_partition(turn, request, topic, partition, check) for partition in topic.partitions]
        response.topics.append(
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=results
            )
        )
    turn.answer(waiter, response)


def _commit_partition(
    turn: Turn,
    request: OffsetCommitRequest,
    topic: OffsetCommitRequest.OffsetCommitRequestTopic,
    partition: OffsetCommitRequest.OffsetCommitRequestPartition,
    check: PartitionCheck,
) -> OffsetCommitResponse.OffsetCommitResponsePartition:
    metadata = partition.committed_metadata or ""
    error = check(topic.topic_id, partition.partition_index)
    result = OffsetCommitResponse.OffsetCommitResponsePartition(partition.partition_index, error)
    if error:
        return result
    if len(metadata) > turn.config.offset_metadata_max_bytes:
        result.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
        return result
    now_ms = turn.now.wall_ms
    value = OffsetCommitValue(offset=partition.committed_offset, metadata=metadata, commit_timestamp=now_ms)
    if request.retention_time_ms >= 0:
        value.expire_timestamp = now_ms + request.retention_time_ms
    else:
        value.leader_epoch = partition.committed_leader_epoch
        value.topic_id = topic.topic_id
    turn.write(offset_record(request.group_id, topic.name, partition.partition_index, value))
    return result


# -- fetch ----------------------------------------------------------------------------------------------------------


def fetch_offsets(
    offsets: OffsetStore,
    group: Group | None,
    request: OffsetFetchRequest.OffsetFetchRequestGroup,
    image: MetadataImage,
    unstable: TransactionalOffsets | None = None,
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    """What is not committed is −1 and no error, also for a group that does not exist. Null topics: all of them, those
    that exist with their ids.

    With `unstable` (KIP-447) an offset that an open transaction may change is UNSTABLE_OFFSET_COMMIT instead.
    """
    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=request.group_id)
    response.error_code = check_reader(group, request.member_id, request.member_epoch)
    if response.error_code:
        return response
    committed = offsets.of_group(request.group_id)
    if request.topics is None:
        for name, partitions in committed.items():
            topic_id = _topic_id(image, name)
            own = [index for index, each in partitions.items() if each.belongs_to(topic_id)]
            if own:
                response.topics.append(_fetch_topic(name, topic_id, own, partitions))
        return _mark_unstable(response, unstable)
    for topic in request.topics:
        partitions = committed.get(topic.name, {})
        response.topics.append(_fetch_topic(topic.name, topic.topic_id, topic.partition_indexes, partitions))
    return _mark_unstable(response, unstable)


def _topic_id(image: MetadataImage, name: str) -> bytes:
    known = image.topic(name)
    return known.id if known is not None else ZERO_UUID


def _mark_unstable(
    response: OffsetFetchResponse.OffsetFetchResponseGroup, unstable: TransactionalOffsets | None
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    if unstable is not None and unstable.has_group(response.group_id):
        for topic in response.topics:
            for each in topic.partitions:
                if unstable.is_pending(response.group_id, topic.name, each.partition_index):
                    each.committed_offset = each.committed_leader_epoch = -1
                    each.metadata = ""
                    each.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    return response


def _fetch_topic(
    name: str, topic_id: bytes, indexes: list[int], committed: TopicOffsets
) -> OffsetFetchResponse.OffsetFetchResponseTopics:
    topic = OffsetFetchResponse.OffsetFetchResponseTopics(name=name, topic_id=topic_id)
    for index in indexes:
        found = committed.get(index, _NO_OFFSET)
        if not found.belongs_to(topic_id):
            found = _NO_OFFSET
        topic.partitions.append(
            OffsetFetchResponse.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=found.offset,
                committed_leader_epoch=found.leader_epoch,
                metadata=found.metadata,
            )
        )
    return topic


# -- delete ---------------------------------------------------------------------------------------------------------


def delete_offsets(
    turn: Turn,
    group: Group | None,
    offsets: OffsetStore,
    pending: TransactionalOffsets,
    request: OffsetDeleteRequest,
    waiter: Waiter,
) -> None:
    if group is None:
        turn.answer(waiter, ErrorCode.GROUP_ID_NOT_FOUND)
        return
    if not group.is_empty and not group.uses_consumer_protocol:
        turn.answer(waiter, ErrorCode.NON_EMPTY_GROUP)
        return
    response = OffsetDeleteResponse()
    for topic in request.topics:
        subscribed = group.is_subscribed_to(topic.name)
        result = OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            place = (group.group_id, topic.name, index)
            if not subscribed and (offsets.get(*place) is not None or pending.is_pending(*place)):
                turn.write(offset_tombstone(group.group_id, topic.name, index))
            result.partitions.append(
                OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=index,
                    error_code=ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE,
                )
            )
        response.topics.append(result)
    turn.answer(waiter, response)
