"""An archive in an object store: written, merged, replayed and audited through a real S3 API on this machine."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")
pytest.importorskip("moto.server", reason="there is no S3 to talk to: pip install 'moto[server]'")

from penstock.client.sync import Admin
from penstock.client.types import TopicPartition
from penstock.pipeline import JobContext
from penstock.pipeline.archive_files import Storage
from penstock.pipeline.archive_job import archive
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_job import audit
from penstock.pipeline.errors import JobFailed, PipelineError
from penstock.pipeline.replay_job import replay
from penstock.testing import Broker
from tests.pipeline.test_crash import content
from tests.pipeline.test_source import fill
from tests.waiting import eventually

TABLE = "s3://archives/orders"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Settings that lead to a bucket. Its server is a process: delta-rs may keep Python's lock while it asks."""
    log = Path(tmp_path_factory.mktemp("s3")) / "log"
    with open(log, "wb") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        url = eventually(lambda: re.search(r"http://127\.0\.0\.1:\d+", log.read_text()), 120)[0]
        urllib.request.urlopen(urllib.request.Request(f"{url}/archives", method="PUT")).close()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }
    finally:
        server.kill()
        server.wait()


def test_an_archive_in_an_object_store(spark: Any, broker: Broker, storage: dict[str, str]) -> None:
    fill(broker, "orders", 1_000, partitions=2)
    with Admin(broker.bootstrap) as admin:
        admin.create_topic("again", 2)
    context = JobContext(broker.bootstrap, spark=spark)
    summary = archive(context, ["orders"], table=TABLE, storage_options=storage, round_records=250)
    assert (summary.rows_archived, summary.rounds) == (1_000, 4)
    assert "merged" in summary.facts
    assert archive(context, ["orders"], table=TABLE, storage_options=storage).rounds == 0
    done = replay(context, table=TABLE, storage_options=storage, mapping={"orders": "again"})
    assert done.rows_replayed == 1_000
    assert content(broker.bootstrap, "again") == content(broker.bootstrap, "orders")
    audited = audit(context, ["orders"], archive=TABLE, storage_options=storage)
    assert audited.passed, audited.rows
    assert audited.facts["archive"] == {"rows": 1_000, "compared": 1_000}


def test_of_two_writers_one_is_refused(storage: dict[str, str]) -> None:
    """S3's conditional writes stand in for a lock."""
    tables = [ArchiveTable(Storage.of("s3://archives/contended", storage)) for _ in range(2)]
    for table in tables:
        table.create("cluster")
    moved = {TopicPartition("orders", 0): 10}
    tables[0].commit([], moved, {"orders": b"i" * 16})
    with pytest.raises(JobFailed, match="somebody else changed"):
        tables[1].commit([], moved, {"orders": b"i" * 16})
    with pytest.raises(PipelineError, match="there is no archive at s3://archives/nothing"):
        ArchiveTable(Storage.of("s3://archives/nothing", storage)).load()
