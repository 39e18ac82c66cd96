"""`topic`, `config` and `cluster`."""

import json

from tests.cli.conftest import Invoke


def test_a_topic_from_creation_to_deletion(penstock: Invoke, name: str) -> None:
    made = penstock("topic", "create", name, "--partitions", "2", "--config", "retention.ms=60000")
    assert (made.exit_code, made.stdout) == (0, "")
    assert "2 partitions" in made.stderr
    listed = json.loads(penstock("topic", "list", "-o", "json").stdout)
    assert {"partitions": 2, "replication_factor": 1, "is_internal": False}.items() <= next(
        topic for topic in listed if topic["name"] == name
    ).items()
    table = penstock("topic", "list").stdout
    assert table.splitlines()[0].split() == ["name", "partitions", "replication", "factor", "topic", "id"]
    (described,) = json.loads(penstock("topic", "describe", name, "-o", "json").stdout)
    assert described["configs"] == {"retention.ms": "60000"}
    assert [p["end_offset"] for p in described["partitions"]] == [0, 0]
    altered = penstock("topic", "alter", name, "--partitions", "3", "--unset", "retention.ms")
    assert altered.exit_code == 0
    shown = penstock("topic", "describe", name)
    assert "settings all default" in shown.stdout
    assert len(shown.stdout.splitlines()) == 5
    assert penstock("topic", "delete", name, stdin="n\n").exit_code == 1
    assert penstock("topic", "delete", name, stdin="y\n").exit_code == 0
    assert penstock("topic", "describe", name).exit_code == 1


def test_refusals_come_with_a_hint(penstock: Invoke, name: str) -> None:
    assert penstock("topic", "create", name).exit_code == 0
    again = penstock("topic", "create", name)
    assert again.exit_code == 1
    assert again.stderr.splitlines()[0].startswith("error: ")
    assert again.stderr.splitlines()[1].startswith("hint: ")
    assert penstock("topic", "create", name, "--if-not-exists").exit_code == 0
    assert penstock("topic", "create", "no spaces").exit_code == 1
    assert penstock("topic", "create", f"{name}-2", "--config", "retention.mss=1").exit_code == 1
    assert penstock("topic", "create", f"{name}-2", "--validate-only").exit_code == 0
    assert penstock("topic", "describe", f"{name}-2").exit_code == 1


def test_wrong_usage_is_exit_code_2(penstock: Invoke, name: str) -> None:
    for arguments in (
        ["topic", "create"],
        ["topic", "create", name, "--partitions", "0"],
        ["topic", "create", name, "--config", "no-equals-sign"],
        ["topic", "alter", name],
        ["topic", "nonsense"],
        ["nonsense"],
        ["config", "describe", "planet", "earth"],
        ["topic", "list", "-b", "not:a:port:at:all:x", "-o", "yaml"],
    ):
        result = penstock(*arguments)
        assert result.exit_code == 2, arguments
        assert result.stderr.startswith("error: "), arguments
        assert "\nhint: " in result.stderr, arguments


def test_nobody_there_is_exit_code_3(penstock: Invoke) -> None:
    for arguments in (["topic", "list"], ["cluster", "describe"], ["consume", "t"], ["group", "list"]):
        result = penstock(*arguments, bootstrap="127.0.0.1:1")
        assert result.exit_code == 3, arguments
        assert "penstock up" in result.stderr
        assert result.stdout == ""
    assert penstock("topic", "list", "--bootstrap", "host:port").exit_code == 2


def test_settings_are_set_and_unset(penstock: Invoke, name: str) -> None:
    penstock("topic", "create", name)
    assert penstock("config", "set", "topic", name, "retention.ms=5000", "cleanup.policy=delete").exit_code == 0
    rows = json.loads(penstock("config", "describe", "topic", name, "-o", "json").stdout)
    assert {row["name"]: row["value"] for row in rows} == {"retention.ms": "5000", "cleanup.policy": "delete"}
    assert penstock("config", "unset", "topic", name, "retention.ms", "cleanup.policy").exit_code == 0
    nothing = penstock("config", "describe", "topic", name)
    assert (nothing.stdout, nothing.exit_code) == ("", 0)
    everything = penstock("config", "describe", "topic", name, "--all", "--docs").stdout
    assert "retention.ms" in everything
    assert penstock("config", "set", "topic", name, "retention.ms=never").exit_code == 1
    assert penstock("config", "describe", "broker", "1", "--all").exit_code == 0


def test_settings_of_all_brokers(penstock: Invoke) -> None:
    result = penstock("config", "set", "broker", "", "log.retention.ms=3600000")
    assert result.stderr == "all brokers: log.retention.ms=3600000\n"
    rows = json.loads(penstock("config", "describe", "broker", "", "--output", "json").stdout)
    assert [(row["name"], row["value"]) for row in rows] == [("log.retention.ms", "3600000")]
    assert penstock("config", "unset", "broker", "", "log.retention.ms").exit_code == 0


def test_the_cluster_is_described(penstock: Invoke, broker: object) -> None:
    found = json.loads(penstock("cluster", "describe", "-o", "json").stdout)
    assert [b["controller"] for b in found["brokers"]] == [True]
    (voter,) = found["quorum"]
    assert (voter["id"], voter["role"], voter["lag"], voter["behind_ms"]) == (1, "leader", 0, 0)
    assert "node 1 is the active controller" in penstock("cluster", "describe").stdout
    assert found["cluster_id"] in penstock("cluster", "describe").stdout
