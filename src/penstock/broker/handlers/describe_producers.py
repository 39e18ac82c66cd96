"""DescribeProducers (key 61), version 0 (KIP-664): what a replica of a partition knows of its producers."""

from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode, Refusal
from penstock.replication.partition import Partition
from penstock.security.verdicts import Operation
from penstock.wire.generated.describe_producers import DescribeProducersRequest, DescribeProducersResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

TopicResponse = DescribeProducersResponse.TopicResponse
PartitionResponse = DescribeProducersResponse.PartitionResponse
ProducerState = DescribeProducersResponse.ProducerState

_FORBIDDEN = Refusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorised to read this topic")


async def handle(
    broker: "Broker", context: "RequestContext", request: DescribeProducersRequest
) -> DescribeProducersResponse:
    topics = []
    for topic in request.topics:
        allowed = broker.gate.allows_topic(context, Operation.READ, topic.name)
        topics.append(
            TopicResponse(
                topic.name,
                [
                    _describe(index, await _find(broker, topic.name, index) if allowed else _FORBIDDEN)
                    for index in topic.partition_indexes
                ],
            )
        )
    return DescribeProducersResponse(topics=topics)


async def _find(broker: "Broker", topic: str, index: int) -> Partition | Refusal:
    """Followers answer too: who looks for hanging transactions asks every replica on one broker."""
    found = broker.partitions.find_replica(topic, index)
    return found if isinstance(found, Partition) else await broker.partitions.open(topic, index)


def _describe(index: int, partition: Partition | Refusal) -> PartitionResponse:
    if isinstance(partition, Refusal):
        return PartitionResponse(index, partition.code, partition.message)
    return PartitionResponse(
        index,
        active_producers=[
            ProducerState(
                producer_id,
                entry.producer_epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for producer_id, entry in partition.log.producers.items()
        ],
    )
