"""Topics archived into a Delta table: every record once, also when the job dies on the way."""

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.client.errors import ConnectionFailed
from penstock.client.sync import Admin, Producer
from penstock.client.types import TopicPartition
from penstock.testing import Broker
from tests.pipeline.test_source import fill
from tests.waiting import eventually

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline.archive_files import ArchiveFile, Storage
from penstock.pipeline.archive_job import archive
from penstock.pipeline.archive_merge import plan_merges
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.errors import DataLost, JobFailed, PipelineError
from penstock.pipeline.job import JobContext


def archived(table: Path | str) -> list[tuple[str, int, int, bytes]]:
    content = ArchiveTable(Storage.of(str(table))).load().to_pyarrow_table().to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in content)


def send(broker: Broker, topic: str, *values: bytes) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value=value)
        producer.flush()


def test_many_topics_in_one_table_exactly_once(
    spark: Any, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "arch.a", 700)
    fill(broker, "arch.b", 300, partitions=1)
    context, table = JobContext(broker.bootstrap, spark=spark), tmp_path / "table"

    def run() -> int:
        summary = archive(context, pattern=r"arch\..*", table=str(table), round_records=400, group_id="arch")
        return summary.rows_archived

    commit = ArchiveTable.commit
    deaths = iter(["before", "after"])

    def dying_commit(self: ArchiveTable, files: list[Any], *args: Any) -> None:
        death = next(deaths, None) if files else None
        if death != "before":
            commit(self, files, *args)
        if death is not None:
            raise RuntimeError(f"dies {death} the commit")

    monkeypatch.setattr(ArchiveTable, "commit", dying_commit)
    for death in ("before", "after"):
        with pytest.raises(RuntimeError, match=f"dies {death} the commit"):
            run()
    assert run() == 600
    rows = archived(table)
    assert len(rows) == len(set(rows)) == 1_000
    assert sum(1 for row in rows if row[0] == "arch.b") == 300
    send(broker, "arch.a", b"later")
    assert (run(), run()) == (1, 0)
    assert len(archived(table)) == 1_001
    with Admin(broker.bootstrap) as admin:
        assert sum(position.offset for position in admin.group_offsets("arch").values()) == 1_001


def test_every_column_is_kept_and_small_files_are_merged(spark: Any, broker: Broker, tmp_path: Path) -> None:
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("kept", 1)
    # By a URL the files go through the object stores' way, though the store is a directory.
    context, table = JobContext(broker.bootstrap, spark=spark), f"file://{tmp_path}/table"
    day_ms = 86_400_000
    for number in range(4):
        with Producer(broker.bootstrap) as producer:
            for day in (0, 1):
                headers = [("h", b"1"), ("h", None)]
                producer.send("kept", None, key=b"k", headers=headers, timestamp_ms=number + day * day_ms)
            producer.flush()
        summary = archive(context, ["kept"], table=table)
    assert summary.facts["merged"] == "8 files into 2"
    opened = ArchiveTable(Storage.of(table))
    rows = sorted(opened.load().to_pyarrow_table().to_pylist(), key=lambda row: row["offset"])
    assert [row["offset"] for row in rows] == list(range(8))
    assert {row["day"] for row in rows} == {"1970-01-01", "1970-01-02"}
    assert [(row["key"], row["value"]) for row in rows] == [(b"k", None)] * 8
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert [int(row["timestamp"].timestamp() * 1000) for row in rows[:4]] == [0, day_ms, 1, 1 + day_ms]
    assert {row["producerEpoch"] for row in rows} == {0}
    files = opened.files()
    assert sum(file.rows for file in files) == 8
    assert all((file.first_partition, file.end_partition) == (0, 1) for file in files)
    assert min(file.first_offset for file in files) == 0
    assert max(file.last_timestamp_us for file in files) >= (3 + day_ms) * 1000


