"""The table of latest values equals a dictionary, however the archive grew and whoever died on the way."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow as pa
from deltalake import DeltaTable

from penstock.client.types import TopicPartition
from penstock.pipeline import JobContext
from penstock.pipeline.archive_files import Storage, write_files
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.compact_job import compact
from penstock.pipeline.compact_table import LatestTable
from penstock.pipeline.errors import PipelineError
from penstock.pipeline.schema import arrow_schema

Record = tuple[str, int, bytes | None, bytes | None]  # topic, partition, key, value
Model = dict[tuple[str, int, bytes], tuple[bytes, int]]

records = st.tuples(
    st.sampled_from(["orders", "users"]),
    st.integers(0, 1),
    st.sampled_from([None, b"", b"a", b"b", b"\xff\x00", *(b"k%d" % n for n in range(20))]),
    st.one_of(st.none(), st.binary(max_size=4)),
)
rounds = st.lists(st.lists(records, max_size=60), min_size=3, max_size=3)


class Archive:
    """An archive that grows without a broker."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._table = ArchiveTable(Storage.of(self.root))
        self._table.create("cluster")
        self._ends: dict[tuple[str, int], int] = {}
        self.model: Model = {}

    def add(self, content: list[Record]) -> None:
        files = []
        for topic in sorted({record[0] for record in content}):
            rows = [self._row(*record) for record in content if record[0] == topic]
            batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(headers=True, batch_info=True))
            files += write_files(self._table.storage, [batch])
        ends = {TopicPartition(*key): end for key, end in self._ends.items()}
        self._table.commit(files, ends, {topic: b"i" * 16 for topic, _ in self._ends})

    def _row(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> dict[str, Any]:
        offset = self._ends.get((topic, partition), 0)
        self._ends[topic, partition] = offset + 1
        if key is not None and value is None:
            self.model.pop((topic, partition, key), None)
        elif key is not None and value is not None:
            self.model[topic, partition, key] = (value, offset)
        names = arrow_schema(headers=True, batch_info=True).names
        given = {"key": key, "value": value, "topic": topic, "partition": partition, "offset": offset, "timestamp": 0}
        return {name: given.get(name, None if name == "headers" else 0) for name in names}


def content(table: Path) -> Model:
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    found = {(row["topic"], row["partition"], row["key"]): (row["value"], row["offset"]) for row in rows}
    assert len(found) == len(rows)
    return found


def check_rounds(spark: Any, base: Path, given_rounds: list[list[Record]]) -> None:
    archive = Archive(base / "archive")
    context = JobContext("localhost:1", spark=spark)  # no broker is asked
    for number, part in enumerate(given_rounds):
        archive.add([("orders", 0, b"always", b"%d" % number), *part])
        summary = compact(context, archive.root, table=str(base / "latest"), buckets=3)
        assert summary.records_read == len(part) + 1
        assert content(base / "latest") == archive.model


def test_equals_a_dictionary_after_every_round(spark: Any, tmp_path: Path) -> None:
    rng = Random(5)
    keys = [None, b"", b"\xff\x00", *(b"k%d" % number for number in range(20))]

    def record() -> Record:
        value = None if rng.random() < 0.3 else rng.randbytes(3)
        return rng.choice(["orders", "users"]), rng.randrange(2), rng.choice(keys), value

    check_rounds(spark, tmp_path, [[record() for _ in range(80)] for _ in range(3)])


@pytest.mark.soak
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds)
def test_equals_a_dictionary_whatever_comes(spark: Any, tmp_path_factory: Any, given_rounds: Any) -> None:
    check_rounds(spark, tmp_path_factory.mktemp("compact"), given_rounds)


def test_only_news_is_read_and_a_crash_changes_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(tmp_path / "archive")
    context = JobContext("localhost:1", spark=spark)
    latest = tmp_path / "latest"
    archive.add([("orders", 0, b"a", b"1"), ("orders", 0, b"b", b"1")])
    compact(context, archive.root, table=str(latest), buckets=2)
    archive.add([("orders", 0, b"a", b"2"), ("orders", 0, b"b", None)])
    before = content(latest)
    commit = LatestTable.commit

    def die(self: LatestTable, *args: Any) -> None:
        raise RuntimeError("dies before the commit")

    monkeypatch.setattr(LatestTable, "commit", die)
    with pytest.raises(RuntimeError, match="dies before"):
        compact(context, archive.root, table=str(latest))
    assert content(latest) == before
    monkeypatch.setattr(LatestTable, "commit", commit)
    summary = compact(context, archive.root, table=str(latest))
    assert (summary.files_read, summary.records_read, summary.keys) == (1, 2, 1)
    assert summary.facts["deleted_keys"] == 1
    assert content(latest) == archive.model == {("orders", 0, b"a"): (b"2", 2)}
    again = compact(context, archive.root, table=str(latest))
    assert (again.files_read, again.title) == (0, "nothing new in the archive")


def test_a_table_belongs_to_one_archive(spark: Any, tmp_path: Path) -> None:
    context = JobContext("localhost:1", dry_run=True)
    mine, other = Archive(tmp_path / "mine"), Archive(tmp_path / "other")
    for archive in (mine, other):
        archive.add([("orders", 0, b"a", b"1")])
    table = LatestTable(Storage.of(str(tmp_path / "latest")))
    table.create(str(DeltaTable(mine.root).metadata().id), 4)
    assert compact(context, mine.root, table=str(tmp_path / "latest")).facts["offsets"] == 1
    with pytest.raises(PipelineError, match="made from another archive"):
        compact(context, other.root, table=str(tmp_path / "latest"))
    with pytest.raises(PipelineError, match="'nowhere' is not in the archive"):
        compact(context, mine.root, table=str(tmp_path / "latest"), topics=["nowhere"])
