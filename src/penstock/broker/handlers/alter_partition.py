"""AlterPartition (key 56), version 3, controller listeners: a leader changes its in-sync set (KIP-497).

v3: the incarnation of each member (KIP-903). v2 is not served: it cannot say which incarnation of a follower joins.
"""

from typing import TYPE_CHECKING

from penstock.controller.isr import Member, WantedIsr, decide_alter_partition
from penstock.metadata.partition import PartitionImage
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.alter_partition import AlterPartitionRequest, AlterPartitionResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Answers = list[PartitionImage | ErrorCode] | Refusal
TopicData = AlterPartitionResponse.TopicData
PartitionData = AlterPartitionResponse.PartitionData


async def handle(
    broker: "Broker", context: "RequestContext", request: AlterPartitionRequest
) -> AlterPartitionResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    wanted = [
        WantedIsr(
            topic.topic_id,
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            tuple(Member(member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs),
            partition.leader_recovery_state,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    answers: Answers = await broker.controller.submit(
        lambda view: decide_alter_partition(view, request.broker_id, request.broker_epoch, wanted, broker.settings),
        unavailable=lambda refusal: refusal,
    )
    if isinstance(answers, Refusal):
        return AlterPartitionResponse(error_code=answers.code)
    rows: dict[bytes, list[PartitionData]] = {}
    for want, answer in zip(wanted, answers, strict=True):
        rows.setdefault(want.topic_id, []).append(_row(want.partition, answer))
    return AlterPartitionResponse(topics=[TopicData(topic_id, row) for topic_id, row in rows.items()])


def _row(number: int, answer: PartitionImage | ErrorCode) -> PartitionData:
    if isinstance(answer, ErrorCode):
        return PartitionData(partition_index=number, error_code=answer)
    return PartitionData(
        partition_index=number,
        leader_id=answer.leader,
        leader_epoch=answer.leader_epoch,
        isr=list(answer.isr),
        leader_recovery_state=answer.leader_recovery_state,
        partition_epoch=answer.partition_epoch,
    )
