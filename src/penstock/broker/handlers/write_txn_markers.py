"""WriteTxnMarkers (key 27), versions 1–2: v2 says the transaction version, by which a marker that comes a second time
is known (KIP-890).

Sent by the transaction coordinators of other brokers, and by administrators that end a transaction nobody ends.
"""

import asyncio
from typing import TYPE_CHECKING

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.markers import EndMarker
from penstock.security.verdicts import Operation
from penstock.wire.generated.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Asked = WriteTxnMarkersRequest.WritableTxnMarker
Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
TopicResult = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
PartitionResult = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult


async def handle(
    broker: "Broker", context: "RequestContext", request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    allowed = broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION)
    results = await asyncio.gather(*(_write(broker, asked, allowed) for asked in request.markers))
    return WriteTxnMarkersResponse(markers=list(results))


async def _write(broker: "Broker", asked: Asked, allowed: bool) -> Result:
    marker = EndMarker(
        asked.producer_id,
        asked.producer_epoch,
        asked.coordinator_epoch,
        asked.transaction_result,
        asked.transaction_version,
    )
    wanted = [TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
    if allowed:
        errors = await asyncio.gather(*(_write_one(broker, marker, where) for where in wanted))
    else:
        errors = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(wanted)
    outcome = dict(zip(wanted, errors, strict=True))
    return Result(
        asked.producer_id,
        [
            TopicResult(
                topic.name,
                [
                    PartitionResult(index, outcome[TopicPartition(topic.name, index)])
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics
        ],
    )


async def _write_one(broker: "Broker", marker: EndMarker, where: TopicPartition) -> ErrorCode:
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    broker.markers.write(marker, where, lambda error: None if outcome.done() else outcome.set_result(error))
    return await outcome
