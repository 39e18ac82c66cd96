"""DeleteRecords (key 21), versions 0–2: moves log start offsets; −1 deletes up to the high watermark.

The new start is on stable storage before it is answered, and every follower that is alive has followed it: then the
low watermark that is answered holds for all of them.
"""

import asyncio
from functools import partial
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
    touched: dict[LogDirectory, list[Result]] = {}
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
    for directory, moved in touched.items():
        await _make_durable(broker, directory, moved)
    deadline = asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000
    for topic_result in topics:
        for result in topic_result.partitions:
            if not result.error_code:
                await _wait_for_followers(broker, topic_result.name, result, deadline)
    return DeleteRecordsResponse(topics=topics)


async def _make_durable(broker: "Broker", directory: LogDirectory, moved: list[Result]) -> None:
    """What could not be written down is not acknowledged; the starts stay where they were moved to."""
    try:
        await asyncio.get_running_loop().run_in_executor(broker.pool, directory.write_log_start_offsets)
    except OSError as error:
        directory.write_failed(error)
        for result in moved:
            result.low_watermark, result.error_code = -1, ErrorCode.KAFKA_STORAGE_ERROR


async def _wait_for_followers(broker: "Broker", topic: str, result: Result, deadline: float) -> None:
    """The low watermark, once it is where the leader's log starts; an error when it does not get there in time."""
    partition = broker.partitions.find(topic, result.partition_index)
    if not isinstance(partition, Partition):
        result.low_watermark, result.error_code = -1, partition.code
        return
    if partition.leader_state is None:
        return
    wanted = result.low_watermark
    watcher = _Waiting()
    partition.watch_end(watcher)
    try:
        async with asyncio.timeout_at(deadline):
            while partition.low_watermark(partial(_counts, broker)) < wanted and partition.is_leader:
                await watcher.news()
    except TimeoutError:
        result.low_watermark, result.error_code = -1, ErrorCode.REQUEST_TIMED_OUT
        return
    finally:
        partition.unwatch(watcher)
    if not partition.is_leader:
        result.low_watermark, result.error_code = -1, ErrorCode.NOT_LEADER_OR_FOLLOWER


def _counts(broker: "Broker", replica: int) -> bool:
    known = broker.image.brokers.get(replica)
    return known is not None and not known.fenced


class _Waiting:
    """Woken when the partition moves."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def wake(self) -> None:
        self._event.set()

    async def news(self) -> None:
        await self._event.wait()
        self._event.clear()


async def _delete(
    broker: "Broker", topic: str, index: int, offset: int, touched: dict[LogDirectory, list[Result]]
) -> Result:
    partition = await broker.partitions.open(topic, index)
    if not isinstance(partition, Partition):
        return Result(index, -1, partition.code)
    if "delete" not in partition.log.config.cleanup_policy:
        return Result(index, -1, ErrorCode.POLICY_VIOLATION)
    refusal = partition.delete_records_before(offset)
    if refusal is not None:
        return Result(index, -1, refusal.code)
    result = Result(index, partition.log.log_start_offset, 0)
    touched.setdefault(partition.log.directory, []).append(result)
    return result
