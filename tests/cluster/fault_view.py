"""How a cluster stands, as a member tells it by Kafka's own requests, and how its leaderships are laid out."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.wire.generated.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest
from penstock.wire.generated.elect_leaders import ElectLeadersRequest
from penstock.wire.generated.metadata import MetadataRequest
from penstock.wire.struct import ApiMessage
from tests.cluster.processes import ClusterProcesses
from tests.conformance.raw import ConnectionClosed, RawConnection
from tests.waiting import eventually

ASK_S = 5.0
HEAL_S = 60.0


class PartitionView(NamedTuple):
    leader: int
    replicas: list[int]
    in_sync: list[int]


class ClusterView:
    """Asks a member that runs and is not in `silent`."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.silent: set[int] = set()

    def ask(self, request: ApiMessage, version: int, node_id: int | None = None) -> Any:
        """The answer of that member, or of any; None when it gave none."""
        for each, member in self.cluster.members.items():
            if not member.is_running or each in self.silent or node_id not in (None, each):
                continue
            try:
                connection = RawConnection(member.bootstrap, ASK_S)
                try:
                    return connection.call(request, version)
                finally:
                    connection.close()
            except (OSError, ConnectionClosed):
                continue
        return None

    def controller(self) -> int:
        return eventually(self._controller, 30.0, interval=0.05, message="no controller is known") - 1

    def _controller(self) -> int:
        topic = DescribeQuorumRequest.TopicData
        partition = DescribeQuorumRequest.PartitionData(0)
        answer = self.ask(DescribeQuorumRequest([topic("__cluster_metadata", [partition])]), 1)
        if answer is None or answer.error_code or not answer.topics:
            return 0
        return int(answer.topics[0].partitions[0].leader_id) + 1

    def partitions(self, topic: str, node_id: int | None = None) -> dict[int, PartitionView]:
        """Empty when nobody tells."""
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = self.ask(MetadataRequest(wanted, allow_auto_topic_creation=False), 12, node_id)
        if answer is None or answer.topics[0].error_code:
            return {}
        return {
            p.partition_index: PartitionView(p.leader_id, list(p.replica_nodes), list(p.isr_nodes))
            for p in answer.topics[0].partitions
        }

    def leaders(self, topic: str) -> dict[int, int]:
        found = eventually(lambda: self.partitions(topic), 30.0, interval=0.05)
        return {number: partition.leader for number, partition in found.items()}

    def is_whole(self, topic: str) -> bool:
        """Every member that runs sees a leader and all replicas in sync, in every partition."""
        for node_id in self.cluster.members:
            if node_id in self.silent or not self.cluster.members[node_id].is_running:
                continue
            partitions = self.partitions(topic, node_id)
            if not partitions:
                return False
            for partition in partitions.values():
                if partition.leader < 0 or set(partition.in_sync) != set(partition.replicas):
                    return False
        return True

    def wait_whole(self, *topics: str) -> None:
        for topic in topics:
            eventually(
                lambda name=topic: self.is_whole(name),  # type: ignore[misc]
                HEAL_S,
                interval=0.1,
                message=f"{topic} does not heal: {self.partitions(topic)}",
            )

    def lead(self, topic: str, replicas: Mapping[int, list[int]]) -> None:
        """The first of each list leads that partition; the sets of replicas stay what they are."""
        request = AlterPartitionReassignmentsRequest
        parts = [request.ReassignablePartition(p, list(order)) for p, order in replicas.items()]
        elect = ElectLeadersRequest
        election = elect(0, [elect.TopicPartitions(topic, list(replicas))], 10_000)

        def done() -> bool:
            self.ask(request(topics=[request.ReassignableTopic(topic, parts)]), 0)
            self.ask(election, 2)
            now = self.partitions(topic)
            return all(p in now and now[p].leader == order[0] for p, order in replicas.items())

        eventually(done, 30.0, interval=0.1, message=f"leaderships do not move: {self.partitions(topic)}")

    def spread(self, topic: str, partitions: int, leaders: Iterable[int]) -> None:
        """These members lead in turn."""
        leading, nodes = list(leaders), list(self.cluster.members)
        orders = {}
        for partition in range(partitions):
            first = leading[partition % len(leading)]
            orders[partition] = [first, *(node for node in nodes if node != first)]
        self.lead(topic, orders)
