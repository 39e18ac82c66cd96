"""DescribeLogDirs (key 35), versions 1–5: sizes of partitions per log directory, and of the disks (KIP-827).

A partition that has no files yet has size 0 and is told in the directory it was assigned to. There are no future
replicas and no cordoned directories.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.log.directory import LogDirectory
from penstock.metadata.image import TopicImage
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Result = DescribeLogDirsResponse.DescribeLogDirsResult
Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
Partition = DescribeLogDirsResponse.DescribeLogDirsPartition

_PARTITIONS_PER_TURN = 1_000


async def handle(
    broker: "Broker", context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    if not broker.gate.allows_cluster(context, Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    found: dict[LogDirectory, dict[str, list[Partition]]] = {directory: {} for directory in broker.logs.directories}
    for number, (topic, index) in enumerate(_wanted(broker, request)):
        directory, size = await _home_and_size(broker, topic, index)
        found[directory].setdefault(topic.name, []).append(Partition(index, size, 0, False))
        if number % _PARTITIONS_PER_TURN == 0:
            await asyncio.sleep(0)
    results = [await _describe(broker, directory, topics) for directory, topics in found.items()]
    return DescribeLogDirsResponse(results=results)


def _wanted(broker: "Broker", request: DescribeLogDirsRequest) -> Iterator[tuple[TopicImage, int]]:
    image = broker.image
    if request.topics is None:
        for topic, index, _ in image.partitions_of(broker.node_id):
            yield topic, index
        return
    asked: dict[str, dict[int, None]] = defaultdict(dict)
    for entry in request.topics:
        asked[entry.topic].update(dict.fromkeys(entry.partitions))
    for name, indexes in asked.items():
        known = image.topic(name)
        if known is not None:
            yield from ((known, index) for index in indexes if known.partition(index) is not None)


async def _home_and_size(broker: "Broker", topic: TopicImage, index: int) -> tuple[LogDirectory, int]:
    """Only logs that have files are opened to be looked at."""
    log = broker.logs.get(topic.name, index)
    if log is None and not broker.logs.has_files(topic.name, index):
        return broker.directory_of(topic.partitions[index]), 0
    await broker.partitions.open(topic.name, index)
    log = broker.logs.get(topic.name, index)
    if log is None:
        return broker.directory_of(topic.partitions[index]), 0
    return log.directory, log.size_bytes if log.is_loaded else 0


async def _describe(broker: "Broker", directory: LogDirectory, topics: dict[str, list[Partition]]) -> Result:
    if directory.failure is not None:
        return Result(ErrorCode.KAFKA_STORAGE_ERROR, directory.path)
    usage = await asyncio.get_running_loop().run_in_executor(broker.pool, broker.logs.disk.usage, directory.path)
    told = [Topic(name, partitions) for name, partitions in topics.items()]
    return Result(0, directory.path, told, usage.total_bytes, usage.free_bytes)
