"""Rounds of faults under traffic: each hurts the cluster, times how long producers were without an acknowledgement,
and lets it heal. Times are from the signal to the first acknowledgement of a record that was sent after it.
"""

import json
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.testing.cluster import free_ports
from tests.cluster.fault_clients import ConfluentTraffic, JavaTraffic, Traffic, check_records, read_topic
from tests.cluster.fault_proxy import CuttableNetwork, Way
from tests.cluster.fault_view import ClusterView
from tests.cluster.processes import ClusterProcesses
from tests.waiting import eventually

TOPIC = "faults"
PARTITIONS = 6
SETTINGS = {"min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "6"}
FAILOVER_S = 5.0
PROGRESS_S = 60.0


class CuttableCluster(ClusterProcesses):
    """Members talk to each other over a network that can be cut; clients reach each of them directly."""

    def __init__(self, directory: Path, brokers: int = 3, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(directory, brokers, settings)
        ports = iter(free_ports(3 * brokers))
        outer: dict[int, tuple[int, int]] = {}
        ways: list[Way] = []
        inner: dict[int, int] = {}
        for node_id, process in self.members.items():
            inner[node_id], *seen = (next(ports) for _ in range(3))
            outer[node_id] = seen[0], seen[1]
            ways += [Way(seen[0], inner[node_id], node_id), Way(seen[1], process.member.port + 1, node_id)]
        voters = [f"{node_id}@127.0.0.1:{ports[1]}" for node_id, ports in outer.items()]
        for node_id, process in self.members.items():
            host, file = "127.0.0.1", process.member.config_file
            values = tomllib.loads(file.read_text())
            values["listeners"].insert(1, f"INNER://{host}:{inner[node_id]}")
            values["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT"
            values["inter.broker.listener.name"] = "INNER"
            replicas, controllers = outer[node_id]
            values["advertised.listeners"] = [f"INNER://{host}:{replicas}", f"CONTROLLER://{host}:{controllers}"]
            values["controller.quorum.voters"] = voters
            file.write_text("".join(f'"{name}" = {json.dumps(value)}\n' for name, value in values.items()))
        self.network = CuttableNetwork(ways)

    def kill_all(self) -> None:
        super().kill_all()
        self.network.close()


class Outcome(NamedTuple):
    """Of one round: seconds to the next acknowledgement anywhere, and where the leader was hit."""

    kind: str
    overall_s: float
    hit_s: dict[str, float]  # the slowest partition, by client

    def __str__(self) -> str:
        hit = ", ".join(f"{client} {seconds:.2f} s" for client, seconds in self.hit_s.items())
        return f"{self.kind}: {self.overall_s:.2f} s anywhere; where the leader was hit: {hit or 'nowhere'}"

    @property
    def worst_s(self) -> float:
        return max([self.overall_s, *self.hit_s.values()])


class FaultRounds(AbstractContextManager["FaultRounds"]):
    """A cluster, a topic, and clients at work."""

    def __init__(self, cluster: ClusterProcesses, directory: Path, *, default_timeouts: bool = False) -> None:
        self.cluster = cluster
        self.view = ClusterView(cluster)
        self.outcomes: list[Outcome] = []
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        self.view.wait_whole(TOPIC)
        java_log = directory / "java.log"
        self.clients: list[Traffic] = [
            ConfluentTraffic(cluster.bootstrap, TOPIC, PARTITIONS, default_timeouts=default_timeouts),
            JavaTraffic(cluster.bootstrap, TOPIC, PARTITIONS, java_log, default_timeouts=default_timeouts),
        ]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.stop()

    def __enter__(self) -> Self:
        return self

    # -- what traffic does ------------------------------------------------------------------------------------------

    def go_on(self, moment: float | None = None) -> dict[str, dict[int, float]]:
        """Waits until every partition acknowledged something to every client that was sent after that moment."""
        since = time.monotonic() if moment is None else moment
        found: dict[str, dict[int, float]] = defaultdict(dict)

        def complete() -> bool:
            for client in self.clients:
                client.check()
                for partition in range(PARTITIONS):
                    if partition not in found[client.ledger.name]:
                        at = client.ledger.first_after(partition, since)
                        if at is not None:
                            found[client.ledger.name][partition] = at - since
            return all(len(partitions) == PARTITIONS for partitions in found.values())

        _wait(complete, lambda: f"no acknowledgement: {dict(found)}; {self.view.partitions(TOPIC)}")
        return found

    def groups_go_on(self) -> None:
        """Waits until every group has committed something that it was sent after now."""
        groups = [group for client in self.clients for group in client.groups.values()]
        goals = [(group, dict(group.committed)) for group in groups]

        def complete() -> bool:
            return all(
                all(group.committed.get(p, 0) > before.get(p, 0) for p in range(PARTITIONS))
                for group, before in goals
            )

        _wait(complete, lambda: f"a group does not go on: {[(g.name, g.committed, g.next_offset) for g in groups]}")

    # -- a round ----------------------------------------------------------------------------------------------------

    def hurt(self, kind: str, hit: set[int], harm: Callable[[], None]) -> Outcome:
        """`harm` does it; `hit` are the partitions whose leader suffers."""
        self.go_on()
        moment = time.monotonic()
        harm()
        times = self.go_on(moment)
        overall_s = min(min(partitions.values()) for partitions in times.values())
        worst = {name: max(seconds[p] for p in hit) for name, seconds in times.items()} if hit else {}
        outcome = Outcome(kind, overall_s, worst)
        self.outcomes.append(outcome)
        print(outcome, flush=True)
        return outcome

    def heal(self) -> None:
        self.view.silent.clear()
        self.view.wait_whole(TOPIC, "__consumer_offsets")
        self.go_on()
        self.groups_go_on()
        for client in self.clients:
            client.check()

    def led_by(self, node_id: int) -> set[int]:
        return {partition for partition, leader in self.view.leaders(TOPIC).items() if leader == node_id}

    def finish(self) -> str:
        """Stops the clients and looks at every record. What the rounds came to, in words."""
        for client in self.clients:
            client.stop_producing()
            client.check()
        self._groups_read_everything()
        for client in self.clients:
            client.stop()
        found = read_topic(self.cluster.bootstrap, TOPIC, PARTITIONS)
        for client in self.clients:
            client.check()
            check_records(found, client.ledger)
        records = {client.ledger.name: client.ledger.count() for client in self.clients}
        again = {group.name: group.read_again for client in self.clients for group in client.groups.values()}
        return f"acknowledged and found once: {records}; read again by groups: {again}\n{self.table()}"

    def _groups_read_everything(self) -> None:
        ends = {
            partition: max(a.offset for client in self.clients for a in client.ledger.acknowledged[partition]) + 1
            for partition in range(PARTITIONS)
        }
        groups = [group for client in self.clients for group in client.groups.values()]
        _wait(
            lambda: all(group.committed.get(p, 0) >= end for group in groups for p, end in ends.items()),
            lambda: f"groups do not get to the end {ends}: {[(group.name, group.committed) for group in groups]}",
        )

    def table(self) -> str:
        kinds: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in self.outcomes:
            kinds[outcome.kind].append(outcome)
        lines = []
        for kind, outcomes in kinds.items():
            worst = sorted(outcome.worst_s for outcome in outcomes)
            lines.append(
                f"{kind:>24}: {len(worst)} rounds, median {worst[len(worst) // 2]:.2f} s, worst {worst[-1]:.2f} s"
            )
        return "\n".join(lines)


def _wait(complete: Callable[[], bool], describe: Callable[[], str]) -> None:
    try:
        eventually(complete, PROGRESS_S, interval=0.01)
    except AssertionError as error:
        raise AssertionError(f"{error}: {describe()}") from None
