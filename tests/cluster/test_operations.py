"""What operators do to a running cluster, under traffic of two libraries with their default timeouts: no delivery
fails, nothing is lost, groups go on.
"""

import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.cli.members import Member
from penstock.client.sync import Admin
from penstock.model.errors import ErrorCode
from penstock.model.ids import ZERO_UUID
from penstock.net.free_ports import free_ports
from penstock.testing import Cluster
from penstock.wire.generated.describe_producers import DescribeProducersRequest
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from tests.cluster.fault_rounds import SETTINGS, TOPIC, FaultRounds
from tests.cluster.processes import ClusterProcesses, MemberProcess
from tests.conformance.raw import RawConnection

FOURTH = 4


def command(cluster: ClusterProcesses, *words: str) -> str:
    line = [sys.executable, "-m", "penstock", "cluster", *words, "--bootstrap", cluster.bootstrap]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def add_broker(cluster: ClusterProcesses, node_id: int) -> None:
    """One that does not vote."""
    sibling = cluster.members[1].member.config_file
    [port] = free_ports(1)
    values = tomllib.loads(sibling.read_text())
    values |= {
        "node.id": node_id,
        "process.roles": ["broker"],
        "listeners": [f"PLAINTEXT://127.0.0.1:{port}"],
        "log.dirs": [str(sibling.parent / f"broker-{node_id}")],
    }
    file = sibling.with_name(f"broker-{node_id}.toml")
    file.write_text("".join(f'"{name}" = {json.dumps(value)}\n' for name, value in values.items()))
    cluster.members[node_id] = MemberProcess(Member(node_id, port, file))
    cluster.start([node_id])


def replicas_of(rounds: FaultRounds, node_id: int) -> int:
    return sum(node_id in partition.replicas for partition in rounds.view.partitions(TOPIC).values())


def a_broker_joins(rounds: FaultRounds) -> None:
    add_broker(rounds.cluster, FOURTH)
    command(rounds.cluster, "balance")
    rows = {row["id"]: row for row in json.loads(command(rounds.cluster, "describe", "--output", "json"))["brokers"]}
    print({node_id: (row["replicas"], row["leads"]) for node_id, row in rows.items()})
    assert rows[FOURTH]["replicas"] >= sum(row["replicas"] for row in rows.values()) // 4 - 1
    assert rows[FOURTH]["leads"] >= sum(row["leads"] for row in rows.values()) // 4 - 1


def a_dead_broker_is_replaced(rounds: FaultRounds) -> None:
    """By an empty disk under the same id."""
    controller = rounds.view.controller()
    victim = next(node_id for node_id in (1, 2, 3) if node_id != controller)
    member = rounds.cluster.members[victim]
    member.kill()
    shutil.rmtree(member.member.config_file.parent / member.member.name)
    rounds.go_on()
    rounds.cluster.start([victim])


def all_are_restarted(rounds: FaultRounds) -> None:
    for node_id in rounds.cluster.members:
        rounds.cluster.restart(node_id)
        rounds.heal()


def a_broker_leaves(rounds: FaultRounds) -> None:
    command(rounds.cluster, "drain", str(FOURTH))
    assert replicas_of(rounds, FOURTH) == 0
    assert rounds.cluster.members[FOURTH].stop() == 0
    command(rounds.cluster, "remove", str(FOURTH))
    del rounds.cluster.members[FOURTH]


OPERATIONS: list[Callable[[FaultRounds], None]] = [
    a_broker_joins,
    a_dead_broker_is_replaced,
    all_are_restarted,
    a_broker_leaves,
]


@pytest.mark.figures
def test_operations_under_traffic(tmp_path: Path) -> None:
    with (
        ClusterProcesses(tmp_path, 3, SETTINGS) as cluster,
        FaultRounds(cluster, tmp_path, default_timeouts=True) as rounds,
    ):
        rounds.heal()
        for operation in OPERATIONS:
            begun = time.monotonic()
            operation(rounds)
            rounds.heal()
            longest_s = max(max(times.values()) for times in rounds.go_on(begun).values())
            words = operation.__name__.replace("_", " ")
            print(
                f"{words}: {time.monotonic() - begun:.1f} s; longest time without acknowledgement {longest_s:.2f} s"
            )
        print(rounds.finish())


def described_quorum(cluster: Cluster, node_id: int, version: int) -> DescribeQuorumResponse:
    kind = DescribeQuorumRequest
    with RawConnection(cluster.brokers[node_id].bootstrap) as connection:
        request = kind([kind.TopicData("__cluster_metadata", [kind.PartitionData(0)])])
        response: DescribeQuorumResponse = connection.call(request, version)
    assert (response.error_code, response.topics[0].partitions[0].error_code) == (0, 0)
    return response


