"""Brokers join, get their share, are drained and removed; one is replaced by an empty disk."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Admin, TopicPartition
from penstock.model.errors import ErrorCode
from penstock.model.ids import new_uuid
from penstock.net.free_ports import free_ports
from penstock.node.identity import NodeRefused
from penstock.testing import Broker, Cluster
from penstock.wire.generated.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from tests.cluster.traffic import Writer, read_all
from tests.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, settings={"min.insync.replicas": "2"}) as running:
        yield running


def line(cluster: Cluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "cluster", *words, "--bootstrap", cluster.bootstrap]


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line(cluster, *words), capture_output=True, text=True, timeout=120, check=False)


def described(cluster: Cluster) -> dict[str, Any]:
    result = command(cluster, "describe", "--output", "json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_broker_joins_and_leaves(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", partitions=12, replication_factor=3)
    writer = Writer(cluster.bootstrap, topic)
    writer.write(120)
    fourth = cluster.add_broker()
    assert command(cluster, "balance", "--dry-run").returncode == 0
    result = command(cluster, "balance")
    assert result.returncode == 0, result.stderr
    brokers = {row["id"]: row for row in described(cluster)["brokers"]}
    assert brokers[fourth]["replicas"] >= 8
    assert brokers[fourth]["leads"] >= 2
    writer.write(120)

    refused = command(cluster, "remove", str(fourth))
    assert refused.returncode == 1
    assert "running" in refused.stderr
    result = command(cluster, "drain", str(fourth))
    assert result.returncode == 0, result.stderr
    assert "holds no replicas" in result.stderr
    assert [row["id"] for row in described(cluster)["brokers"] if row["drained"]] == [fourth]
    result = command(cluster, "balance")
    assert f"broker {fourth} is drained and left out" in result.stderr
    cluster.create_topic("new", partitions=8, replication_factor=3)
    assert {row["id"]: row["replicas"] for row in described(cluster)["brokers"]}[fourth] == 0
    writer.write(120)
    cluster.brokers[fourth].stop()
    result = command(cluster, "remove", str(fourth))
    assert result.returncode == 0, result.stderr
    assert [row["id"] for row in described(cluster)["brokers"]] == [1, 2, 3]
    assert not cluster.image().drained_brokers
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 360)) == sorted(writer.acknowledged)


def test_balancing_hands_leaderships_over_as_well(cluster: Cluster) -> None:
    """Those whose leader stays among the replicas too: the plan only puts another in front."""
    topic = cluster.create_topic("t", partitions=6, replication_factor=3)
    cluster.restart(1)  # whoever was restarted leads nothing
    cluster.wait_until_in_sync(topic)
    result = command(cluster, "balance")
    assert result.returncode == 0, result.stderr
    assert "balanced" in result.stderr
    assert {row["id"]: row["leads"] for row in described(cluster)["brokers"]} == {1: 2, 2: 2, 3: 2}


def test_a_drain_waits_for_what_is_on_the_move_already(cluster: Cluster) -> None:
    """An interrupted one, taken up again, must not call a broker empty that is not; it says what keeps it waiting."""
    topic = cluster.create_topic("t", replication_factor=3)
    fourth = cluster.add_broker()
    leader = cluster.leader_of(topic)
    staying = [node_id for node_id in (1, 2, 3) if node_id != leader]
    cluster.pause(fourth)  # what moves there does not arrive

    async def move() -> None:
        async with Admin(cluster.bootstrap) as admin:
            assert await admin.alter_reassignments({TopicPartition(topic, 0): [*staying, fourth]}) == {
                TopicPartition(topic, 0): None
            }

    asyncio.run(move())
    looked = command(cluster, "drain", str(leader), "--dry-run")
    assert "1 partition is on the move" in looked.stderr
    assert "holds no replicas" not in looked.stderr
    with subprocess.Popen(line(cluster, "drain", str(leader)), stderr=subprocess.PIPE, text=True) as draining:
        assert draining.stderr is not None
        assert any(f"1 partition is on the move; broker {fourth} is down" in said for said in draining.stderr)
        cluster.resume(fourth)
        assert f"broker {leader} holds no replicas\n" in draining.communicate(timeout=60)[1]
    assert leader not in cluster.in_sync(topic)


def test_a_member_that_is_down_holds_nothing_up_and_is_replaced_when_removed(cluster: Cluster) -> None:
    """Balancing leaves alone what cannot end before it is back, and heals what a removed one held."""
    topic = cluster.create_topic("t", partitions=6, replication_factor=3)
    writer = Writer(cluster.bootstrap, topic, partitions=6)
    writer.write(60)
    fourth = cluster.add_broker()
    assert command(cluster, "balance").returncode == 0
    fifth = cluster.add_broker()
    cluster.kill(fourth)
    cluster.wait_for(lambda: cluster.image().brokers[fourth].fenced or None, "it is not fenced")
    result = command(cluster, "balance")
    assert result.returncode == 0, result.stderr
    assert "balanced" in result.stderr
    assert command(cluster, "remove", "--force", str(fourth)).returncode == 0
    result = command(cluster, "balance")
    assert result.returncode == 0, result.stderr
    rows = described(cluster)["brokers"]
    assert {row["id"] for row in rows} == {1, 2, 3, fifth}
    assert sum(row["replicas"] for row in rows) == 18
    writer.write(60)
    assert not writer.failures


def test_a_cluster_that_balances_itself_gives_a_broker_that_joins_its_share() -> None:
    settings = {
        "min.insync.replicas": "2",
        "cluster.balance.enable": "true",
        "cluster.balance.interval.ms": "100",
        "cluster.balance.max.moves": "3",
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "200",
    }
    with Cluster(brokers=3, settings=settings) as cluster:
        topic = cluster.create_topic("t", partitions=12, replication_factor=3)
        writer = Writer(cluster.bootstrap, topic, partitions=12)
        writer.write(120)
        fourth = cluster.add_broker()

        def is_spread() -> bool:
            writer.write(12)  # it goes on meanwhile
            found = cluster.image().topic(topic)
            assert found is not None
            states = found.partitions
            moving = [state for state in states if state.adding_replicas or state.removing_replicas]
            assert len(moving) <= 3
            held = {node_id: sum(node_id in state.replicas for state in states) for node_id in cluster.brokers}
            led = sum(state.leader == fourth for state in states)
            return not moving and set(held.values()) == {9} and led >= 2

        eventually(is_spread, 60)
        cluster.wait_until_in_sync(topic)
        assert not writer.failures
        found = read_all(cluster.bootstrap, topic, len(writer.acknowledged))
        assert sorted(found) == sorted(writer.acknowledged)


def test_a_cluster_that_balances_itself_leaves_a_drained_broker_empty() -> None:
    settings = {
        "cluster.balance.enable": "true",
        "cluster.balance.interval.ms": "100",
        "broker.session.timeout.ms": "1000",
        "broker.heartbeat.interval.ms": "200",
    }
    with Cluster(brokers=4, settings=settings) as cluster:
        topic = cluster.create_topic("t", partitions=12, replication_factor=3)

        def held(node_id: int) -> int:
            found = cluster.image().topic(topic)
            assert found is not None
            return sum(node_id in state.replicas for state in found.partitions)

        result = command(cluster, "drain", "4")
        assert result.returncode == 0, result.stderr
        fifth = cluster.add_broker()
        eventually(lambda: held(fifth) == 9, 60)
        assert held(4) == 0
        assert command(cluster, "drain", "--cancel", "4").returncode == 0
        eventually(lambda: held(4) >= 7, 60)


def test_no_room_to_drain(cluster: Cluster) -> None:
    cluster.create_topic("t", replication_factor=3)
    result = command(cluster, "drain", "1")
    assert result.returncode == 1
    assert "nowhere to go" in result.stderr
    assert not cluster.image().drained_brokers
    assert command(cluster, "drain", "9").returncode == 1


def voters(cluster: Cluster) -> dict[int, str]:
    return {row["id"]: row["directory"] for row in described(cluster)["quorum"] if row["role"] != "observer"}


@pytest.mark.parametrize("led", [False, True], ids=["a voter", "the leader"])
def test_an_empty_disk_takes_the_place_of_a_dead_voter(cluster: Cluster, led: bool) -> None:
    """Nobody does anything but start it; then it votes: with it, another one may go. Of the disk of a leader its
    successor has never heard."""
    topic = cluster.create_topic("t", partitions=3, replication_factor=3)
    writer = Writer(cluster.bootstrap, topic)
    writer.write(60)
    before = voters(cluster)
    assert set(before) == {1, 2, 3}
    dead = next(node_id for node_id in (3, 2, 1) if (node_id == cluster.controller_id) == led)
    cluster.kill(dead)
    shutil.rmtree(cluster.data_dir / f"broker-{dead}")
    cluster.start()
    eventually(lambda: voters(cluster).get(dead, before[dead]) != before[dead], 30, interval=0.3)
    assert set(voters(cluster)) == {1, 2, 3}
    cluster.wait_until_in_sync(topic)
    other = next(node_id for node_id in (1, 2, 3) if node_id not in (dead, cluster.controller_id))
    cluster.kill(other)
    writer.write(60)
    assert cluster.create_topic("u", replication_factor=2)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 120)) == sorted(writer.acknowledged)


def test_a_second_process_with_the_id_of_a_voter_does_not_take_its_vote(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused as a broker; the vote stays with the one that is alive."""
    before = voters(cluster)
    member = next(broker for node_id, broker in cluster.brokers.items() if node_id != cluster.controller_id)._given
    client, controller = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}"
    given = {**member, "listeners": listeners, "initial.broker.registration.timeout.ms": "8000"}
    with pytest.raises(NodeRefused, match="registered with other data directories"):
        Broker(given, data_dir=tmp_path / "second").start()
    assert "two processes have this id" in caplog.text
    assert voters(cluster) == before