def test_a_continuous_archive_sees_new_topics_and_ends_when_told(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "flow.1", 10)
    context, table = JobContext(broker.bootstrap, spark=spark), str(tmp_path / "table")
    stopped = threading.Event()
    seen: list[int] = []
    context.progress = lambda stage, done, total=None, unit="records": seen.append(done)
    settings: dict[str, Any] = {"start": "latest", "round_seconds": 0.05, "continuous": True, "stopped": stopped}
    running = threading.Thread(target=lambda: archive(context, pattern=r"flow\..*", table=table, **settings))
    running.start()
    try:
        opened = ArchiveTable(Storage.of(table))
        start = [TopicPartition("flow.1", number) for number in range(3)]
        eventually(lambda: opened.exists() and opened.load() and len(opened.positions(start)) == 3, 30)
        send(broker, "flow.1", b"after the start")
        fill(broker, "flow.2", 20, partitions=1)
        eventually(lambda: seen and seen[-1] == 21, 60)
    finally:
        stopped.set()
        running.join(60)
    rows = archived(table)
    assert [row[3] for row in rows if row[0] == "flow.1"] == [b"after the start"]
    assert sum(1 for row in rows if row[0] == "flow.2") == 20


def test_what_cannot_be_archived_is_said(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "there", 1)
    context, table = JobContext(broker.bootstrap, spark=spark), str(tmp_path / "table")
    with pytest.raises(PipelineError, match="nowhere"):
        archive(context, ["nowhere"], table=table)
    with pytest.raises(PipelineError, match=r"no topic matches 'nothing\.\*' at 127"):
        archive(context, pattern="nothing.*", table=table)
    with pytest.raises(ConnectionFailed):
        archive(JobContext("127.0.0.1:1"), ["any"], table=table)
    (tmp_path / "file").touch()
    with pytest.raises(PipelineError, match=r"the archive at .*/file cannot be reached: "):
        archive(context, ["there"], table=str(tmp_path / "file"))
    fill(broker, "again", 10, partitions=1)
    planned = archive(JobContext(broker.bootstrap, dry_run=True), ["again"], table=table)
    assert planned.facts["waiting"] == 10
    assert not Path(table).exists()
    archive(context, ["again"], table=table)
    with Broker() as other:
        fill(other, "again", 1)
        with pytest.raises(PipelineError, match=r"is of cluster \S+, and this is cluster"):
            archive(JobContext(other.bootstrap), ["again"], table=table)
    with Admin(broker.bootstrap) as admin:
        admin.delete_topic("again")
        eventually(lambda: "again" not in {topic.name for topic in admin.list_topics()}, 10)
    fill(broker, "again", 20, partitions=1)
    with pytest.raises(PipelineError, match="'again' was deleted and created again since it was archived"):
        archive(context, ["again"], table=table)


def test_records_lost_to_retention_are_named(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "short", 50, partitions=1)
    context, table = JobContext(broker.bootstrap, spark=spark), str(tmp_path / "table")
    archive(context, ["short"], table=table)
    send(broker, "short", *[b"x"] * 10)
    with Admin(broker.bootstrap) as admin:
        admin.delete_records({TopicPartition("short", 0): 55})
    with pytest.raises(DataLost, match="offsets 50 to 54 of short-0 are gone"):
        archive(context, ["short"], table=table)
    assert archive(context, ["short"], table=table, fail_on_data_loss=False).rows_archived == 5


def test_two_archives_of_one_topic_do_not_both_commit(spark: Any, broker: Broker, tmp_path: Path) -> None:
    fill(broker, "twice", 10, partitions=1)
    first, second = (ArchiveTable(Storage.of(str(tmp_path / "table"))) for _ in range(2))
    for table in (first, second):
        table.create("c")
    position = {TopicPartition("twice", 0): 10}
    first.commit([], position, {"twice": bytes(16)})
    with pytest.raises(JobFailed, match="somebody else changed the archive"):
        second.commit([], position, {"twice": bytes(16)})


def test_merges_take_small_neighbours(tmp_path: Path) -> None:
    storage = Storage.of(str(tmp_path))

    def file(name: str, size: int, offset: int, day: str = "1970-01-01") -> ArchiveFile:
        return ArchiveFile(name, size, 1, "t", day, 0, 1, offset, offset + 1, 0, 0)

    sizes = [10, 10, 90, 40, 40, 10]
    files = [file(f"f{number}", size, number) for number, size in enumerate(sizes)]
    merges = plan_merges(storage, [*reversed(files), file("alone", 1, 0, "1970-01-02")], 100)
    assert [[found.path for found in merge.files] for merge in merges] == [["f0", "f1", "f3", "f4"]]
    assert plan_merges(storage, files[:3], 100) == []
