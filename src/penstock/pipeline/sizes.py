"""How large the records of partitions are on average, from what the brokers say lies on their disks."""

import asyncio
from collections.abc import Collection

from penstock.client.cluster import Cluster
from penstock.client.errors import raise_for
from penstock.client.offsets import list_offsets
from penstock.client.types import EARLIEST, LATEST, TopicPartition
from penstock.wire.generated.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse


async def bytes_per_offset(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, float]:
    """Bytes on disk, compressed as they are, per offset between the partition's ends."""
    wanted = set(partitions)
    answers = await asyncio.gather(
        *(
            cluster.call(node_id, DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
            for node_id in cluster.metadata.brokers
        )
    )
    sizes: dict[TopicPartition, int] = {}
    for answer in answers:
        raise_for(answer.error_code, what="sizes of partitions, for maxBytesPerTrigger")
        for result in answer.results:
            for topic in result.topics:
                for part in topic.partitions:
                    tp = TopicPartition(topic.name, part.partition_index)
                    if tp in wanted:
                        sizes[tp] = max(sizes.get(tp, 0), part.partition_size)
    starts = await list_offsets(cluster, dict.fromkeys(sizes, EARLIEST))
    ends = await list_offsets(cluster, dict.fromkeys(sizes, LATEST))
    return {tp: size / max(ends[tp].offset - starts[tp].offset, 1) for tp, size in sizes.items()}
