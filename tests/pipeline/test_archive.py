"""Topics archived into a Delta table: every record once, also when the job dies on the way."""

from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync import Producer
from penstock.testing import Broker
from tests.pipeline.test_source import fill

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

from penstock.pipeline.archive import ArchiveJob, archive
from penstock.pipeline.archive_files import ArchiveTable


def archived(table: Path) -> list[tuple[str, int, int, bytes]]:
    content = ArchiveTable(str(table)).open().to_pyarrow_table().to_pylist()
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in content)


def test_many_topics_in_one_table_exactly_once(
    spark: Any, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "arch.a", 700)
    fill(broker, "arch.b", 300, partitions=1)
    table = tmp_path / "table"
    job = ArchiveJob(broker.bootstrap, r"arch\..*", True, str(table), max_offsets_per_trigger=400)
    commit = ArchiveTable.commit
    deaths = iter(["before", "after"])

    def dying_commit(self: ArchiveTable, *args: Any) -> None:
        death = next(deaths, None)
        if death == "after":
            commit(self, *args)
        if death is not None:
            raise RuntimeError(f"dies {death} the commit")
        commit(self, *args)

    monkeypatch.setattr(ArchiveTable, "commit", dying_commit)
    for death in ("before", "after"):
        with pytest.raises(Exception, match=f"dies {death} the commit"):
            archive(spark, job)
    archive(spark, job)
    rows = archived(table)
    assert len(rows) == len(set(rows)) == 1_000
    assert sum(1 for row in rows if row[0] == "arch.b") == 300
    with Producer(broker.bootstrap) as producer:
        producer.send("arch.a", value=b"later")
        producer.flush()
    assert archive(spark, job).rows == 1
    assert archive(spark, job).rows == 0
    assert len(archived(table)) == 1_001
