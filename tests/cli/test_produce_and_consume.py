"""`produce` and `consume`."""

import json
from pathlib import Path

import pytest

from penstock.cli.consume import parse_start
from penstock.cli.exits import Failure
from tests.cli.conftest import Invoke


@pytest.fixture
def topic(penstock: Invoke, name: str) -> str:
    assert penstock("topic", "create", name, "--partitions", "1").exit_code == 0
    return name


def values(penstock: Invoke, *arguments: str) -> list[str]:
    result = penstock("consume", *arguments, "-o", "raw")
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines()


def test_lines_in_lines_out(penstock: Invoke, topic: str) -> None:
    sent = penstock("produce", topic, stdin="one\ntwo\r\nthree")
    assert (sent.exit_code, sent.stdout) == (0, "")
    assert "3 records" in sent.stderr
    assert values(penstock, topic) == ["one", "two", "three"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codecs_and_acks(penstock: Invoke, topic: str, codec: str) -> None:
    lines = "".join(f"line {n}\n" for n in range(500))
    assert penstock("produce", topic, "--compression", codec, "--acks", "1", stdin=lines).exit_code == 0
    assert values(penstock, topic) == lines.splitlines()


def test_keys_headers_and_tombstones(penstock: Invoke, topic: str) -> None:
    sent = penstock("produce", topic, "-K", ":", "-H", "a=1", "--null-marker", "-", stdin="k1:v:1\nk2:-\n:x\n")
    assert sent.exit_code == 0
    shown = [json.loads(line) for line in penstock("consume", topic, "-o", "json").stdout.splitlines()]
    assert [(r["key"], r["value"]) for r in shown] == [("k1", "v:1"), ("k2", None), ("", "x")]
    assert shown[0]["headers"] == [{"name": "a", "value": "1"}]
    assert {"topic", "partition", "offset", "timestamp_ms", "timestamp"} <= shown[0].keys()
    assert values(penstock, topic, "-K", "=") == ["k1=v:1", "k2=", "=x"]
    table = penstock("consume", topic).stdout.splitlines()
    assert table[1].split()[:2] == ["0", "1"]
    assert table[1].split()[3:] == ["k2", "null", "[a=1]"]


def test_a_line_without_the_separator_stops(penstock: Invoke, topic: str) -> None:
    result = penstock("produce", topic, "-K", ":", stdin="k:v\nnonsense\n")
    assert result.exit_code == 1
    assert "line 2" in result.stderr
    assert penstock("produce", topic, "-K", ":", "-k", "x", stdin="").exit_code == 2


def test_bytes_are_kept(penstock: Invoke, topic: str, tmp_path: Path) -> None:
    source = tmp_path / "lines"
    source.write_bytes(b"\xff\xfe\x00\nplain\n")
    assert penstock("produce", topic, "--file", str(source), "-k", "key").exit_code == 0
    first, second = (json.loads(line) for line in penstock("consume", topic, "-o", "json").stdout.splitlines())
    assert (first["key"], first["value_base64"]) == ("key", "//4A")
    assert second["value"] == "plain"
    assert "\\xff" in penstock("consume", topic).stdout


def test_where_to_begin_and_when_to_stop(penstock: Invoke, topic: str) -> None:
    penstock("produce", topic, stdin="".join(f"{n}\n" for n in range(10)))
    assert values(penstock, topic, "--from", "7") == ["7", "8", "9"]
    assert values(penstock, topic, "--from", "-2") == ["8", "9"]
    assert values(penstock, topic, "--from", "beginning", "--max", "2") == ["0", "1"]
    assert values(penstock, topic, "--from", "end") == []
    assert values(penstock, topic, "--from", "time:-1h", "-n", "1") == ["0"]
    assert values(penstock, topic, "--from", "2100-01-01") == []
    assert values(penstock, topic, "--follow", "--from", "5", "--max", "5") == ["5", "6", "7", "8", "9"]
    assert values(penstock, topic, "--follow", "--from", "9", "--timeout", "0.1") == ["9"]
    assert values(penstock, topic, "--partition", "0", "-n", "1") == ["0"]
    assert penstock("consume", topic, "--partition", "4").exit_code == 1
    assert penstock("consume", topic, "--from", "nowhere").exit_code == 2


def test_a_group_goes_on_where_it_was(penstock: Invoke, topic: str) -> None:
    penstock("produce", topic, stdin="a\nb\nc\n")
    assert values(penstock, topic, "--group", topic, "--max", "2") == ["a", "b"]
    assert values(penstock, topic, "--group", topic) == ["c"]
    assert values(penstock, topic, "--group", topic) == []
    assert values(penstock, topic, "--group", topic, "--from", "beginning") == ["a", "b", "c"]


def test_a_topic_that_is_not_there(penstock: Invoke, name: str) -> None:
    for command in ("consume", "produce"):
        result = penstock(command, name, stdin="x\n")
        assert result.exit_code == 1
        assert "does not exist" in result.stderr
        assert "topic create" in result.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", ("beginning", 0)),
        ("latest", ("end", 0)),
        ("17", ("offset", 17)),
        ("offset 17", ("offset", 17)),
        ("offset:17", ("offset", 17)),
        ("-17", ("back", 17)),
        ("time:1970-01-01T00:00:01Z", ("time", 1000)),
        ("1970-01-01T00:00:01Z", ("time", 1000)),
        ("time:1700000000000", ("time", 1700000000000)),
    ],
)
def test_places(text: str, expected: tuple[str, int]) -> None:
    assert parse_start(text) == expected


def test_what_is_no_place() -> None:
    with pytest.raises(Failure, match="not a place"):
        parse_start("sometime")