def test_a_broker_that_votes_is_removed_with_its_vote(cluster: Cluster) -> None:
    """Else it would count against every majority: with another one gone nothing could be decided."""
    topic = cluster.create_topic("t", partitions=3, replication_factor=2)
    writer = Writer(cluster.bootstrap, topic)
    writer.write(60)
    gone = next(node_id for node_id in (3, 2, 1) if node_id != cluster.controller_id)
    result = command(cluster, "drain", str(gone))
    assert result.returncode == 0, result.stderr
    cluster.brokers[gone].stop()
    result = command(cluster, "remove", str(gone))
    assert result.returncode == 0, result.stderr
    assert f"node {gone} votes no more; 2 voters are left, of which none may be lost" in result.stderr
    left = {1, 2, 3} - {gone}
    assert set(voters(cluster)) == left
    assert {row["id"] for row in described(cluster)["brokers"]} == left
    assert set(cluster.image().controllers) == left, "its feature levels do not count any more"
    writer.write(60)
    assert not writer.failures
    refused = command(cluster, "remove", str(gone))
    assert refused.returncode == 1
    assert f"there is no broker {gone}" in refused.stderr
    # Started again with itself in its list, it is a member like any that joins, and votes.
    cluster.start()
    eventually(lambda: set(voters(cluster)) == {1, 2, 3}, 30, interval=0.3)
    cluster.wait_for(lambda: set(cluster.image().controllers) == {1, 2, 3}, "it is not registered as controller")
    assert sorted(read_all(cluster.bootstrap, topic, 120)) == sorted(writer.acknowledged)


