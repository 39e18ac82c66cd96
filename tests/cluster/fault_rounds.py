"""Rounds of faults under traffic: each hurts the cluster, times how long producers were without an acknowledgement,
and lets it heal. Times are the longest silence in a partition from the signal to the first acknowledgement of a
record that was sent after it had its effect.
"""

import json
import time
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka.admin import AdminClient, NewTopic

from penstock.net.free_ports import free_ports
from tests.cluster.fault_clients import (
    ConfluentTraffic,
    JavaTraffic,
    Traffic,
    check_records,
    committed_offsets,
    read_topic,
)
from tests.cluster.fault_proxy import CuttableNetwork, Way
from tests.cluster.fault_view import ClusterView
from tests.cluster.processes import ClusterProcesses
from tests.external import java_classpath, missing
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
    """Of one round: the longest silence by client, in partitions whose leader was hit and in the others."""

    kind: str
    hit_s: dict[str, float]
    others_s: dict[str, float]

    def __str__(self) -> str:
        hit, others = (
            ", ".join(f"{client} {seconds:.2f} s" for client, seconds in part.items()) or "none"
            for part in (self.hit_s, self.others_s)
        )
        return f"{self.kind}: {hit} where the leader was hit; {others} elsewhere"

    @property
    def worst_s(self) -> float:
        return max([*self.hit_s.values(), *self.others_s.values()])


class FaultRounds(AbstractContextManager["FaultRounds"]):
    """A cluster, a topic, and clients at work."""

    def __init__(
        self, cluster: ClusterProcesses, directory: Path, *, default_timeouts: bool = False, java: bool = True
    ) -> None:
        self.cluster = cluster
        self.view = ClusterView(cluster)
        self.outcomes: list[Outcome] = []
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(30)
        self.view.wait_whole(TOPIC)
        self.clients: list[Traffic] = [
            ConfluentTraffic(cluster.bootstrap, TOPIC, PARTITIONS, default_timeouts=default_timeouts)
        ]
        why_not = missing(java_classpath) if java else None
        self.left_out = f"Kafka's Java client was left out: {why_not}" if why_not is not None else ""
        if self.left_out:
            warnings.warn(self.left_out, stacklevel=2)  # pytest shows it at the end, whatever else passes
        elif java:
            log = directory / "java.log"
            client = JavaTraffic(cluster.bootstrap, TOPIC, PARTITIONS, log, default_timeouts=default_timeouts)
            self.clients.append(client)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self.clients:
            client.stop()

    def __enter__(self) -> Self:
        return self

    # -- what traffic does ------------------------------------------------------------------------------------------

    def go_on(self, since: float | None = None, ended: float | None = None) -> dict[str, dict[int, float]]:
        """Waits until every partition acknowledged to every client something that was sent after `ended` (now); the
        longest silence `since`, by client and partition."""
        ended = ended or time.monotonic()
        begun = since or ended
        found: dict[str, dict[int, float]] = {client.ledger.name: {} for client in self.clients}

        def complete() -> bool:
            for client in self.clients:
                client.check()
                known = found[client.ledger.name]
                for partition in set(range(PARTITIONS)) - set(known):
                    silence_s = client.ledger.longest_silence(partition, begun, ended)
                    if silence_s is not None:
                        known[partition] = silence_s
            return all(len(partitions) == PARTITIONS for partitions in found.values())

        _wait(complete, lambda: f"no acknowledgement: {found}; {self.view.partitions(TOPIC)}")
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

    def outages(self, silent_s: float = 0.5) -> int:
        """Partitions in which nothing was acknowledged for so long."""
        now = time.monotonic()
        ledgers = [client.ledger for client in self.clients]
        last = [max(each.acknowledged[p][-1].acknowledged_at for each in ledgers) for p in range(PARTITIONS)]
        return sum(now - moment > silent_s for moment in last)

    # -- a round ----------------------------------------------------------------------------------------------------

    def hurt(self, kind: str, hit: set[int], harm: Callable[[], None]) -> Outcome:
        """`harm` does it; `hit` are the partitions whose leader suffers."""
        self.go_on()
        signal = time.monotonic()
        harm()
        found = self.go_on(signal, time.monotonic())
        others = set(range(PARTITIONS)) - hit
        worst = [
            {name: max(seconds[p] for p in part) for name, seconds in found.items()} if part else {}
            for part in (hit, others)
        ]
        outcome = Outcome(kind, *worst)
        self.outcomes.append(outcome)
        print(outcome, flush=True)
        return outcome

    def heal(self) -> None:
        for client in self.clients:
            client.replace_consumer()
        self.view.silent.clear()
        self.view.wait_whole(TOPIC, "__consumer_offsets")
        self.go_on()
        self.groups_go_on()
        self.check_commits()
        for client in self.clients:
            client.check()

    def check_commits(self) -> None:
        """No commit that was acknowledged is gone; nothing is committed that was not read. What a JVM tells of its
        reading may arrive after what it did next."""
        for group in [group for client in self.clients for group in client.groups.values()]:
            acknowledged = dict(group.committed)
            stored = committed_offsets(self.cluster.bootstrap, group.name, TOPIC, PARTITIONS)
            wrong = {p: (offset, stored.get(p)) for p, offset in acknowledged.items() if stored.get(p, -1) < offset}
            assert not wrong, f"{group.name}: commits are lost (acknowledged, found): {wrong}"
            message = f"{group.name}: {stored} is committed, read {group.next_offset}"
            eventually(partial(group.has_read, stored), message=message)

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
            for group in client.groups.values():
                group.check_values(found)
        records = {client.ledger.name: client.ledger.count() for client in self.clients}
        again = {group.name: group.read_again for client in self.clients for group in client.groups.values()}
        words = f"acknowledged and found once: {records}; read again by groups: {again}\n{self.table()}"
        return f"{words}\n{self.left_out}" if self.left_out else words

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