def states_of(cluster: Cluster, node_id: int, version: int = 2) -> dict[int, DescribeQuorumResponse.ReplicaState]:
    partition = described_quorum(cluster, node_id, version).topics[0].partitions[0]
    return {state.replica_id: state for state in (*partition.current_voters, *partition.observers)}


@pytest.fixture
def quorum() -> Iterator[Cluster]:
    """Three that vote, and a fourth that follows."""

    def known() -> set[int]:
        return {node_id for node_id, state in states_of(running, 1).items() if state.log_end_offset > 0}

    with Cluster(brokers=3) as running:
        assert running.add_broker() == FOURTH
        running.wait_for(lambda: known() == {1, 2, 3, FOURTH}, "not all follow")
        yield running


def test_the_quorum_is_described_by_every_member(quorum: Cluster) -> None:
    for version in (0, 1, 2):
        answers = [described_quorum(quorum, node_id, version) for node_id in quorum.brokers]
        rows = [answer.topics[0].partitions[0] for answer in answers]
        assert {(row.leader_id, row.leader_epoch) for row in rows} == {(quorum.controller_id, rows[0].leader_epoch)}
        for answer, row in zip(answers, rows, strict=True):
            states = {state.replica_id: state for state in (*row.current_voters, *row.observers)}
            assert sorted(state.replica_id for state in row.current_voters) == [1, 2, 3]
            assert [state.replica_id for state in row.observers] == [FOURTH]
            end_offset = states[row.leader_id].log_end_offset
            assert 0 < row.high_watermark <= end_offset
            assert all(0 < state.log_end_offset <= end_offset for state in states.values())
            directories = {state.replica_directory_id for state in states.values()}
            assert len(directories - {ZERO_UUID}) == (4 if version == 2 else 0)
            nodes = {node.node_id: [(each.name, each.port) for each in node.listeners] for node in answer.nodes}
            ports = {node_id: quorum.brokers[node_id].node.ports[1] for node_id in (1, 2, 3)}
            assert nodes == ({i: [("CONTROLLER", port)] for i, port in ports.items()} if version == 2 else {})


def test_the_quorum_tells_when_each_member_was_heard_of(quorum: Cluster) -> None:
    active = quorum.wait_for(lambda: quorum.controller_id, "no controller")
    dead, asked = [node_id for node_id in (1, 2, 3) if node_id != active]

    def write_and_look(everybody: set[int]) -> dict[int, DescribeQuorumResponse.ReplicaState]:
        """After a change of the metadata that these have, as of some time after it."""
        begun_ms = int(time.time() * 1000)
        before = states_of(quorum, asked)[active].log_end_offset
        quorum.create_topic(quorum.unused_topic_name(), replication_factor=1)

        def all_have_it() -> dict[int, DescribeQuorumResponse.ReplicaState] | None:
            states = states_of(quorum, asked)
            there = [states[node_id] for node_id in everybody]
            is_told = all(state.last_caught_up_timestamp >= begun_ms for state in there)
            return states if is_told and all(state.log_end_offset > before for state in there) else None

        found = quorum.wait_for(all_have_it, "somebody does not follow")
        now_ms = int(time.time() * 1000)
        for node_id in everybody:
            state = found[node_id]
            assert begun_ms <= state.last_caught_up_timestamp <= state.last_fetch_timestamp <= now_ms + 1
        return found

    before = write_and_look({1, 2, 3, FOURTH})
    for version, is_told in ((0, False), (1, True)):
        for state in states_of(quorum, asked, version).values():
            assert (state.last_fetch_timestamp > 0) is (state.last_caught_up_timestamp > 0) is is_told
    quorum.kill(dead)
    after = write_and_look({active, asked, FOURTH})
    assert before[dead].log_end_offset <= after[dead].log_end_offset < after[active].log_end_offset
    assert after[dead].last_fetch_timestamp < after[asked].last_fetch_timestamp
    assert after[dead].last_caught_up_timestamp < after[asked].last_caught_up_timestamp


def test_every_replica_tells_of_the_producers_it_knows(quorum: Cluster) -> None:
    topic = quorum.create_topic("with-producers", partitions=1, replication_factor=3)
    producer = Producer({"bootstrap.servers": quorum.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"v")
    assert producer.flush(30) == 0
    request = DescribeProducersRequest([DescribeProducersRequest.TopicRequest(topic, [0])])
    with Admin(quorum.bootstrap) as admin:
        replicas = admin.describe_topic(topic).partitions[0].replicas
    assert len(replicas) == 3
    for node_id, broker in quorum.brokers.items():
        with RawConnection(broker.bootstrap) as connection:
            answer = connection.call(request, 0).topics[0].partitions[0]
        if node_id in replicas:
            assert answer.error_code == 0
            assert [state.last_sequence for state in answer.active_producers] == [0]
        else:
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
