"""Topics: create, delete, grow, list, describe; records: delete from the front."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.admin.asking import ask_controller
from penstock.client.admin.descriptions import CreatedTopic, NewTopic, Outcome, TopicDescription, TopicListing
from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, broker_error
from penstock.client.metadata import ClusterMetadata, TopicInfo
from penstock.client.offsets import group_by_leader
from penstock.client.retry import retry
from penstock.client.types import TopicPartition
from penstock.model.errors import ErrorCode
from penstock.model.ids import format_uuid
from penstock.wire.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from penstock.wire.generated.create_topics import CreateTopicsRequest, CreateTopicsResponse
from penstock.wire.generated.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from penstock.wire.generated.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse

_LAST_DELETE_BY_NAME = 5


async def create_topics(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool, timeout_ms: int
) -> dict[str, CreatedTopic | ClientError]:
    request = CreateTopicsRequest(
        topics=[_creatable(topic) for topic in topics], timeout_ms=timeout_ms, validate_only=validate_only
    )
    response = await ask_controller(cluster, request, CreateTopicsResponse, timeout_ms)
    results: dict[str, CreatedTopic | ClientError] = {}
    for result in response.topics:
        if result.error_code:
            results[result.name] = broker_error(
                result.error_code, result.error_message, what=f"topic {result.name!r}"
            )
        else:
            results[result.name] = CreatedTopic(
                result.name, format_uuid(result.topic_id), result.num_partitions, result.replication_factor
            )
    return results


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    assignments = topic.assignments or {}
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if assignments else topic.partitions,
        replication_factor=-1 if assignments else topic.replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=partition, broker_ids=brokers)
            for partition, brokers in assignments.items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
            for name, value in (topic.configs or {}).items()
        ],
    )


async def delete_topics(cluster: Cluster, names: Sequence[str], timeout_ms: int) -> dict[str, Outcome]:
    request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms)
    response = await ask_controller(cluster, request, DeleteTopicsResponse, timeout_ms, _LAST_DELETE_BY_NAME)
    return {
        result.name or "": broker_error(result.error_code, result.error_message, what=f"topic {result.name!r}")
        if result.error_code
        else None
        for result in response.responses
    }


async def create_partitions(
    cluster: Cluster, totals: Mapping[str, int], *, validate_only: bool, timeout_ms: int
) -> dict[str, Outcome]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
            for name, count in totals.items()
        ],
        timeout_ms=timeout_ms,
        validate_only=validate_only,
    )
    response = await ask_controller(cluster, request, CreatePartitionsResponse, timeout_ms)
    return {
        result.name: broker_error(result.error_code, result.error_message, what=f"topic {result.name!r}")
        if result.error_code
        else None
        for result in response.results
    }


async def list_topics(cluster: Cluster, *, include_internal: bool, timeout_ms: int) -> list[TopicListing]:
    metadata = await _metadata(cluster, None, timeout_ms)
    return [
        TopicListing(
            topic.name,
            format_uuid(topic.topic_id),
            topic.is_internal,
            topic.partition_count,
            max((len(p.replicas) for p in topic.partitions.values()), default=0),
        )
        for _, topic in sorted(metadata.topics.items())
        if include_internal or not topic.is_internal
    ]


async def describe_topics(
    cluster: Cluster, names: Sequence[str], timeout_ms: int
) -> dict[str, TopicDescription | ClientError]:
    metadata = await _metadata(cluster, list(names), timeout_ms)
    return {name: _described(name, metadata.topics.get(name)) for name in names}


def _described(name: str, topic: TopicInfo | None) -> TopicDescription | ClientError:
    code = topic.error_code if topic is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic is None or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return broker_error(code, f"topic {name!r} does not exist")
    if code:
        return broker_error(code, what=f"topic {name!r}")
    return TopicDescription(name, format_uuid(topic.topic_id), topic.is_internal, list(topic.partitions.values()))


async def _metadata(cluster: Cluster, topics: list[str] | None, timeout_ms: int) -> ClusterMetadata:
    return await retry(lambda: cluster.fetch_metadata(topics), cluster.options, timeout_ms)


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int], timeout_ms: int
) -> dict[TopicPartition, int | ClientError]:
    results: dict[TopicPartition, int | ClientError] = {}
    by_leader = await retry(lambda: group_by_leader(cluster, before), cluster.options, timeout_ms)
    for node_id, partitions in by_leader.items():
        request = DeleteRecordsRequest(topics=_offsets_by_topic(partitions, before), timeout_ms=timeout_ms)
        response = await cluster.call(node_id, request, DeleteRecordsResponse)
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                results[tp] = broker_error(p.error_code, what=str(tp)) if p.error_code else p.low_watermark
    return results


def _offsets_by_topic(
    partitions: Iterable[TopicPartition], before: Mapping[TopicPartition, int]
) -> list[DeleteRecordsRequest.DeleteRecordsTopic]:
    topics: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = defaultdict(list)
    for tp in partitions:
        topics[tp.topic].append(
            DeleteRecordsRequest.DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp])
        )
    return [DeleteRecordsRequest.DeleteRecordsTopic(name=name, partitions=p) for name, p in topics.items()]
