"""Looking up offsets: the start, the end, or by time, from the leaders of the partitions."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, TopicError, broker_error, no_partition
from penstock.client.metadata import NO_LEADER
from penstock.client.retry import retry
from penstock.client.types import OffsetAndTimestamp, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.wire.generated.list_offsets import ListOffsetsRequest, ListOffsetsResponse

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, isolation_level: int = 0, timeout_ms: float = 30_000
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The first offset whose timestamp is at least the wanted one; offset −1 where there is none.

    The wanted timestamp may be `EARLIEST`, `LATEST` or `MAX_TIMESTAMP`. Partitions that failed are asked again
    until the time is over.
    """
    found: dict[TopicPartition, OffsetAndTimestamp] = {}

    async def attempt() -> dict[TopicPartition, OffsetAndTimestamp]:
        missing = {tp: timestamp for tp, timestamp in wanted.items() if tp not in found}
        by_leader = await group_by_leader(cluster, missing)
        results = await asyncio.gather(
            *(
                _ask(cluster, node_id, {tp: missing[tp] for tp in partitions}, isolation_level, found)
                for node_id, partitions in by_leader.items()
            ),
            return_exceptions=True,
        )
        if errors := _errors(results):
            cluster.request_refresh()
            raise errors[0]
        return found

    return await retry(attempt, cluster.options, timeout_ms)


async def list_known_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, timeout_ms: float
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """As `list_offsets`, of those partitions whose leaders answer within the time; the others are left out."""
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    if any(cluster.metadata.leader_of(*tp) == NO_LEADER for tp in wanted):
        cluster.interest.update(tp.topic for tp in wanted)
        await cluster.refresh()

    async def ask(tps: list[TopicPartition]) -> None:
        """Whoever leads them by now: one broker at first."""
        by_leader = _by_leader(cluster, [tp for tp in tps if tp not in found])
        leaderless = by_leader.pop(NO_LEADER, [])
        asking = [
            _ask(cluster, leader, {tp: wanted[tp] for tp in led}, READ_UNCOMMITTED, found)
            for leader, led in by_leader.items()
        ]
        results = await asyncio.gather(*asking, return_exceptions=True)  # none may find anything once this is over
        errors = _errors(results)
        if leaderless:
            errors.append(_no_leader(cluster, leaderless[0]))
        if errors:
            cluster.request_refresh()
            passing = (error for error in errors if isinstance(error, ClientError) and error.retriable)
            raise next(passing, errors[0])  # what is refused for good keeps nobody from asking for the others again

    by_leader = _by_leader(cluster, wanted)
    by_leader.pop(NO_LEADER, None)
    asking = [retry(partial(ask, tps), cluster.options, timeout_ms) for tps in by_leader.values()]
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await asyncio.gather(*asking, return_exceptions=True)
    except TimeoutError:
        pass
    return found


def _errors(results: Iterable[list[ClientError] | BaseException]) -> list[BaseException]:
    return [error for each in results for error in ([each] if isinstance(each, BaseException) else each)]


def _by_leader(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for tp in partitions:
        by_leader[cluster.metadata.leader_of(*tp)].append(tp)
    return by_leader


async def group_by_leader(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """Partitions by the broker that leads them; raises a retriable error where none is known."""
    wanted = list(partitions)
    if any(cluster.metadata.leader_of(*tp) == NO_LEADER for tp in wanted):
        cluster.interest.update(tp.topic for tp in wanted)
        await cluster.refresh()
    by_leader = _by_leader(cluster, wanted)
    if NO_LEADER in by_leader:
        raise _no_leader(cluster, by_leader[NO_LEADER][0])
    return by_leader


def _no_leader(cluster: Cluster, tp: TopicPartition) -> TopicError:
    topic = cluster.metadata.topics.get(tp.topic)
    if topic is None or not topic.partitions:
        return TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {tp.topic!r} does not exist")
    if tp.partition not in topic.partitions:
        return no_partition(tp.topic, topic.partition_count, tp.partition)
    return TopicError(ErrorCode.LEADER_NOT_AVAILABLE, what=str(tp))


async def _ask(
    cluster: Cluster,
    node_id: int,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int,
    found: dict[TopicPartition, OffsetAndTimestamp],
) -> list[ClientError]:
    """Answers why offsets of some are not among those found."""
    topics: dict[str, list[ListOffsetsRequest.ListOffsetsPartition]] = defaultdict(list)
    for (topic, partition), timestamp in wanted.items():
        topics[topic].append(ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp))
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=p) for name, p in topics.items()],
        timeout_ms=cluster.options.request_timeout_ms,
    )
    response = await cluster.call(node_id, request, ListOffsetsResponse)
    failures: list[ClientError] = []
    for answered in response.topics:
        for answer in answered.partitions:
            tp = TopicPartition(answered.name, answer.partition_index)
            if answer.error_code:
                failures.append(broker_error(answer.error_code, what=str(tp)))
            else:
                found[tp] = OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
    return failures
