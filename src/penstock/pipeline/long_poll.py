"""Waiting at the end of partitions until a record comes, as consumers do: a fetch that the broker parks."""

import asyncio
from collections import defaultdict
from typing import Any

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError
from penstock.client.offsets import group_by_leader
from penstock.client.types import TopicPartition
from penstock.model.ids import ZERO_UUID
from penstock.pipeline.offsets import Offsets
from penstock.wire.generated.fetch import FetchRequest, FetchResponse

_LAST_VERSION_BY_NAME = 12
_SMALLEST_BYTES = 1  # a broker sends a whole batch at least, and it is thrown away


async def wait_for_records(cluster: Cluster, ends: Offsets, isolation_level: int, wait_ms: int) -> None:
    """Returns when a partition may have grown beyond its end, when the time is over, or when something is amiss."""
    if not ends:
        await asyncio.sleep(wait_ms / 1000)
        return
    try:
        by_leader = await group_by_leader(cluster, ends)
    except ClientError:
        return
    asking = [
        asyncio.create_task(_park(cluster, leader, {tp: ends[tp] for tp in partitions}, isolation_level, wait_ms))
        for leader, partitions in by_leader.items()
    ]
    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)


async def _park(
    cluster: Cluster, leader: int, ends: dict[TopicPartition, int], isolation_level: int, wait_ms: int
) -> None:
    topics: dict[str, list[Any]] = defaultdict(list)
    for (topic, partition), offset in ends.items():
        topics[topic].append(
            FetchRequest.FetchPartition(
                partition=partition, fetch_offset=offset, partition_max_bytes=_SMALLEST_BYTES, current_leader_epoch=-1
            )
        )
    known = cluster.metadata.topics
    ids = {name: known[name].topic_id for name in topics}
    request = FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=_SMALLEST_BYTES,
        isolation_level=isolation_level,
        topics=[FetchRequest.FetchTopic(topic=n, topic_id=ids[n], partitions=p) for n, p in topics.items()],
    )
    max_version = _LAST_VERSION_BY_NAME if ZERO_UUID in ids.values() else None
    timeout_ms = cluster.options.request_timeout_ms + wait_ms
    try:
        await cluster.call(
            leader, request, FetchResponse, lane="data", timeout_ms=timeout_ms, max_version=max_version
        )
    except ClientError:
        cluster.request_refresh()
