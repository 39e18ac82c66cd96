"""What `penstock up --brokers N` makes of its settings: ports, roles and directories, and what it refuses."""

import socket
import tomllib
from pathlib import Path

import pytest

from penstock.cli.exits import Failure
from penstock.cli.members import write_member
from penstock.cli.node_settings import refuse_part_of_data
from penstock.cli.supervisor import pause_before
from penstock.cli.up_brokers import HostPlan, listen, plan_host
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings


def plan(data: Path, brokers: int = 2, **given: str) -> HostPlan:
    names = {name.replace("_", "."): value for name, value in given.items()}
    return plan_host(BrokerSettings.from_mapping({"log.dirs": str(data), **names}), brokers)


def settings_of(made: HostPlan, given: dict[str, object]) -> list[BrokerSettings]:
    """As the brokers read them from their files."""
    for member, own in zip(made.members, made.settings, strict=True):
        write_member(member, {**given, **own})
    return [BrokerSettings.from_mapping(tomllib.loads(member.config_file.read_text())) for member in made.members]


def test_brokers_of_a_host_differ_in_what_they_cannot_share(tmp_path: Path) -> None:
    given: dict[str, object] = {
        "metrics.listener": "127.0.0.1:9400",
        "advertised.listeners": "PLAINTEXT://outside:9092",
        "log.dirs": [str(tmp_path / "a"), str(tmp_path / "b")],
        "auto.create.topics.enable": False,
    }
    first, second, third = settings_of(plan_host(BrokerSettings.from_mapping(given), 3), given)
    assert first.listeners == ("PLAINTEXT://:9094", "CONTROLLER://127.0.0.1:9093")
    assert (second.listeners, third.listeners) == (("PLAINTEXT://:9095",), ("PLAINTEXT://:9096",))
    assert [each.node_id for each in (first, second, third)] == [1, 2, 3]
    assert [each.is_controller for each in (first, second, third)] == [True, False, False]
    assert {each.controller_quorum_voters for each in (first, second, third)} == {("1@127.0.0.1:9093",)}
    assert {each.broker_host for each in (first, second, third)} == {socket.gethostname()}
    assert len({each.cluster_id for each in (first, second, third)}) == 1
    assert first.log_dirs == (str(tmp_path / "a"), str(tmp_path / "b")), "as a single broker has them"
    assert third.log_dirs == (str(tmp_path / "a/brokers/3"), str(tmp_path / "b/brokers/3"))
    assert [each.metrics_listener for each in (first, third)] == ["127.0.0.1:9400", "127.0.0.1:9402"]
    assert second.advertised_listeners == ("PLAINTEXT://outside:9095",)
    assert not third.auto_create_topics_enable


def test_several_hosts_make_one_cluster(tmp_path: Path) -> None:
    voters = "10@one:9093,20@two:9093,30@three:9093"
    listeners = "PLAINTEXT://:9092,CONTROLLER://:9093"
    voting = plan(tmp_path, node_id="20", controller_quorum_voters=voters, listeners=listeners)
    assert voting.settings[0]["listeners"] == ["PLAINTEXT://:9094", "CONTROLLER://:9093"]
    assert [own["process.roles"] for own in voting.settings] == [["broker", "controller"], ["broker"]]
    assert all("cluster.id" not in own for own in voting.settings), "those with the same list agree on it"
    following = plan(tmp_path, node_id="40", controller_quorum_voters=voters)
    assert [own["process.roles"] for own in following.settings] == [["broker"], ["broker"]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listeners": "PLAINTEXT://:0"}, "0 will not do"),
        ({"listeners": "A://:1,B://:2", "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT"}, "exactly one"),
        ({"controller_quorum_voters": "1@h:9093,2@h:9095"}, "which all are on this host"),
        ({"controller_quorum_voters": "1@h:9093"}, "has no listener for it"),
    ],
)
def test_what_does_not_fit_several_brokers_is_refused(tmp_path: Path, given: dict[str, str], why: str) -> None:
    with pytest.raises(Failure, match=why):
        plan(tmp_path, **given)


def test_fewer_brokers_than_have_data_are_refused_and_more_are_new(tmp_path: Path) -> None:
    settings = BrokerSettings.from_mapping({"log.dirs": str(tmp_path)})
    made = plan(tmp_path, 3)
    assert made.new == [], "the cluster is new, not its brokers"
    settings_of(made, {})
    refuse_part_of_data(settings, 3)
    with pytest.raises(Failure, match="data of broker 3,") as refused:
        refuse_part_of_data(settings, 2)
    assert "cluster drain 3" in refused.value.hint
    with pytest.raises(Failure, match="data of broker 2, 3,"):
        refuse_part_of_data(settings, 1)
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
    grown = plan(tmp_path, 4)
    assert grown.new == [4]
    assert {own["cluster.id"] for own in grown.settings} == {"c"}


def test_a_cluster_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broker-1.toml").write_text("")
    with pytest.raises(Failure, match="penstock cluster up"):
        refuse_part_of_data(BrokerSettings.from_mapping({"log.dirs": str(tmp_path)}), 2)


def test_the_shared_address_is_taken_once() -> None:
    with listen(Listener("PLAINTEXT", "127.0.0.1", 0))[0] as first:
        port = first.getsockname()[1]
        with pytest.raises(Failure, match=f"cannot listen on 127.0.0.1:{port}"):
            listen(Listener("PLAINTEXT", "127.0.0.1", port))


def test_pauses_grow_up_to_a_limit() -> None:
    assert [pause_before(deaths) for deaths in (1, 2, 3, 4)] == [0.0, 0.5, 1.0, 2.0]
    assert pause_before(1000) == 30.0
