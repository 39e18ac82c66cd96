"""Exactly once on three brokers: consume, transform, produce in transactions, while coordinators are killed.

The program, its group and its partitions are on different brokers, so markers and verification travel between them.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.wire.generated.find_coordinator import FindCoordinatorRequest
from tests.cluster.processes import ClusterProcesses
from tests.conformance.raw import RawConnection
from tests.crash.test_exactly_once import GROUP, SETTINGS, ExactlyOnce, python_command
from tests.waiting import eventually

TRANSACTIONAL_ID = "the-transformer"
KEYS = {"transaction": (1, TRANSACTIONAL_ID), "group": (0, GROUP)}


class _Cluster:
    """The cluster as a test of one broker sees it."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.bootstrap = cluster.bootstrap
        self._cluster = cluster

    def log(self) -> str:
        return "\n".join(member.log()[-2000:] for member in self._cluster.members.values())


class OnCluster(ExactlyOnce):
    replication_factor = 3

    def __init__(self, cluster: ClusterProcesses, library: str, log_path: Path, seed: int) -> None:
        self.cluster = cluster
        super().__init__(_Cluster(cluster), python_command(library), "classic", log_path, seed)

    def coordinator(self, what: str) -> int:
        """The broker that coordinates the transaction or the group, as a running member says."""
        key_type, key = KEYS[what]
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        found: list[int] = []

        def look() -> bool:
            member = self.random.choice([each for each in self.cluster.members.values() if each.is_running])
            connection = RawConnection(member.bootstrap)
            try:
                answer = connection.call(request, 4).coordinators[0]
            finally:
                connection.close()
            found[:] = [answer.node_id]
            return not answer.error_code and self.cluster.members[answer.node_id].is_running

        eventually(look, 30.0)
        return found[0]

    def kill_coordinators(self, rounds: int) -> None:
        self.make_progress(20)
        for _ in range(rounds):
            for what in KEYS:
                self.make_progress(self.random.randint(10, 80))
                victim = self.coordinator(what)
                self.cluster.members[victim].kill()
                self.make_progress(self.random.randint(10, 80))
                self.cluster.start([victim])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    settings = {name.replace("_", "."): value for name, value in SETTINGS.items()}
    with ClusterProcesses(tmp_path, 3, {**settings, "min.insync.replicas": "2"}) as running:
        yield running


@pytest.fixture(autouse=True)
def long_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member is thrown out while its coordinator moves: what aiokafka commits then nobody could fence."""
    monkeypatch.setenv("SESSION_MS", "10000")


def transform_while_coordinators_die(
    cluster: ClusterProcesses, tmp_path: Path, library: str, seed: int, rounds: int
) -> str:
    test = OnCluster(cluster, library, tmp_path / "program.log", seed)
    try:
        test.kill_coordinators(rounds)
        return test.check()
    finally:
        test.close()


@pytest.mark.parametrize("library", ["confluent-kafka", "aiokafka"])
def test_kills_of_coordinators(cluster: ClusterProcesses, tmp_path: Path, library: str) -> None:
    transform_while_coordinators_die(cluster, tmp_path, library, random.randrange(2**32), 1)


@pytest.mark.soak
@pytest.mark.parametrize("library", ["confluent-kafka", "aiokafka", "kafka-python"])
def test_ten_kills_of_each_coordinator(cluster: ClusterProcesses, tmp_path: Path, library: str) -> None:
    seed = random.randrange(2**32)
    print(f"\nseed {seed}")
    print(transform_while_coordinators_die(cluster, tmp_path, library, seed, 10))
