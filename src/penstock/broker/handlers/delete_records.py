"""DeleteRecords (key 21), versions 0–2: moves log start offsets; −1 deletes up to the high watermark.

The new start is on stable storage before it is answered.
"""

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.log.directory import LogDirectory
from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.delete_records import DeleteRecordsRequest, DeleteRecordsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

TopicResult = DeleteRecordsResponse.DeleteRecordsTopicResult
Result = DeleteRecordsResponse.DeleteRecordsPartitionResult


async def handle(broker: "Broker", context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    touched: set[LogDirectory] = set()
    topics = []
    for topic in request.topics:
        allowed = broker.gate.allows_topic(context, Operation.DELETE, topic.name)
        results = []
        for asked in topic.partitions:
            if allowed:
                results.append(await _delete(broker, topic.name, asked.partition_index, asked.offset, touched))
            else:
                results.append(Result(asked.partition_index, -1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        topics.append(TopicResult(topic.name, results))
    for directory in touched:
        await asyncio.get_running_loop().run_in_executor(broker.pool, directory.write_log_start_offsets)
    return DeleteRecordsResponse(topics=topics)


async def _delete(broker: "Broker", topic: str, index: int, offset: int, touched: set[LogDirectory]) -> Result:
    partition = await broker.partitions.open(topic, index)
    if not isinstance(partition, Partition):
        return Result(index, -1, partition.code)
    if "delete" not in partition.log.config.cleanup_policy:
        return Result(index, -1, ErrorCode.POLICY_VIOLATION)
    refusal = partition.delete_records_before(offset)
    if refusal is not None:
        return Result(index, -1, refusal.code)
    touched.add(partition.log.directory)
    return Result(index, partition.log.log_start_offset, 0)
