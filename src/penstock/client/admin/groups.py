"""Groups: list, describe, delete; their offsets: move and delete."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.admin.descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetMove,
    Outcome,
)
from penstock.client.cluster import Cluster
from penstock.client.consumer.protocol import PROTOCOL_TYPE, decode_assignment
from penstock.client.errors import ClientError, GroupError, UsageError, broker_error, raise_for
from penstock.client.group_offsets import Committer, commit_offsets, fetch_offsets
from penstock.client.offsets import list_offsets
from penstock.client.retry import retry
from penstock.client.types import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.wire.errors import WireError
from penstock.wire.generated.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from penstock.wire.generated.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.generated.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from penstock.wire.generated.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse


async def list_groups(cluster: Cluster, timeout_ms: int) -> list[GroupListing]:
    """Every broker knows the groups that it coordinates."""

    async def ask(node_id: int) -> list[GroupListing]:
        response = await cluster.call(node_id, ListGroupsRequest(), ListGroupsResponse)
        raise_for(response.error_code, what="list of groups")
        return [
            GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type or "classic")
            for group in response.groups
        ]

    async def attempt() -> list[GroupListing]:
        answers = await asyncio.gather(*(ask(node_id) for node_id in cluster.metadata.brokers))
        return sorted(group for groups in answers for group in groups)

    return await retry(attempt, cluster.options, timeout_ms)


async def describe_group(cluster: Cluster, group_id: str, timeout_ms: int) -> GroupDescription:
    async def attempt() -> GroupDescription:
        request = DescribeGroupsRequest(groups=[group_id])
        response = await cluster.call_coordinator(group_id, request, DescribeGroupsResponse)
        (group,) = response.groups
        cluster.check_coordinator(group_id, group.error_code)
        if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (group.group_state == "Dead" and not group.members):
            return await _describe_consumer_group(cluster, group_id)
        raise_for(group.error_code, group.error_message, what=f"group {group_id!r}")
        coordinator = await cluster.coordinator(group_id)
        members = [_member(member, group.protocol_type) for member in group.members]
        return GroupDescription(
            group_id, group.group_state, group.protocol_type, group.protocol_data, coordinator, sorted(members)
        )

    return await retry(attempt, cluster.options, timeout_ms)


async def _describe_consumer_group(cluster: Cluster, group_id: str) -> GroupDescription:
    """A group of the newer protocol, which the classic call does not show. (KIP-848)"""
    coordinator = await cluster.coordinator(group_id)
    connection = await cluster.connection(coordinator)
    if ConsumerGroupDescribeRequest.API_KEY not in connection.versions:
        raise _no_such_group(group_id)
    response = await cluster.call(
        coordinator, ConsumerGroupDescribeRequest(group_ids=[group_id]), ConsumerGroupDescribeResponse
    )
    (group,) = response.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise _no_such_group(group_id)
    raise_for(group.error_code, group.error_message, what=f"group {group_id!r}")
    members = [
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            sorted(
                TopicPartition(topic.topic_name, p)
                for topic in member.assignment.topic_partitions
                for p in topic.partitions
            ),
        )
        for member in group.members
    ]
    return GroupDescription(
        group_id, group.group_state, PROTOCOL_TYPE, group.assignor_name, coordinator, sorted(members)
    )


def _no_such_group(group_id: str) -> GroupError:
    return GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r} does not exist")


def _member(member: DescribeGroupsResponse.DescribedGroupMember, protocol_type: str) -> MemberDescription:
    assignment: list[TopicPartition] = []
    if protocol_type == PROTOCOL_TYPE:
        try:
            assignment = decode_assignment(bytes(member.member_assignment))
        except WireError:
            assignment = []  # not a consumer after all: the bytes are the members' own affair
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, sorted(assignment)
    )


async def delete_group(cluster: Cluster, group_id: str, timeout_ms: int) -> None:
    async def attempt() -> None:
        request = DeleteGroupsRequest(groups_names=[group_id])
        response = await cluster.call_coordinator(group_id, request, DeleteGroupsResponse)
        for result in response.results:
            cluster.check_coordinator(group_id, result.error_code)
            raise_for(result.error_code, result.error_message, what=f"group {group_id!r}")

    await retry(attempt, cluster.options, timeout_ms)


async def delete_group_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, Outcome]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    request = OffsetDeleteRequest(
        group_id=group_id,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=name,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=n) for n in numbers],
            )
            for name, numbers in topics.items()
        ],
    )

    async def attempt() -> dict[TopicPartition, Outcome]:
        response = await cluster.call_coordinator(group_id, request, OffsetDeleteResponse)
        cluster.check_coordinator(group_id, response.error_code)
        raise_for(response.error_code, what=f"group {group_id!r}")
        return {
            TopicPartition(topic.name, p.partition_index): broker_error(p.error_code) if p.error_code else None
            for topic in response.topics
            for p in topic.partitions
        }

    return await retry(attempt, cluster.options, timeout_ms)


async def plan_reset(
    cluster: Cluster,
    group_id: str,
    *,
    topics: Sequence[str],
    to_timestamp: int | None,
    to_offset: int | None,
    shift: int | None,
    timeout_ms: int,
) -> list[OffsetMove]:
    """Where each partition's committed offset would go: within what the partition holds."""
    committed = await fetch_offsets(cluster, group_id, None, timeout_ms)
    partitions = await _partitions_to_reset(cluster, topics, committed, timeout_ms)
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), timeout_ms=timeout_ms)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), timeout_ms=timeout_ms)
    by_time: Mapping[TopicPartition, int] = {}
    if to_timestamp is not None:
        listed = await list_offsets(cluster, dict.fromkeys(partitions, to_timestamp), timeout_ms=timeout_ms)
        by_time = {tp: found.offset if found.offset >= 0 else ends[tp].offset for tp, found in listed.items()}
    moves = []
    for tp in partitions:
        before = committed[tp].offset if tp in committed else None
        if to_timestamp is not None:
            target = by_time[tp]
        elif to_offset is not None:
            target = to_offset
        else:
            target = (before if before is not None else starts[tp].offset) + (shift or 0)
        moves.append(OffsetMove(tp, before, min(max(target, starts[tp].offset), ends[tp].offset)))
    return moves


async def _partitions_to_reset(
    cluster: Cluster, topics: Sequence[str], committed: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
) -> list[TopicPartition]:
    names = sorted(set(topics) or {tp.topic for tp in committed})
    if not names:
        raise UsageError("the group has committed nothing", hint="name the topics whose offsets to set")
    partitions: list[TopicPartition] = []
    for name in names:
        info = await cluster.topic(name, timeout_ms)
        partitions += [TopicPartition(name, number) for number in info.partitions]
    return partitions


async def alter_group_offsets(
    cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int
) -> None:
    """Only while the group has no members: they would overwrite it, and the coordinator refuses."""
    try:
        await commit_offsets(cluster, Committer(group_id), offsets, timeout_ms)
    except ClientError as error:
        if error.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS):
            raise GroupError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id!r} has members") from None
        raise
