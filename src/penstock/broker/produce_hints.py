"""The answer to a producer that came to the wrong broker: who leads instead, and where to find it. (KIP-951)

Rare, so it takes the generated codec; everything else is answered by `wire.produce_fast`.
"""

from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.broker.fetch_readers import WRONG_LEADER, told_endpoints, told_leader
from penstock.broker.frames import encode_response_frame
from penstock.wire.generated.produce import ProduceResponse
from penstock.wire.produce_fast import PartitionResult, TopicKey, encode_produce_frame

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_HINTS_FROM = 10
_IDS_FROM = 13
Results = list[tuple[TopicKey, list[PartitionResult]]]


def encode_answer(broker: "Broker", context: RequestContext, results: Results) -> bytes | bytearray:
    """The whole frame, with hints where they are due and the version has them."""
    wrong = any(answer[1] in WRONG_LEADER for _, answers in results for answer in answers)
    if not wrong or context.api_version < _HINTS_FROM:
        return encode_produce_frame(context.correlation_id, context.api_version, results)
    leaders: set[int] = set()
    topics = []
    for key, answers in results:
        rows = [_row(broker, key, answer, leaders) for answer in answers]
        if context.api_version >= _IDS_FROM:
            topics.append(ProduceResponse.TopicProduceResponse(topic_id=key, partition_responses=rows))  # type: ignore[arg-type]
        else:
            topics.append(ProduceResponse.TopicProduceResponse(name=key, partition_responses=rows))  # type: ignore[arg-type]
    endpoints = [ProduceResponse.NodeEndpoint(*node) for node in told_endpoints(broker, context, leaders)]
    return encode_response_frame(context, ProduceResponse(responses=topics, node_endpoints=endpoints))


def _row(
    broker: "Broker", topic: TopicKey, answer: PartitionResult, leaders: set[int]
) -> ProduceResponse.PartitionProduceResponse:
    index, error, base_offset, append_time_ms, start_offset, message = answer
    row = ProduceResponse.PartitionProduceResponse(
        index, error, base_offset, append_time_ms, start_offset, error_message=message
    )
    leader = told_leader(broker, topic, index, leaders) if error in WRONG_LEADER else None
    if leader is not None:
        row.current_leader = ProduceResponse.LeaderIdAndEpoch(*leader)
    return row
