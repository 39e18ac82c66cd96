"""ElectLeaders (key 43), versions 0–2: preferred leaders, or leaders at any price (KIP-460).

v0 knows preferred elections only. A list that is null means every partition that needs one.
"""

from typing import TYPE_CHECKING

from penstock.controller.elections import ElectionResult, decide_elect_leaders
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ids import TopicPartition
from penstock.security.verdicts import Operation
from penstock.wire.generated.elect_leaders import ElectLeadersRequest, ElectLeadersResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Rows = ElectLeadersResponse.ReplicaElectionResult
Row = ElectLeadersResponse.PartitionResult


async def handle(broker: "Broker", context: "RequestContext", request: ElectLeadersRequest) -> ElectLeadersResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return _refused(context, request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    named = request.topic_partitions
    wanted = None
    if named is not None:
        wanted = [TopicPartition(topic.topic, number) for topic in named for number in topic.partitions]
    answer: list[ElectionResult] | Refusal = await broker.controller.submit(
        lambda view: decide_elect_leaders(view.image, request.election_type, wanted, broker.settings),
        unavailable=lambda refusal: refusal,
    )
    if isinstance(answer, Refusal):
        return _refused(context, request, answer.code)
    rows: dict[str, list[Row]] = {}
    for which, refusal in answer:
        code, message = (refusal.code, refusal.message) if refusal is not None else (ErrorCode.NONE, None)
        rows.setdefault(which.topic, []).append(Row(which.partition, code, message))
    return ElectLeadersResponse(replica_election_results=[Rows(topic, row) for topic, row in rows.items()])


def _refused(context: "RequestContext", request: ElectLeadersRequest, code: ErrorCode) -> ElectLeadersResponse:
    """As a whole; v0 can say so of single partitions only."""
    if context.api_version > 0:
        return ElectLeadersResponse(error_code=code)
    named = request.topic_partitions or ()
    return ElectLeadersResponse(
        replica_election_results=[
            Rows(topic.topic, [Row(number, code, None) for number in topic.partitions]) for topic in named
        ]
    )
