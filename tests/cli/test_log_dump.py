"""`log dump` on files that a broker wrote."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from penstock.cli.main import cli
from penstock.client import Admin, Consumer, Producer
from penstock.testing import Broker


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a topic of several segments, a group, and metadata."""
    directory = tmp_path_factory.mktemp("dump") / "data"

    async def fill(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            await admin.create_topic("orders", 1, configs={"segment.bytes": "1048576", "index.interval.bytes": "100"})
        async with Producer(bootstrap, compression="lz4") as producer:
            for number in range(3):
                await producer.send_and_wait("orders", f"value {number}", f"key {number}", headers=[("h", b"1")])
        async with Consumer(bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe("orders")
            await consumer.poll(5_000)

    with Broker(data_dir=directory) as broker:
        asyncio.run(fill(broker.bootstrap))
    return directory


def dump(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["log", "dump", *map(str, arguments)])


def rows(*arguments: str | Path) -> list[dict[str, Any]]:
    result = dump(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_batches_and_records(data: Path) -> None:
    segment = data / "orders-0" / "00000000000000000000.log"
    found = rows(segment, "--records")
    batches = [row for row in found if row["kind"] == "batch"]
    assert [b["base_offset"] for b in batches] == [0, 1, 2]
    assert {b["codec"] for b in batches} == {"lz4"}
    assert [b["base_sequence"] for b in batches] == [0, 1, 2]
    records = [row for row in found if row["kind"] == "record"]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [(n, f"key {n}", f"value {n}") for n in range(3)]
    assert records[0]["headers"] == [{"name": "h", "value": "1"}]
    text = dump(segment, "-r").stdout
    assert text.splitlines()[0] == str(segment)
    assert 'key="key 0"' in text


def test_the_metadata_log_speaks(data: Path) -> None:
    found = rows(data / "__cluster_metadata-0", "-r")
    topics = [row for row in found if row.get("type") == "TopicRecord"]
    assert [t["name"] for t in topics if not t["name"].startswith("__")] == ["orders"]
    assert any(row.get("control") == "leader change" for row in found)


def test_the_offsets_topic_speaks(data: Path) -> None:
    found = [row for part in sorted(data.glob("__consumer_offsets-*")) for row in rows(part, "-r")]
    keys = {row["key"]["type"] for row in found if row["kind"] == "record"}
    assert keys == {"GroupMetadataKey", "OffsetCommitKey"}
    commits = [row for row in found if row["kind"] == "record" and row["key"]["type"] == "OffsetCommitKey"]
    assert commits[-1]["key"]["group"] == "readers"
    assert commits[-1]["value"]["offset"] == 3


def test_a_whole_directory_and_its_small_files(data: Path) -> None:
    kinds = {row["kind"] for row in rows(data)}
    assert {"batch", "line"} <= kinds
    metadata = dump(data / "meta.properties").stdout
    assert "cluster.id" in metadata
    snapshots = list((data / "orders-0").glob("*.snapshot"))
    for snapshot in snapshots:
        (producer,) = rows(snapshot)
        assert (producer["kind"], producer["last_sequence"]) == ("producer", 2)
    for index in (data / "orders-0").glob("*index"):
        rows(index)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda raw: raw[:-1], "cut off"),
        (lambda raw: raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:], "CRC mismatch"),
        (lambda raw: raw + b"\0" * 20, "too few"),
        (lambda raw: raw + raw, "offsets go back"),
        (lambda raw: raw + b"x" * 100, "format version"),
    ],
)
def test_damage_is_found(data: Path, tmp_path: Path, damage: Any, words: str) -> None:
    copy = tmp_path / "orders-0" / "00000000000000000000.log"
    copy.parent.mkdir()
    copy.write_bytes(damage((data / "orders-0" / "00000000000000000000.log").read_bytes()))
    result = dump(copy, "-r")
    assert result.exit_code == 1
    assert words in result.stderr
    assert "problem" in result.stderr
    assert result.stdout.count("batch ") >= 2


def test_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"x")
    assert dump(tmp_path / "picture.png").exit_code == 1
    assert dump(tmp_path / "nothing").exit_code == 2
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    assert dump(tmp_path / "00000000000000000000.log").exit_code == 0
