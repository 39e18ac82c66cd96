"""Disks of real brokers fill up, break and rot under traffic: the cluster goes on, and each becomes whole again."""

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.records.batch import crc_is_valid, iter_headers
from tests.cluster.fault_disk import break_disk
from tests.cluster.fault_rounds import FAILOVER_S, PARTITIONS, SETTINGS, TOPIC, FaultRounds
from tests.cluster.processes import ClusterProcesses
from tests.waiting import eventually

FULL_S = 2.0  # how long a replica whose disk is full may hold up the others


class DiskCluster(ClusterProcesses):
    """Every member has two directories for its logs; any of them can be made to fail."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 3, dict(SETTINGS))
        for node_id, process in self.members.items():
            file = process.member.config_file
            values = tomllib.loads(file.read_text())
            values["log.dirs"] = [str(path) for path in self.directories(node_id)]
            file.write_text("".join(f'"{name}" = {json.dumps(value)}\n' for name, value in values.items()))
            process.program = ["-m", "tests.cluster.fault_disk", str(self.switch(node_id))]

    def directories(self, node_id: int) -> list[Path]:
        home = self.members[node_id].member.config_file.parent
        return [home / f"broker-{node_id}-{letter}" for letter in "ab"]

    def switch(self, node_id: int) -> Path:
        return self.members[node_id].member.config_file.with_suffix(".disk")

    def log_files(self, node_id: int, partition: int) -> list[Path]:
        found: list[Path] = []
        for directory in self.directories(node_id):
            found += sorted((directory / f"{TOPIC}-{partition}").glob("*.log"))
        return found


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultRounds]:
    directory = tmp_path_factory.mktemp("disks")
    with DiskCluster(directory) as cluster, FaultRounds(cluster, directory, java=False) as running:
        running.heal()
        yield running
        print("\n" + running.finish())


def cluster_of(rounds: FaultRounds) -> DiskCluster:
    assert isinstance(rounds.cluster, DiskCluster)
    return rounds.cluster


def other_than_controller(rounds: FaultRounds) -> int:
    controller = rounds.view.controller()
    return next(node_id for node_id in rounds.cluster.members if node_id != controller)


def test_a_directory_fails(rounds: FaultRounds) -> None:
    """Others lead what was in it, soon; what is in the other directory stays where it is."""
    cluster = cluster_of(rounds)
    victim = other_than_controller(rounds)
    rounds.view.spread(TOPIC, PARTITIONS, [victim])
    broken = cluster.directories(victim)[1]
    inside = {partition for partition in range(PARTITIONS) if (broken / f"{TOPIC}-{partition}").exists()}
    assert inside, "partitions are spread over directories"
    outside = set(range(PARTITIONS)) - inside
    assert outside
    outcome = rounds.hurt("failed directory", inside, lambda: break_disk(cluster.switch(victim), "EIO", broken))
    assert outcome.worst_s <= FAILOVER_S
    eventually(lambda: not inside & rounds.led_by(victim), FAILOVER_S, interval=0.05)
    assert rounds.led_by(victim) == outside, "the broker lives on"
    cluster.switch(victim).unlink()
    cluster.restart(victim)
    rounds.heal()


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_disk_is_full(rounds: FaultRounds, role: str) -> None:
    """A follower without room holds up nobody for long; a leader refuses until there is room again. No restarts."""
    cluster = cluster_of(rounds)
    victim = other_than_controller(rounds)
    others = [node_id for node_id in cluster.members if node_id != victim]
    rounds.view.spread(TOPIC, PARTITIONS, [victim] if role == "leader" else others)
    home = cluster.directories(victim)[0].with_name(f"broker-{victim}-")

    def fill() -> None:
        break_disk(cluster.switch(victim), "ENOSPC", home)
        if role == "leader":
            eventually(lambda: rounds.outages() == PARTITIONS, 10, interval=0.05)
            cluster.switch(victim).unlink()

    outcome = rounds.hurt(f"full disk of a {role}", set(range(PARTITIONS)), fill)
    if role == "follower":
        assert outcome.worst_s <= FULL_S
        cluster.switch(victim).unlink()
    rounds.heal()
    assert cluster.members[victim].is_running


def flip(file: Path, choose: Callable[[int], int]) -> None:
    """One bit, in the payload of the batch at the place that is chosen; the rest of the file, which may be in use,
    stays as it is. (What comes before a batch's checksum is not covered by it.)"""
    data = file.read_bytes()
    place = choose(len(data))
    ends = (position + header.size_bytes for position, header in iter_headers(data))
    at = next(end for end in ends if end > place) - 1
    with open(file, "r+b") as opened:
        opened.seek(at)
        opened.write(bytes([data[at] ^ 1]))


def all_alike(cluster: DiskCluster, partition: int) -> bool:
    """The same bytes on every member, as far as all of them have come, and every checksum is right."""
    copies = [b"".join(file.read_bytes() for file in cluster.log_files(each, partition)) for each in cluster.members]
    shortest = min(map(len, copies))
    assert shortest
    whole = all(crc_is_valid(copy, position, header) for copy in copies for position, header in iter_headers(copy))
    return whole and len({copy[:shortest] for copy in copies}) == 1


def test_the_end_of_a_replica_rots(rounds: FaultRounds) -> None:
    cluster = cluster_of(rounds)
    victim = other_than_controller(rounds)
    cluster.members[victim].kill()
    flip(cluster.log_files(victim, 0)[-1], lambda size: size - 1)
    cluster.start([victim])
    rounds.heal()
    eventually(lambda: all_alike(cluster, 0), 20, interval=0.2)


def test_a_leader_rots(rounds: FaultRounds) -> None:
    """A bit in the middle, which nobody reads until another replica must be fetched as a whole."""
    cluster = cluster_of(rounds)
    leader, empty, third = cluster.members
    rounds.view.lead(TOPIC, {0: [leader, empty, third]})
    [file] = cluster.log_files(leader, 0)
    flip(file, lambda size: size // 2)
    cluster.members[empty].kill()
    shutil.rmtree(cluster.log_files(empty, 0)[0].parent)
    cluster.start([empty])
    eventually(lambda: f"{TOPIC}-0 is whole again" in cluster.members[leader].log(), 30, interval=0.1)
    rounds.heal()
    eventually(lambda: all_alike(cluster, 0), 20, interval=0.2)
