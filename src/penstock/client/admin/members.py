"""Admin calls about the members of a cluster: where replicas live, who leads, who belongs to it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from penstock.client.admin.asking import ask_controller
from penstock.client.admin.descriptions import Outcome, QuorumDescription, QuorumReplica, Reassignment
from penstock.client.cluster import Cluster
from penstock.client.errors import broker_error, raise_for
from penstock.client.retry import retry
from penstock.client.types import TopicPartition
from penstock.model.errors import ErrorCode
from penstock.model.ids import format_uuid, parse_uuid
from penstock.wire.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from penstock.wire.generated.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from penstock.wire.generated.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.wire.generated.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse
from penstock.wire.generated.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from penstock.wire.generated.unregister_controller import UnregisterControllerRequest, UnregisterControllerResponse

_PREFERRED, _UNCLEAN = 0, 1


async def alter_reassignments(
    cluster: Cluster,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    timeout_ms: int,
    *,
    allow_factor_change: bool,
) -> dict[TopicPartition, Outcome]:
    topic_type = AlterPartitionReassignmentsRequest.ReassignableTopic
    topics: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = defaultdict(list)
    for (topic, number), replicas in targets.items():
        wanted = list(replicas) if replicas is not None else None
        topics[topic].append(AlterPartitionReassignmentsRequest.ReassignablePartition(number, wanted))
    request = AlterPartitionReassignmentsRequest(
        timeout_ms, allow_factor_change, [topic_type(name, partitions) for name, partitions in topics.items()]
    )
    response = await ask_controller(cluster, request, AlterPartitionReassignmentsResponse, timeout_ms)
    raise_for(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, p.partition_index): _outcome(p.error_code, p.error_message)
        for topic in response.responses
        for p in topic.partitions
    }


async def list_reassignments(cluster: Cluster, timeout_ms: int) -> dict[TopicPartition, Reassignment]:
    request = ListPartitionReassignmentsRequest(timeout_ms=timeout_ms)
    response = await ask_controller(cluster, request, ListPartitionReassignmentsResponse, timeout_ms)
    raise_for(response.error_code, response.error_message)
    return {
        TopicPartition(topic.name, p.partition_index): Reassignment(
            p.replicas, p.adding_replicas, p.removing_replicas
        )
        for topic in response.topics
        for p in topic.partitions
    }


async def elect_leaders(
    cluster: Cluster, partitions: Iterable[TopicPartition] | None, *, unclean: bool, timeout_ms: int
) -> dict[TopicPartition, Outcome]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, number in partitions or ():
        topics[topic].append(number)
    rows = [ElectLeadersRequest.TopicPartitions(name, numbers) for name, numbers in topics.items()]
    request = ElectLeadersRequest(
        _UNCLEAN if unclean else _PREFERRED, rows if partitions is not None else None, timeout_ms
    )
    response = await ask_controller(cluster, request, ElectLeadersResponse, timeout_ms)
    raise_for(response.error_code)
    return {
        TopicPartition(topic.topic, p.partition_id): None
        if p.error_code == ErrorCode.ELECTION_NOT_NEEDED
        else _outcome(p.error_code, p.error_message)
        for topic in response.replica_election_results
        for p in topic.partition_result
    }


async def describe_quorum(cluster: Cluster, timeout_ms: int) -> QuorumDescription:
    """Asks whoever is connected: brokers find the controller, and the one that was it last may hang."""
    kind = DescribeQuorumRequest
    topics = [kind.TopicData("__cluster_metadata", [kind.PartitionData(0)])]

    async def attempt() -> DescribeQuorumResponse.PartitionData:
        response = await cluster.call_any(kind(topics), DescribeQuorumResponse, timeout_ms=timeout_ms)
        raise_for(response.error_code, response.error_message)
        found = response.topics[0].partitions[0]
        raise_for(found.error_code, found.error_message)
        return found

    found = await retry(attempt, cluster.options, timeout_ms)
    return QuorumDescription(
        found.leader_id,
        found.leader_epoch,
        found.high_watermark,
        [_replica(state) for state in found.current_voters],
        [_replica(state) for state in found.observers],
    )


def _replica(state: DescribeQuorumResponse.ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        state.replica_id,
        format_uuid(state.replica_directory_id),
        state.log_end_offset,
        state.last_fetch_timestamp,
        state.last_caught_up_timestamp,
    )


async def unregister_broker(cluster: Cluster, broker_id: int, timeout_ms: int) -> None:
    response = await ask_controller(cluster, UnregisterBrokerRequest(broker_id), UnregisterBrokerResponse, timeout_ms)
    raise_for(response.error_code, response.error_message, what=f"broker {broker_id}")


async def unregister_controller(cluster: Cluster, controller_id: int, timeout_ms: int) -> bool:
    request = UnregisterControllerRequest(controller_id)
    response = await ask_controller(cluster, request, UnregisterControllerResponse, timeout_ms)
    if response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED:
        return False
    raise_for(response.error_code, response.error_message, what=f"controller {controller_id}")
    return True


async def remove_voter(cluster: Cluster, node_id: int, directory_id: str, timeout_ms: int) -> None:
    request = RemoveRaftVoterRequest(None, node_id, parse_uuid(directory_id))
    response = await ask_controller(cluster, request, RemoveRaftVoterResponse, timeout_ms)
    raise_for(response.error_code, response.error_message, what=f"voter {node_id}")


def _outcome(code: int, message: str | None) -> Outcome:
    return broker_error(code, message) if code else None
