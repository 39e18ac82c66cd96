"""ListPartitionReassignments (key 46), version 0: partitions on the move, as the active controller has them."""

from typing import TYPE_CHECKING

from penstock.controller.decision import Decision
from penstock.controller.reassignment import OngoingReassignment, ongoing_reassignments
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Rows = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Row = ListPartitionReassignmentsResponse.OngoingPartitionReassignment


async def handle(
    broker: "Broker", context: "RequestContext", request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    if not broker.gate.allows_cluster(context, Operation.DESCRIBE):
        return ListPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    named = request.topics
    wanted = None
    if named is not None:
        wanted = [(topic.name, number) for topic in named for number in topic.partition_indexes]
    found: list[OngoingReassignment] | Refusal = await broker.controller.submit(
        lambda view: Decision([], list(ongoing_reassignments(view.image, wanted))),
        unavailable=lambda refusal: refusal,
    )
    if isinstance(found, Refusal):
        return ListPartitionReassignmentsResponse(error_code=found.code, error_message=found.message)
    rows: dict[str, list[Row]] = {}
    for topic, number, state in found:
        row = Row(number, list(state.replicas), list(state.adding_replicas), list(state.removing_replicas))
        rows.setdefault(topic, []).append(row)
    return ListPartitionReassignmentsResponse(
        error_message=None, topics=[Rows(topic, row) for topic, row in rows.items()]
    )
