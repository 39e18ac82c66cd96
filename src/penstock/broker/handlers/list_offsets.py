"""ListOffsets (key 2), versions 1–11: −1 latest, −2 earliest, −3 largest timestamp (KIP-734), −4 earliest local
(KIP-405), −5 latest tiered (KIP-1005), −6 earliest pending upload (KIP-1023); or the first record at or after a time.

Nothing is tiered yet: −4 answers as −2; −5 and −6 answer −1.
"""

import asyncio
from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.log.lookup import RecordPlace
from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.list_offsets import ListOffsetsRequest, ListOffsetsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED, _PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_READ_COMMITTED = 1
_EPOCHS_FROM = 4
_NOT_AVAILABLE_FROM = 5

Asked = ListOffsetsRequest.ListOffsetsPartition
Told = ListOffsetsResponse.ListOffsetsPartitionResponse


async def handle(broker: "Broker", context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    committed = request.isolation_level == _READ_COMMITTED
    topics = []
    for topic in request.topics:
        allowed = broker.gate.allows_topic(context, Operation.DESCRIBE, topic.name)
        told = []
        for asked in topic.partitions:
            if allowed:
                told.append(await _look_up(broker, topic.name, asked, committed))
                _fit_version(told[-1], context.api_version)
            else:
                told.append(Told(asked.partition_index, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(topic.name, told))
    return ListOffsetsResponse(topics=topics)


def _fit_version(told: Told, version: int) -> None:
    if version < _EPOCHS_FROM:
        told.leader_epoch = -1
    if version < _NOT_AVAILABLE_FROM and told.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
        told.error_code = ErrorCode.LEADER_NOT_AVAILABLE  # older clients do not know the other (KIP-207)


async def _look_up(broker: "Broker", topic: str, asked: Asked, committed: bool) -> Told:
    partition = await broker.partitions.open(topic, asked.partition_index)
    if not isinstance(partition, Partition):
        return Told(asked.partition_index, partition.code)
    error = partition.check_epoch(asked.current_leader_epoch)
    if error:
        return Told(asked.partition_index, error)
    log = partition.log
    epoch = partition.leader_epoch
    end_offset = log.last_stable_offset(partition.high_watermark) if committed else partition.high_watermark
    if asked.timestamp == _LATEST:
        if not partition.watermark_is_settled:  # an older leader may have told a later one (KIP-207)
            return Told(asked.partition_index, ErrorCode.OFFSET_NOT_AVAILABLE)
        return Told(asked.partition_index, 0, -1, end_offset, epoch)
    if asked.timestamp in (_EARLIEST, _EARLIEST_LOCAL):
        start = log.log_start_offset if asked.timestamp == _EARLIEST else log.local_log_start_offset
        return Told(
            asked.partition_index, 0, -1, start, log.leader_epochs.epoch_at(start) if start < end_offset else epoch
        )
    if asked.timestamp in (_LATEST_TIERED, _PENDING_UPLOAD):
        return Told(asked.partition_index, 0, -1, -1, -1)
    if asked.timestamp < 0 and asked.timestamp != _MAX_TIMESTAMP:
        return Told(asked.partition_index, ErrorCode.UNSUPPORTED_VERSION)
    place = await _find_in_pool(broker, partition, asked.timestamp)
    if place is None or place.offset >= end_offset:
        if not partition.watermark_is_settled:
            return Told(asked.partition_index, ErrorCode.OFFSET_NOT_AVAILABLE)
        return Told(asked.partition_index, 0, -1, -1, -1)
    return Told(asked.partition_index, 0, place.timestamp, place.offset, place.leader_epoch)


async def _find_in_pool(broker: "Broker", partition: Partition, timestamp: int) -> RecordPlace | None:
    loop = asyncio.get_running_loop()
    if timestamp == _MAX_TIMESTAMP:
        return await loop.run_in_executor(broker.pool, partition.log.max_timestamp_offset)
    return await loop.run_in_executor(broker.pool, partition.log.find_by_timestamp, timestamp)
