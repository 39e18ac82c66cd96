"""What `penstock cluster up` writes for its members."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.cluster_up import plan_members, run_cluster, write_configuration
from penstock.cli.exits import Failure
from penstock.cli.main import cli
from penstock.cli.node_settings import refuse_part_of_data
from penstock.metadata.settings import BrokerSettings
from penstock.node.identity import DirectoryLock


def test_ports_and_names(tmp_path: Path) -> None:
    members = plan_members(3, 9092, tmp_path)
    assert [(m.node_id, m.port, m.name) for m in members] == [
        (1, 9092, "broker-1"),
        (2, 9094, "broker-2"),
        (3, 9096, "broker-3"),
    ]


def test_configurations_are_settings_that_a_broker_takes(tmp_path: Path) -> None:
    members = plan_members(3, 19092, tmp_path / "data")
    write_configuration(members, tmp_path / "data", {"flush.mode": "os", "broker.rack": 'a "rack"'})
    first = [member.config_file.read_text() for member in members]
    settings = [BrokerSettings.from_mapping(tomllib.loads(text)) for text in first]
    assert [each.node_id for each in settings] == [1, 2, 3]
    assert len({each.cluster_id for each in settings}) == 1
    assert {each.flush_mode for each in settings} == {"os"}
    assert settings[0].broker_rack == 'a "rack"'
    assert settings[1].controller_listener_set == {"CONTROLLER"}
    assert settings[2].controller_quorum_voters == (
        "1@127.0.0.1:19093",
        "2@127.0.0.1:19095",
        "3@127.0.0.1:19097",
    )
    write_configuration(members, tmp_path / "data", {"flush.mode": "os", "broker.rack": 'a "rack"'})
    assert [member.config_file.read_text() for member in members] == first, "a second start is the same cluster"


@pytest.mark.parametrize("name", ["meta.properties", "__cluster_metadata-0"])
def test_data_of_a_single_node_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(Failure, match="the data of a single node") as refused:
        run_cluster(3, 19092, str(tmp_path), {})
    assert f"penstock up --data {tmp_path}" in refused.value.hint
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_data_of_both_kinds_can_be_parted(tmp_path: Path) -> None:
    """As an older release left them."""
    (tmp_path / "meta.properties").write_text("")
    write_configuration(plan_members(1, 19092, tmp_path), tmp_path, {})
    with pytest.raises(Failure, match="penstock cluster up") as refused:
        refuse_part_of_data(BrokerSettings.from_mapping({"log.dirs": str(tmp_path)}), 1)
    assert "are moved away" in refused.value.hint


def made(data: Path, brokers: int) -> dict[str, str]:
    """A cluster that has run; answers what its files say."""
    write_configuration(plan_members(brokers, 19092, data), data, {})
    for node_id in range(1, brokers + 1):
        (data / f"broker-{node_id}").mkdir()
        (data / f"broker-{node_id}" / "meta.properties").write_text("")
    return files_of(data)


def files_of(data: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in data.iterdir() if path.suffix in (".toml", ".id")}


@pytest.mark.parametrize("used", ["", "broker-2"])
def test_files_of_members_that_run_stay_as_they_are(tmp_path: Path, used: str) -> None:
    before = made(tmp_path, 3)
    lock = DirectoryLock(str(tmp_path / used))
    with pytest.raises(Failure, match="in use by another process"):
        run_cluster(4, 29092, str(tmp_path), {})
    lock.release()
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("wrong", ["no.such.setting=1", "num.partitions=many", "node.id=7", "cluster.id=other"])
def test_a_mistake_in_a_setting_is_told_and_not_kept(tmp_path: Path, wrong: str) -> None:
    before = made(tmp_path, 2)
    result = CliRunner().invoke(cli, ["cluster", "up", "-n", "2", "--data", str(tmp_path), "--set", wrong])
    assert result.exit_code == 2
    assert "start it again" not in result.output
    assert files_of(tmp_path) == before


def test_a_mistake_in_a_setting_makes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        run_cluster(3, 19092, str(tmp_path / "new"), {"no.such.setting": "1"})
    assert not (tmp_path / "new").exists()


def test_fewer_brokers_than_have_data_are_refused(tmp_path: Path) -> None:
    before = made(tmp_path, 4)
    with pytest.raises(Failure, match="data of broker 3, 4, which would be left out") as refused:
        run_cluster(2, 19092, str(tmp_path), {})
    assert refused.value.hint.startswith("use --brokers 4.")
    assert files_of(tmp_path) == before


def test_a_cluster_id_may_be_given_to_a_new_cluster(tmp_path: Path) -> None:
    members = plan_members(2, 19092, tmp_path)
    write_configuration(members, tmp_path, {"cluster.id": "mine"})
    write_configuration(members, tmp_path, {})
    assert (tmp_path / "cluster.id").read_text() == "mine\n"
    assert tomllib.loads(members[1].config_file.read_text())["cluster.id"] == "mine"


def test_settings_that_processes_cannot_share_are_moved(tmp_path: Path) -> None:
    members = plan_members(3, 19092, tmp_path)
    given = {
        "metrics.listener": "127.0.0.1:9404",
        "advertised.listeners": "PLAINTEXT://outside:9092",
        "metadata.log.dir": str(tmp_path / "m"),
    }
    write_configuration(members, tmp_path, given)
    settings = [BrokerSettings.from_mapping(tomllib.loads(each.config_file.read_text())) for each in members]
    assert [each.metrics_listener for each in settings] == ["127.0.0.1:9404", "127.0.0.1:9405", "127.0.0.1:9406"]
    assert settings[2].advertised_listeners == ("PLAINTEXT://outside:19096",)
    assert settings[1].metadata_log_dir == str(tmp_path / "m" / "broker-2")
    with pytest.raises(Failure, match="is not host:port"):
        write_configuration(members, tmp_path, {"metrics.listener": "here"})