def test_a_voter_is_added_only_where_somebody_listens(cluster: Cluster) -> None:
    (unused,) = free_ports(1)
    leader = cluster.brokers[cluster.controller_id or 1]._node
    assert leader is not None
    used = leader.ports[0]

    async def add_voter(port: int) -> AddRaftVoterResponse:
        async with Admin(cluster.bootstrap) as admin:
            listeners = [AddRaftVoterRequest.Listener("CONTROLLER", "127.0.0.1", port)]
            request = AddRaftVoterRequest(None, 500, 9, new_uuid(os.urandom), listeners)
            return await admin._cluster.call_controller(request, AddRaftVoterResponse)

    answer = asyncio.run(add_voter(unused))
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert f"127.0.0.1:{unused}" in (answer.error_message or "")
    answer = asyncio.run(add_voter(used))
    assert "does not follow the metadata log" in (answer.error_message or "")
    assert set(voters(cluster)) == {1, 2, 3}


def test_a_voter_that_moved_is_found_at_its_new_address(cluster: Cluster) -> None:
    moved = next(node_id for node_id in (1, 2, 3) if node_id != cluster.controller_id)
    cluster.brokers[moved].stop()
    (port,) = free_ports(1)
    given = cluster.brokers[moved]._given
    old = given["controller.quorum.voters"].split(f"{moved}@127.0.0.1:")[1].split(",")[0]
    given["listeners"] = given["listeners"].replace(f":{old}", f":{port}")
    given["controller.quorum.voters"] = given["controller.quorum.voters"].replace(f":{old}", f":{port}")
    cluster.start()

    def at_new_address() -> bool:
        driver = cluster.brokers[cluster.controller_id]._node.broker.driver  # type: ignore[union-attr]
        endpoints = driver.quorum.core.voters.by_id[moved].endpoints  # type: ignore[union-attr]
        return [endpoint.port for endpoint in endpoints] == [port]

    eventually(at_new_address, 20)
    (other,) = {1, 2, 3} - {moved, cluster.controller_id}
    cluster.kill(other)
    assert cluster.create_topic("t", replication_factor=2), "it is heard, and hears the leader"


def test_an_empty_disk_takes_the_place_of_a_dead_broker(cluster: Cluster) -> None:
    topic = cluster.create_topic("t", partitions=3, replication_factor=3)
    fourth = cluster.add_broker()
    assert command(cluster, "balance").returncode == 0
    writer = Writer(cluster.bootstrap, topic)
    writer.write(300)
    cluster.kill(fourth)
    shutil.rmtree(cluster.data_dir / f"broker-{fourth}")
    writer.write(30)
    cluster.start()
    cluster.wait_until_in_sync(topic)
    assert not writer.failures
    assert sorted(read_all(cluster.bootstrap, topic, 330)) == sorted(writer.acknowledged)
