"""OffsetForLeaderEpoch (key 23), versions 2–4: where an epoch ended, so that readers notice a truncated log."""

from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.replication.partition import Partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Asked = OffsetForLeaderEpochRequest.OffsetForLeaderPartition
Told = OffsetForLeaderEpochResponse.EpochEndOffset


async def handle(
    broker: "Broker", context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    topics = []
    for topic in request.topics:
        allowed = broker.gate.allows_topic(context, Operation.DESCRIBE, topic.topic)
        told = []
        for asked in topic.partitions:
            if allowed:
                told.append(await _end_offset(broker, topic.topic, asked))
            else:
                told.append(Told(ErrorCode.TOPIC_AUTHORIZATION_FAILED, asked.partition))
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic.topic, told))
    return OffsetForLeaderEpochResponse(topics=topics)


async def _end_offset(broker: "Broker", topic: str, asked: Asked) -> Told:
    partition = await broker.partitions.open(topic, asked.partition)
    if not isinstance(partition, Partition):
        return Told(partition.code, asked.partition)
    error = partition.check_epoch(asked.current_leader_epoch)
    if error:
        return Told(error, asked.partition)
    # The current epoch ends where the log does, even before it has a record of its own.
    if asked.leader_epoch == partition.leader_epoch:
        return Told(0, asked.partition, asked.leader_epoch, partition.log.end_offset)
    epoch, end_offset = partition.log.epoch_end_offset(asked.leader_epoch)
    return Told(0, asked.partition, epoch, end_offset)
