"""Committed offsets of a group: writing and reading them at its coordinator."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, CommitFailed, broker_error, raise_for
from penstock.client.retry import retry
from penstock.client.types import OffsetAndMetadata, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from penstock.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchResponse

_LAST_COMMIT_BY_NAME = 9
_LAST_FETCH_OF_ONE_GROUP = 7
_FENCED = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


class Committer(NamedTuple):
    """Who commits: a member with its generation, or anyone while the group has no members."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


async def commit_offsets(
    cluster: Cluster,
    committer: Committer,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    timeout_ms: float,
) -> None:
    """Raises `CommitFailed` when the group has moved on without the committer."""
    if not offsets:
        return
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = defaultdict(list)
    for (topic, partition), committed in offsets.items():
        topics[topic].append(
            OffsetCommitRequest.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    request = OffsetCommitRequest(
        group_id=committer.group_id,
        generation_id_or_member_epoch=committer.generation,
        member_id=committer.member_id,
        group_instance_id=committer.instance_id,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=t, partitions=p) for t, p in topics.items()],
    )

    async def attempt() -> None:
        response = await cluster.call_coordinator(
            committer.group_id, request, OffsetCommitResponse, max_version=_LAST_COMMIT_BY_NAME
        )
        for topic in response.topics:
            for partition in topic.partitions:
                cluster.check_coordinator(committer.group_id, partition.error_code)
                _raise_commit_error(committer, f"{topic.name}-{partition.partition_index}", partition.error_code)

    await retry(attempt, cluster.options, timeout_ms)


def _raise_commit_error(committer: Committer, where: str, code: int) -> None:
    if code == ErrorCode.NONE:
        return
    error: ClientError = broker_error(code, what=f"commit of {where}")
    if committer.generation >= 0:
        if code in _FENCED:
            error = CommitFailed(f"group {committer.group_id!r} has moved on without this member ({error})")
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            error = CommitFailed(
                f"group {committer.group_id!r} is rebalancing", hint="poll, and commit again if the partition stays"
            )
    raise error


async def fetch_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    timeout_ms: float,
    *,
    require_stable: bool = False,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Committed offsets, of all partitions the group committed when none are named; those never committed are
    left out."""
    topics: dict[str, list[int]] | None = None
    if partitions is not None:
        topics = defaultdict(list)
        for topic, partition in partitions:
            topics[topic].append(partition)
    request = OffsetFetchRequest(
        group_id=group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequest.OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in topics.items()],
        require_stable=require_stable,
    )

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        response = await cluster.call_coordinator(
            group_id, request, OffsetFetchResponse, max_version=_LAST_FETCH_OF_ONE_GROUP
        )
        cluster.check_coordinator(group_id, response.error_code)
        raise_for(response.error_code, what=f"offsets of group {group_id!r}")
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                raise_for(p.error_code, what=f"committed offset of {tp}")
                if p.committed_offset >= 0:
                    found[tp] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        return found

    return await retry(attempt, cluster.options, timeout_ms)
