"""Real clients write, the audit passes; then logs and archive are damaged on disk, and every damage is named."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from crc32c import crc32c

from penstock.cli.main import cli
from penstock.client.audit import AuditOptions
from penstock.client.sync import Admin, Producer
from penstock.client.types import LATEST, TopicPartition
from penstock.records.batch import BatchHeader, iter_headers
from penstock.testing import Broker

pytest.importorskip("deltalake", reason="the pipeline's libraries are not installed: pip install penstock[pipeline]")

import pyarrow.parquet as pq

from penstock.pipeline import JobContext
from penstock.pipeline.archive_files import Storage
from penstock.pipeline.archive_job import archive
from penstock.pipeline.archive_table import ArchiveTable
from penstock.pipeline.audit_job import AuditSummary, audit
from penstock.pipeline.errors import PipelineError

TOPICS = ["plain", "exact", "counted", "stamped", "trimmed", "squeezed"]
AUDIT = AuditOptions("__counters", interval_ms=3_600_000, window_ms=1_000)


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Its files are damaged here."""
    with Broker({"log.cleaner.backoff.ms": "200"}, data_dir=tmp_path_factory.mktemp("audited")) as running:
        write_everything(running)
        yield running


def write_everything(broker: Broker) -> None:
    with Admin(broker.bootstrap) as admin:
        for name in ("plain", "exact", "counted", "trimmed"):
            admin.create_topic(name, 2 if name == "exact" else 1)
        admin.create_topic("stamped", 1, configs={"message.timestamp.type": "LogAppendTime"})
        admin.create_topic("squeezed", 1, configs={"cleanup.policy": "compact"})
        write_plain(broker)
        write_transactions(broker)
        with Producer(broker.bootstrap, client_id="shop", audit=AUDIT) as producer:
            for number in range(200):
                producer.send("counted", f"order {number}".encode(), key=str(number))
                if not number % 50:
                    producer.flush()
            for name in ("trimmed", "stamped", "squeezed"):
                for number in range(30):
                    producer.send_and_wait(name, b"x" if number else None, key=str(number % 3), headers=[("h", None)])
        admin.delete_records({("trimmed", 0): 12})


def write_plain(broker: Broker) -> None:
    """Idempotent, in batches of ten."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(100):
        producer.produce("plain", f"value {number}", key=str(number))
        if number % 10 == 9:
            producer.flush()


def write_transactions(broker: Broker) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "audited"})
    producer.init_transactions()
    for round_ in range(4):
        producer.begin_transaction()
        for number in range(20):
            producer.produce("exact", f"{round_}/{number}", partition=number % 2)
        producer.flush()
        (producer.abort_transaction if round_ % 2 else producer.commit_transaction)()


def run(spark: Any, broker: Broker, topics: list[str], **options: Any) -> AuditSummary:
    return audit(JobContext(broker.bootstrap, spark=spark), topics, audit_topic=AUDIT.topic, **options)


def rewrite_log(broker: Broker, topic: str, change: Callable[[list[tuple[BatchHeader, bytearray]]], None]) -> None:
    """Lets `change` have its way with the batches of a stopped broker's partition 0."""
    path = broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    data = path.read_bytes()
    batches = [(header, bytearray(data[pos : pos + header.size_bytes])) for pos, header in iter_headers(data)]
    change(batches)
    path.write_bytes(b"".join(batch for _, batch in batches))


def patch_crc(batch: bytearray) -> None:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")


