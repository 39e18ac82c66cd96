"""What `penstock cluster up` writes for its members."""

import tomllib
from pathlib import Path

import pytest

from penstock.cli.cluster_up import plan_members, run_cluster, write_configuration
from penstock.cli.exits import Failure
from penstock.cli.node_settings import refuse_part_of_data
from penstock.metadata.settings import BrokerSettings


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
