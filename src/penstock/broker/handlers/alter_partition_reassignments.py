"""AlterPartitionReassignments (key 45), versions 0–1 (KIP-455). v1: forbid a change of the replication factor.

Replicas null cancels. The answer means that the reassignment has begun; ListPartitionReassignments shows its end.
"""

from typing import TYPE_CHECKING

from penstock.controller.reassignment import Reassignment, decide_alter_reassignments
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Rows = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
Row = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse


async def handle(
    broker: "Broker", context: "RequestContext", request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    if not broker.gate.allows_cluster(context, Operation.ALTER):
        return AlterPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = [
        Reassignment(topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas))
        for topic in request.topics
        for each in topic.partitions
    ]
    answers: list[Refusal | None] = await broker.controller.submit(
        lambda view: decide_alter_reassignments(
            view.image, wanted, broker.settings, allow_factor_change=request.allow_replication_factor_change
        ),
        unavailable=lambda refusal: [refusal] * len(wanted),
    )
    rows: dict[str, list[Row]] = {}
    for want, refusal in zip(wanted, answers, strict=True):
        code, message = (refusal.code, refusal.message) if refusal is not None else (ErrorCode.NONE, None)
        rows.setdefault(want.topic, []).append(Row(want.partition, code, message))
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[Rows(topic, row) for topic, row in rows.items()],
    )