def test_what_real_clients_wrote_passes(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    context = JobContext(own_broker.bootstrap, spark=spark)
    table = str(tmp_path / "table")
    archive(context, TOPICS, table=table)
    page, report = tmp_path / "audit.html", tmp_path / "audit.json"
    summary = run(spark, own_broker, TOPICS, archive=table, html=str(page), json=str(report))
    assert summary.passed, summary.rows
    assert "retention_hole" in summary.kinds()
    facts = summary.facts
    # 40 of 80 were aborted, in both partitions, and each of the four transactions left a marker in both.
    assert (facts["aborted"], facts["open"], facts["markers"]) == (40, 0, 8)
    assert facts["records"] == 100 + 40 + 200 + 18 + 30 + 30
    assert facts["cells_of_counters"] >= 4
    said = json.loads(report.read_text())
    assert said["passed"] is True
    assert said["latencies_ms"]["stamped: create to append"]["records"] == 30
    # The archive commits how far it is, like any group.
    assert said["latencies_ms"]["plain: create to commit by penstock-archive-table"]["commits"] == 1
    assert said["latencies_ms"]["counted: send to acknowledgement"]["records"] == 200
    html = page.read_text()
    assert "Passed: nothing is lost" in html
    assert "<svg" in html


def test_a_damaged_archive_is_found(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    table = tmp_path / "table"
    context = JobContext(own_broker.bootstrap, spark=spark)
    archive(context, ["plain", "exact", "counted"], table=str(table))
    by_topic = {file.topic: table / file.path for file in files_of(table)}
    rows = pq.read_table(by_topic["plain"])
    pq.write_table(rows.slice(0, 42).take([*range(41), 40]), by_topic["plain"])  # loses 41 and more, doubles 40
    values = pq.read_table(by_topic["counted"])
    changed = values.set_column(
        values.schema.get_field_index("value"),
        "value",
        [[b"?" if n == 7 else v.as_py() for n, v in enumerate(values["value"])]],
    )
    pq.write_table(changed.cast(values.schema), by_topic["counted"])
    by_topic["exact"].unlink()
    summary = run(spark, own_broker, ["plain", "exact", "counted"], archive=str(table))
    assert not summary.passed
    found = {(finding.kind, finding.topic) for finding in summary.findings if finding.severity == "fail"}
    assert ("archive_file_missing", "exact") in found
    assert ("archive_missing", "exact") in found
    assert ("archive_missing", "plain") in found
    assert ("archive_duplicate", "plain") in found
    assert ("archive_differs", "counted") in found
    [differs] = [finding for finding in summary.findings if finding.kind == "archive_differs"]
    assert differs.first_offset == 7


def files_of(table: Path) -> list[Any]:
    opened = ArchiveTable(Storage.of(str(table)))
    opened.load()
    return opened.files()


def test_damaged_logs_are_found(
    spark: Any, own_broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, whose exit code says so. Last of this page: nothing is whole afterwards."""
    own_broker.stop()

    def cut(batches: list[tuple[BatchHeader, bytearray]]) -> None:
        del batches[4]

    def renumber(batches: list[tuple[BatchHeader, bytearray]]) -> None:
        header, batch = batches[1]
        batch[53:57] = (header.base_sequence + 5).to_bytes(4, "big")
        patch_crc(batch)

    rewrite_log(own_broker, "plain", cut)
    rewrite_log(own_broker, "stamped", renumber)
    rewrite_log(own_broker, "counted", cut_second)
    own_broker.start()
    with Admin(own_broker.bootstrap) as admin:  # whose logs are open from now on
        admin.list_offsets({TopicPartition(name, 0): LATEST for name in TOPICS})
    overwrite(own_broker, "trimmed", 20, 70)
    overwrite(own_broker, "squeezed", 10, 16)  # no format of batches that there is

    class Shared(JobContext):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "spark": spark})

    monkeypatch.setattr("penstock.pipeline.job.JobContext", Shared)
    arguments = ["pipeline", "audit", *TOPICS, "-b", own_broker.bootstrap, "--audit-topic", AUDIT.topic, "--json"]
    with pytest.raises(SystemExit) as ended:
        cli(arguments, prog_name="penstock")
    assert ended.value.code == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["passed"] is False
    found = {(row["kind"], row["topic"]) for row in summary["rows"] if row["severity"] == "fail"}
    assert ("gap", "plain") in found
    assert ("sequence_gap", "plain") in found
    assert ("sequence_gap", "stamped") in found
    assert ("crc", "trimmed") in found
    assert ("unreadable", "squeezed") in found
    assert ("counter_loss", "counted") in found
    [gap] = [row for row in summary["rows"] if (row["kind"], row["topic"]) == ("gap", "plain")]
    assert (gap["first_offset"], gap["end_offset"], gap["records"]) == (40, 50, 10)
    assert not found & {(kind, "exact") for kind in ("gap", "sequence_gap", "crc", "counter_loss")}


def cut_second(batches: list[tuple[BatchHeader, bytearray]]) -> None:
    del batches[1]


def overwrite(broker: Broker, topic: str, batch: int, at: int) -> None:
    """One byte, under the hands of a running broker: one that starts looks at the end of its logs itself."""
    path = broker.data_dir / f"{topic}-0" / f"{0:020d}.log"
    position = [pos for pos, _ in iter_headers(path.read_bytes())][batch] + at
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\x09")


def test_what_cannot_be_audited_is_refused(spark: Any, own_broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no topic 'nowhere'"):
        run(spark, own_broker, ["nowhere"])
    with pytest.raises(PipelineError, match="give one of the two"):
        run(spark, own_broker, [])
    with pytest.raises(PipelineError, match="no archive at"):
        run(spark, own_broker, ["plain"], archive=str(tmp_path / "nothing"))
    dry = audit(JobContext(own_broker.bootstrap, dry_run=True), ["plain"])
    assert dry.facts["offsets"] == 100
