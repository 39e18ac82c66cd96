"""AssignReplicasToDirs (key 73), version 0, controller listeners: where a broker's replicas really are (KIP-858)."""

from typing import TYPE_CHECKING

from penstock.controller.directories import AssignedReplica, decide_assign_replicas_to_dirs
from penstock.model.errors import ErrorCode, Refusal
from penstock.security.verdicts import Operation
from penstock.wire.generated.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

Directory = AssignReplicasToDirsResponse.DirectoryData
Topic = AssignReplicasToDirsResponse.TopicData
Row = AssignReplicasToDirsResponse.PartitionData


async def handle(
    broker: "Broker", context: "RequestContext", request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    if not broker.gate.allows_cluster(context, Operation.CLUSTER_ACTION):
        return AssignReplicasToDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    replicas = [
        AssignedReplica(directory.id, topic.topic_id, partition.partition_index, partition.partition_epoch)
        for directory in request.directories
        for topic in directory.topics
        for partition in topic.partitions
    ]
    answers: list[ErrorCode] | Refusal = await broker.controller.submit(
        lambda view: decide_assign_replicas_to_dirs(
            view.image, request.broker_id, request.broker_epoch, replicas, broker.settings
        ),
        unavailable=lambda refusal: refusal,
    )
    if isinstance(answers, Refusal):
        return AssignReplicasToDirsResponse(error_code=answers.code)
    rows: dict[bytes, dict[bytes, list[Row]]] = {}
    for replica, code in zip(replicas, answers, strict=True):
        rows.setdefault(replica.directory, {}).setdefault(replica.topic_id, []).append(Row(replica.partition, code))
    return AssignReplicasToDirsResponse(
        directories=[
            Directory(directory, [Topic(topic_id, row) for topic_id, row in topics.items()])
            for directory, topics in rows.items()
        ]
    )
