"""What operators do to a running cluster, under traffic of two libraries with their default timeouts: no delivery
fails, nothing is lost, groups go on.
"""

import json
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.members import Member
from penstock.net.free_ports import free_ports
from penstock.wire.generated.describe_quorum import DescribeQuorumRequest
from tests.cluster.fault_rounds import SETTINGS, TOPIC, FaultRounds
from tests.cluster.fault_view import ClusterView
from tests.cluster.processes import ClusterProcesses, MemberProcess

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


def test_the_quorum_is_described_by_every_member(tmp_path: Path) -> None:
    kind = DescribeQuorumRequest
    request = kind([kind.TopicData("__cluster_metadata", [kind.PartitionData(0)])])
    with ClusterProcesses(tmp_path, 3) as cluster:
        view = ClusterView(cluster)
        for version in (0, 1, 2):
            answers = [view.ask(request, version, node_id).topics[0].partitions[0] for node_id in cluster.members]
            assert {answer.error_code for answer in answers} == {0}
            assert len({answer.leader_id for answer in answers}) == 1
            assert sorted(voter.replica_id for voter in answers[0].current_voters) == [1, 2, 3]
