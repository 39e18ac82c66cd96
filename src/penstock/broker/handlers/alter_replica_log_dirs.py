"""AlterReplicaLogDirs (key 34), versions 1–2: in which directory of this broker a replica shall be.

Nothing is moved: a replica stays in the directory it was created in. To name that one is agreed to, which is all that
Kafka's reassignment tool needs to go back to an assignment that it printed; to name another is INVALID_REQUEST.
"""

from typing import TYPE_CHECKING

from penstock.broker.context import RequestContext
from penstock.model.errors import ErrorCode
from penstock.security.verdicts import Operation
from penstock.wire.generated.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

Topic = AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult
Partition = AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult


async def handle(
    broker: "Broker", context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    is_allowed = broker.gate.allows_cluster(context, Operation.ALTER)
    results: dict[str, list[Partition]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            told = results.setdefault(topic.name, [])
            for index in topic.partitions:
                error = (
                    _decide(broker, wanted.path, topic.name, index)
                    if is_allowed
                    else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                )
                told.append(Partition(index, error))
    return AlterReplicaLogDirsResponse(results=[Topic(name, told) for name, told in results.items()])


def _decide(broker: "Broker", path: str, topic_name: str, index: int) -> ErrorCode:
    wanted = next((directory for directory in broker.logs.directories if directory.path == path), None)
    if wanted is None:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if wanted.failure is not None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    topic = broker.image.topic(topic_name)
    partition = topic.partition(index) if topic is not None else None
    if partition is None or broker.node_id not in partition.replicas:
        return ErrorCode.REPLICA_NOT_AVAILABLE
    log = broker.logs.get(topic_name, index)
    home = log.directory if log is not None else broker.logs.found_in(topic_name, index)
    return ErrorCode.NONE if (home or broker.directory_of(partition)) is wanted else ErrorCode.INVALID_REQUEST
