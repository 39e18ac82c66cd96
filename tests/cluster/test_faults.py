"""Three real brokers lose a leader, the controller, both at once, sleep, are cut off and are restarted in turn, while
producers and groups of two libraries go on. Nothing acknowledged is lost or doubled, groups read again only what they
had not committed, and producers are acknowledged again within five seconds.
Where there is no Java, confluent-kafka is alone, and the figures say so.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.fault_rounds import FAILOVER_S, PARTITIONS, SETTINGS, TOPIC, CuttableCluster, FaultRounds
from tests.cluster.processes import ClusterProcesses

SOAK_ROUNDS = 30


def kill(rounds: FaultRounds, kind: str, victim: int) -> None:
    member = rounds.cluster.members[victim]
    rounds.hurt(kind, rounds.led_by(victim), member.kill)
    rounds.cluster.start([victim])
    rounds.heal()


def lose_leader(rounds: FaultRounds) -> None:
    """The leader of two partitions that is not the controller."""
    controller = rounds.view.controller()
    rounds.view.spread(TOPIC, PARTITIONS, rounds.cluster.members)
    kill(rounds, "SIGKILL leader", random.choice([each for each in rounds.cluster.members if each != controller]))


def lose_controller(rounds: FaultRounds) -> None:
    """The controller, which leads nothing."""
    controller = rounds.view.controller()
    rounds.view.spread(TOPIC, PARTITIONS, [each for each in rounds.cluster.members if each != controller])
    kill(rounds, "SIGKILL controller", controller)


def lose_both(rounds: FaultRounds) -> None:
    rounds.view.spread(TOPIC, PARTITIONS, rounds.cluster.members)
    kill(rounds, "SIGKILL both", rounds.view.controller())


def sleep(rounds: FaultRounds) -> None:
    """Any of them; whoever wakes up finds that it leads nothing any more."""
    rounds.view.spread(TOPIC, PARTITIONS, rounds.cluster.members)
    victim = random.choice(list(rounds.cluster.members))
    member = rounds.cluster.members[victim]
    role = "controller" if victim == rounds.view.controller() else "leader"
    led = rounds.led_by(victim)
    rounds.view.silent = {victim}
    rounds.hurt(f"SIGSTOP {role}", led, member.pause)
    member.resume()
    rounds.heal()


def restart_in_turn(rounds: FaultRounds) -> None:
    rounds.view.spread(TOPIC, PARTITIONS, rounds.cluster.members)
    for node_id, member in rounds.cluster.members.items():
        led = rounds.led_by(node_id)

        def stop(member=member) -> None:  # type: ignore[no-untyped-def]
            assert member.stop() == 0, member.log()

        rounds.hurt("rolling restart", led, stop)
        rounds.cluster.start([node_id])
        rounds.heal()


def cut_off(rounds: FaultRounds, kind: str, *, outward: bool, inward: bool) -> None:
    assert isinstance(rounds.cluster, CuttableCluster)
    network, members = rounds.cluster.network, rounds.cluster.members
    rounds.view.spread(TOPIC, PARTITIONS, members)
    victim = random.choice(list(members))
    role = "controller" if victim == rounds.view.controller() else "leader"
    led = rounds.led_by(victim)
    rounds.view.silent = {victim}
    rounds.hurt(f"{kind} {role}", led, lambda: network.isolate(victim, members, outward=outward, inward=inward))
    network.heal()
    rounds.heal()


SIGNALS: list[Callable[[FaultRounds], None]] = [lose_leader, lose_controller, lose_both, sleep, restart_in_turn]
CUTS: dict[str, tuple[bool, bool]] = {"cut off": (True, True), "unheard": (True, False), "deaf": (False, True)}


def run_signals(directory: Path, count: int) -> str:
    with ClusterProcesses(directory, 3, SETTINGS) as cluster, FaultRounds(cluster, directory) as rounds:
        rounds.heal()
        for _ in range(count):
            for fault in SIGNALS:
                fault(rounds)
        return finish(rounds)


def run_cuts(directory: Path, kinds: list[str]) -> str:
    with CuttableCluster(directory, 3, SETTINGS) as cluster, FaultRounds(cluster, directory) as rounds:
        rounds.heal()
        for kind in kinds:
            outward, inward = CUTS[kind]
            cut_off(rounds, kind, outward=outward, inward=inward)
        return finish(rounds)


def finish(rounds: FaultRounds) -> str:
    words = rounds.finish()
    for group in [group for client in rounds.clients for group in client.groups.values()]:
        assert group.read_again, f"{group.name}: members were replaced, and none read anything again"
    late = [str(outcome) for outcome in rounds.outcomes if outcome.worst_s > FAILOVER_S]
    assert not late, f"without acknowledgement for more than {FAILOVER_S} s: {late}\n{words}"
    return words


@pytest.mark.figures
def test_signals(tmp_path: Path) -> None:
    print("\n" + run_signals(tmp_path, 2))


@pytest.mark.figures
def test_network_partitions(tmp_path: Path) -> None:
    print("\n" + run_cuts(tmp_path, ["cut off", "unheard", "cut off", "deaf"]))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_signals(tmp_path: Path) -> None:
    print("\n" + run_signals(tmp_path, SOAK_ROUNDS))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_network_partitions(tmp_path: Path) -> None:
    print("\n" + run_cuts(tmp_path, [*CUTS] * SOAK_ROUNDS))
